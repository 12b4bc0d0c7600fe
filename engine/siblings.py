"""Layers that read the same tensor, computed at once: a model's own code still calls them one after another.

The first call computes all of them and the others take what waits for them, so attention stays unmodified. Narrow
products (few heads of keys and values) and those with an adapter's A gain most by it.
"""

from functools import partial
from typing import Any, cast

from peft.tuners.lora.layer import Linear as LoraLinear
from torch import Tensor, nn

from engine.lora import Joint, is_plain, joined, together

TOGETHER = (("q_proj", "k_proj", "v_proj"),)
"""Names of layers that one module gives the same input, in every model of transformers that has them."""


class Siblings:
    """Adapted layers, and what was computed for those that have not been called yet."""

    def __init__(self, layers: list[LoraLinear], weight_OI: Tensor, bias_O: Tensor | None) -> None:
        self.layers, self.weight_OI, self.bias_O = layers, weight_OI, bias_O
        self.x: Tensor | None = None
        self.waiting: dict[int, Tensor] = {}

    def forward(self, number: int, x: Tensor) -> Tensor:
        """What layer `number` makes of `x`."""
        layer: Any = self.layers[number]
        if layer.disable_adapters:
            return cast(Tensor, layer.base_layer(x))
        if self.x is not x or number not in self.waiting:
            joint = Joint.of(self.layers, self.weight_OI, self.bias_O)
            self.x, self.waiting = x, dict(enumerate(together(joint, x)))
        found = self.waiting.pop(number)
        if not self.waiting:
            self.x = None
        return found


def join(module: nn.Module) -> bool:
    """Let layers of a module that read the same tensor be computed together; whether it has such."""
    for names in TOGETHER:
        layers = [getattr(module, name, None) for name in names]
        plain = [layer for layer in layers if isinstance(layer, LoraLinear) and is_plain(layer)]
        stacked = joined(plain) if len(plain) == len(names) else None
        if stacked is None:
            continue
        siblings = Siblings(plain, *stacked)
        for number, layer in enumerate(plain):
            layer.__dict__["forward"] = partial(siblings.forward, number)
        return True
    return False
