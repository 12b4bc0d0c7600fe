"""LoRA layers in fewer passes: the same numbers as PEFT's own forward, with less work and fewer saved tensors.

PEFT keeps adapters in float32 and, on a bfloat16 base, computes them in float32 from a float32 copy of the input. Here
the float32 adapter is the master copy and the products run in the base's precision, added in place to its output.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.nn.functional as F
from peft.tuners.lora.layer import Linear as LoraLinear
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn

from engine import experts

ADAPTER = "default"


class _LowRank(torch.autograd.Function):
    """x (..., I) -> x W.T + b + scale * (x A.T) B.T (..., O); W and b are frozen."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight_OI: Tensor, bias_O: Tensor | None, a_RI: Tensor, b_OR: Tensor, scale: float
    ) -> Tensor:
        flat_NI = x.reshape(-1, x.shape[-1])
        out_NO = F.linear(flat_NI, weight_OI, bias_O)
        low_NR = flat_NI @ a_RI.to(x.dtype).t()
        out_NO.addmm_(low_NR, (b_OR * scale).to(x.dtype).t())
        ctx.save_for_backward(flat_NI, low_NR, weight_OI, a_RI, b_OR)
        ctx.scale = scale
        ctx.shape = x.shape
        return out_NO.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None, Tensor, Tensor, None]:
        flat_NI, low_NR, weight_OI, a_RI, b_OR = ctx.saved_tensors
        grad_NO = gradient.reshape(-1, gradient.shape[-1])
        low_grad_NR = grad_NO @ (b_OR * ctx.scale).to(grad_NO.dtype)
        grad_b = (grad_NO.t() @ low_NR).to(b_OR.dtype) * ctx.scale
        grad_a = (low_grad_NR.t() @ flat_NI).to(a_RI.dtype)
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = (grad_NO @ weight_OI).addmm_(low_grad_NR, a_RI.to(grad_NO.dtype)).view(ctx.shape)
        return grad_x, None, None, grad_a, grad_b, None


def _is_plain(layer: LoraLinear) -> bool:
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
    a, b, scale = layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight, float(layer.scaling[ADAPTER])
    return cast(Tensor, _LowRank.apply(x, weight_OI, bias_O, a, b, scale))  # type: ignore[no-untyped-call]


def _fast_forward(layer: LoraLinear) -> Callable[[Tensor], Tensor]:
    base: Any = layer.base_layer

    def forward(x: Tensor) -> Tensor:
        return cast(Tensor, base(x)) if layer.disable_adapters else apply(layer, x, base.weight, base.bias)

    return forward


def speed_up(model: nn.Module) -> int:
    """Give every plain LoRA layer the short forward (DoRA, dropout keep PEFT's); returns how many got it."""
    count = 0
    for layer in model.modules():
        if isinstance(layer, LoraLinear) and _is_plain(layer):
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
