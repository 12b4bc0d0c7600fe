"""What a training step keeps besides weights: the engine's own step, run on tensors without memory, counted."""

import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from engine.head import tiles
from engine.plan.parameters import kind_of
from engine.plan.pretence import META, Pretence
from engine.plan.twin import Twin, hidden, recomputing

SLICED = ("attention", "mlp", "shared_experts", "experts")  # what tensor parallelism cuts, where a plan names it


@dataclass(frozen=True)
class Activations:
    """Bytes of one micro-batch on one device.

    `kept`: alive between forward and backward; `head`: on top of these while the loss is computed; `working`: on top of
    them in the backward pass, at most; `sliced`: the share of `kept` inside attention and MLPs.
    """

    kept: int
    head: int
    working: int
    sliced: float


class Live(TorchDispatchMode):
    """Counts the bytes of storages that are alive, by the layer and kind of module that was running when they came."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self.place: tuple[int, str] = (-1, "other")
        self.sizes: dict[int, tuple[int, tuple[int, str]]] = {}
        for one in (*model.parameters(), *model.buffers()):
            self.sizes[one.untyped_storage()._cdata] = (0, self.place)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation and note the storages that it made."""
        result = func(*args, **(kwargs or {}))
        for one in tree_leaves(result):
            if isinstance(one, Tensor):
                self._note(one.untyped_storage())
        return result

    def _note(self, storage: Any) -> None:
        key = storage._cdata
        if key in self.sizes:
            return
        self.sizes[key] = (storage.nbytes(), self.place)
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, key)

    def _gone(self, key: int) -> None:
        self.now -= self.sizes.pop(key, (0, self.place))[0]

    def by_place(self) -> Counter[tuple[int, str]]:
        """Bytes alive by (layer, kind)."""
        found: Counter[tuple[int, str]] = Counter()
        for size, place in self.sizes.values():
            found[place] += size
        return found


def measure(twin: Twin, lengths: list[int], *, kind: str, recompute: bool) -> Activations:
    """The activations of a micro-batch of documents of these lengths on a device of this kind (`cpu`, `cuda`)."""
    with ExitStack() as stack:
        stack.enter_context(recomputing(twin, recompute))
        twin.model.train()
        live, pretence = Live(twin.model), Pretence(kind)
        stack.enter_context(_places(twin, live, pretence))
        stack.enter_context(_gradients_dropped(twin.model))
        stack.enter_context(pretence)
        stack.enter_context(live)
        hidden_TD = hidden(twin, lengths)
        trunk, before = live.by_place(), live.now
        live.peak = live.now
        loss = hidden_TD.sum() if twin.everything else _loss(twin, hidden_TD)
        head = live.peak - before + _rest_of_head(twin, hidden_TD)
        live.peak = live.now
        del hidden_TD
        loss.backward()
        working = live.peak - before
    kept, sliced = _scaled(twin, trunk)
    return Activations(kept=kept, head=head, working=max(0, working), sliced=sliced)


def _scaled(twin: Twin, trunk: Counter[tuple[int, str]]) -> tuple[int, float]:
    """(bytes of all layers from those of one of each kind, the share of these inside attention and MLPs)."""
    times = {at: group.layers for at, group in enumerate(twin.groups)}
    total = sum(size * times.get(layer, 1) for (layer, _), size in trunk.items())
    inside = sum(size * times.get(layer, 1) for (layer, kind), size in trunk.items() if kind in SLICED)
    return total, inside / max(total, 1)


def _loss(twin: Twin, hidden_TD: Tensor) -> Tensor:
    """As the trainer does it, with every token a target, up to so many: what the head does grows with the tokens."""
    sources_N = torch.ones(_head_tokens(twin, len(hidden_TD)), dtype=torch.long, device=META)
    logprobs_N: Tensor = twin.head(hidden_TD.index_select(0, sources_N), targets_N=sources_N)
    return -logprobs_N.sum()


def _head_tokens(twin: Twin, tokens: int) -> int:
    """As many as make the head work in tiles, one of them not full."""
    tile: int = tiles(tokens, twin.head.out_features)[0].stop
    return min(tokens, tile + 1)


def _rest_of_head(twin: Twin, hidden_TD: Tensor) -> int:
    """Bytes for the other tokens: their hidden states once more, and the derivative by them."""
    rest = len(hidden_TD) - _head_tokens(twin, len(hidden_TD))
    return 2 * rest * hidden_TD.shape[1] * hidden_TD.element_size()


@contextmanager
def _places(twin: Twin, live: Live, pretence: Pretence) -> Iterator[None]:
    """Tell the counter which layer, and which kind of module in it, is running."""
    hooks = []
    layers = getattr(twin.trunk, "layers", [])
    for at, layer in enumerate(layers if twin.groups else []):
        for name, module in layer.named_modules():
            kind = kind_of(f".{name}.weight") if name else "other"
            if name and (kind not in SLICED or "." in name):
                continue
            hooks += _bracket(module, live, (at, kind), pretence)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _bracket(module: nn.Module, live: Live, place: tuple[int, str], pretence: Pretence) -> list[Any]:
    outer: list[tuple[tuple[int, str], AbstractContextManager[None]]] = []

    def enter(*_: Any) -> None:
        again = pretence.again()
        outer.append((live.place, again))
        live.place = place
        again.__enter__()

    def leave(*_: Any) -> None:
        live.place, again = outer.pop()
        again.__exit__(None, None, None)

    return [module.register_forward_pre_hook(enter), module.register_forward_hook(leave, always_call=True)]


@contextmanager
def _gradients_dropped(model: nn.Module) -> Iterator[None]:
    """Gradients of parameters are planned elsewhere: here they go as soon as they are whole."""

    def drop(parameter: Tensor) -> None:
        parameter.grad = None

    hooks = [one.register_post_accumulate_grad_hook(drop) for one in model.parameters() if one.requires_grad]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
