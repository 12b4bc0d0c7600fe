"""LoRA layers in fewer passes: the same numbers as PEFT's own forward, with less work and fewer saved tensors.

PEFT keeps adapters in float32 and, on a bfloat16 base, computes them in float32 from a float32 copy of the input. Here
the float32 adapter is the master copy and the products run in the base's precision, added in place to its output.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from peft.tuners.lora.layer import Linear as LoraLinear
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn

from engine import experts

ADAPTER = "default"


@dataclass(frozen=True)
class LowRank:
    """A frozen linear layer and its adapter: x W.T + b + scale * (x A.T) B.T, and the gradients of it.

    Inputs are flat (N, I) and contiguous, outputs (N, O); gradients of A and B are float32 like themselves.
    """

    weight_OI: Tensor
    bias_O: Tensor | None
    a_RI: Tensor
    b_OR: Tensor
    scale: float

    @classmethod
    def of(cls, layer: LoraLinear, weight_OI: Tensor, bias_O: Tensor | None) -> "LowRank":
        """A plain LoRA layer of PEFT on these base weights."""
        a, b = layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight
        return cls(weight_OI, bias_O, cast(Tensor, a), cast(Tensor, b), float(layer.scaling[ADAPTER]))

    def forward(self, x_NI: Tensor) -> tuple[Tensor, Tensor]:
        """(output, what the backward pass needs besides the input)."""
        out_NO = F.linear(x_NI, self.weight_OI, self.bias_O)
        low_NR = x_NI @ self.a_RI.to(x_NI.dtype).t()
        return out_NO.addmm_(low_NR, (self.b_OR * self.scale).to(x_NI.dtype).t()), low_NR

    def low_gradient(self, grad_NO: Tensor) -> Tensor:
        """Gradient of what lies between A and B (N, R)."""
        return grad_NO @ (self.b_OR * self.scale).to(grad_NO.dtype)

    def input_gradient(self, grad_NO: Tensor, low_grad_NR: Tensor) -> Tensor:
        """Gradient of the input (N, I)."""
        return (grad_NO @ self.weight_OI).addmm_(low_grad_NR, self.a_RI.to(grad_NO.dtype))

    def adapter_gradients(
        self, grad_NO: Tensor, low_grad_NR: Tensor, x_NI: Tensor, low_NR: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Gradients of A and B."""
        grad_b_RO = low_NR.t() @ grad_NO  # so, and not its transpose, because the long side is read in order
        grad_a_RI = (low_grad_NR.t() @ x_NI).to(self.a_RI.dtype)
        return grad_a_RI, (grad_b_RO.to(self.b_OR.dtype) * self.scale).t().contiguous()


@dataclass(frozen=True)
class Joint:
    """Layers that read the same input, side by side; `weight_OI` and `bias_O` are theirs, one below the other."""

    parts: tuple[LowRank, ...]
    weight_OI: Tensor
    bias_O: Tensor | None

    @classmethod
    def of(cls, layers: Sequence[LoraLinear], weight_OI: Tensor, bias_O: Tensor | None) -> "Joint":
        """Several plain LoRA layers of PEFT on base weights that `joined` put together."""
        widths = [layer.out_features for layer in layers]
        weights = weight_OI.split(widths)
        return cls(tuple(LowRank.of(*each, None) for each in zip(layers, weights, strict=True)), weight_OI, bias_O)

    @property
    def widths(self) -> list[int]:
        """Outputs of each layer."""
        return [len(part.weight_OI) for part in self.parts]

    @property
    def adapters(self) -> tuple[Tensor, ...]:
        """A and B of the first layer, of the second, ..."""
        return tuple(value for part in self.parts for value in (part.a_RI, part.b_OR))

    def layer(self) -> LowRank:
        """One layer that is all of them: their A one below the other, their B on a diagonal of blocks."""
        if len(self.parts) == 1:
            return self.parts[0]
        a = torch.cat([part.a_RI for part in self.parts])
        b = torch.block_diag(*(part.b_OR * part.scale for part in self.parts))
        return LowRank(self.weight_OI, self.bias_O, a, b, 1.0)

    def split(self, grad_a: Tensor, grad_b: Tensor) -> tuple[Tensor, ...]:
        """Gradients of that layer's A and B as those of `adapters`."""
        if len(self.parts) == 1:
            return grad_a, grad_b
        found: list[Tensor] = []
        out = rank = 0
        for part in self.parts:
            outs, ranks = slice(out, out + len(part.b_OR)), slice(rank, rank + len(part.a_RI))
            found += [grad_a[ranks], grad_b[outs, ranks] * part.scale]
            out, rank = outs.stop, ranks.stop
        return tuple(found)


class _Adapted(torch.autograd.Function):
    """Layers side by side on one input of any shape (..., I): one output (..., O) each; W and b are frozen."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, joint: Joint, *adapters: Tensor) -> tuple[Tensor, ...]:
        flat_NI = x.reshape(-1, x.shape[-1])
        out_NO, low_NR = joint.layer().forward(flat_NI)
        ctx.save_for_backward(flat_NI, low_NR)
        ctx.joint, ctx.shape = joint, x.shape
        out = out_NO.view(*x.shape[:-1], -1)
        return (out,) if len(joint.parts) == 1 else out.split(joint.widths, -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        flat_NI, low_NR = ctx.saved_tensors
        joint: Joint = ctx.joint
        gradient = gradients[0] if len(gradients) == 1 else torch.cat(gradients, -1)
        grad_NO = gradient.reshape(-1, gradient.shape[-1])
        layer = joint.layer()
        low_grad_NR = layer.low_gradient(grad_NO)
        adapters = joint.split(*layer.adapter_gradients(grad_NO, low_grad_NR, flat_NI, low_NR))
        grad_x = layer.input_gradient(grad_NO, low_grad_NR).view(ctx.shape) if ctx.needs_input_grad[0] else None
        return grad_x, None, *adapters


def is_plain(layer: LoraLinear) -> bool:
    """Vanilla LoRA on a plain linear layer: no dropout, no variant, nothing merged or quantised."""
    return (
        type(layer) is LoraLinear
        and type(layer.base_layer) is nn.Linear
        and layer.base_layer.weight.is_floating_point()
        and ADAPTER not in layer.lora_variant
        and isinstance(layer.lora_dropout[ADAPTER], nn.Identity)
        and layer.lora_A[ADAPTER].bias is None
        and layer.lora_B[ADAPTER].bias is None
    )


def apply(layer: LoraLinear, x: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
    """A layer's adapter on top of these base weights, or of a slice of them that A and B were cut like."""
    return together(Joint((LowRank.of(layer, weight_OI, bias_O),), weight_OI, bias_O), x)[0]


def together(joint: Joint, x: Tensor) -> tuple[Tensor, ...]:
    """What each of these layers makes of the same input."""
    return cast(tuple[Tensor, ...], _Adapted.apply(x, joint, *joint.adapters))  # type: ignore[no-untyped-call]


def joined(layers: Sequence[LoraLinear]) -> tuple[Tensor, Tensor | None] | None:
    """Frozen weights and biases of layers on the same input, one below the other; None where only some have a bias.

    The layers' own become views of them, so that nothing is held twice.
    """
    bases: list[Any] = [layer.base_layer for layer in layers]
    if len({base.bias is None for base in bases}) > 1 or len({base.weight.dtype for base in bases}) > 1:
        return None
    return _stacked([base.weight for base in bases]), _stacked([base.bias for base in bases if base.bias is not None])


def _stacked(parts: list[nn.Parameter]) -> Any:
    if not parts:
        return None
    whole = torch.cat([part.data for part in parts])
    for part, own in zip(parts, whole.split([len(part) for part in parts]), strict=True):
        part.data = own
    return whole


def _fast_forward(layer: LoraLinear) -> Callable[[Tensor], Tensor]:
    base: Any = layer.base_layer

    def forward(x: Tensor) -> Tensor:
        return cast(Tensor, base(x)) if layer.disable_adapters else apply(layer, x, base.weight, base.bias)

    return forward


def speed_up(model: nn.Module) -> int:
    """Give every plain LoRA layer the short forward (DoRA, dropout keep PEFT's); returns how many got it."""
    count = 0
    for layer in model.modules():
        if isinstance(layer, LoraLinear) and is_plain(layer):
            layer.__dict__["forward"] = _fast_forward(layer)
            count += 1
    return count


def seed_adapter(model: nn.Module, seed: int) -> None:
    """Start each adapter matrix from its own name and the seed: equal on every device, rank and layout.

    A is uniform in +-1/sqrt(inputs) as in PEFT (Kaiming, a = sqrt(5)); B is zero, so the run starts at the base model.
    """
    for name, parameter in model.named_parameters():
        if ".lora_A." not in name:
            continue
        generator = torch.Generator().manual_seed(
            int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8], "big") >> 1
        )
        bound = 1.0 / math.sqrt(parameter.shape[-1])
        with torch.no_grad():
            parameter.copy_(torch.empty(parameter.shape).uniform_(-bound, bound, generator=generator))


@contextmanager
def switched_off(model: nn.Module) -> Iterator[None]:
    """The base model inside the block, without touching requires_grad (PEFT's own switch does)."""
    layers = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    routed = [module for _, module in experts.adapted(model)]
    _switch(layers, routed, off=True)
    try:
        yield
    finally:
        _switch(layers, routed, off=False)


def _switch(layers: Sequence[BaseTunerLayer], routed: Sequence[Any], *, off: bool) -> None:
    for layer in layers:
        layer._disable_adapters = off
    for module in routed:
        module.adapter_off = off
