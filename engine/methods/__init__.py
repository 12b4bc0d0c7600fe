"""The methods on offer: each a short generator over the trainer's verbs, yielding after every optimizer step."""

from collections.abc import Callable, Iterator

from engine.batches import Plan
from engine.methods.sft import sft
from engine.spec import RunSpec
from engine.trainer import Stepped, Trainer

METHODS: dict[str, Callable[[Trainer, RunSpec, Plan], Iterator[Stepped]]] = {"sft": sft}
