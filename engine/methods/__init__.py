"""The methods on offer: each a short generator over the trainer's verbs, yielding after every optimizer step."""

from collections.abc import Callable, Iterator

from engine.batches import Plan, Samples
from engine.evaluation import Evaluated
from engine.methods import dpo, grpo, kto, sft
from engine.spec import RunSpec
from engine.trainer import Stepped, Trainer

METHODS: dict[str, Callable[[Trainer, RunSpec, Plan], Iterator[Stepped]]] = {
    "sft": sft.sft,
    "dpo": dpo.dpo,
    "kto": kto.kto,
    "grpo": grpo.grpo,
}
EVALUATIONS: dict[str, Callable[[Trainer, RunSpec, Samples], Evaluated]] = {
    "sft": sft.held_out,
    "dpo": dpo.held_out,
    "kto": kto.held_out,
    "grpo": grpo.held_out,
}
