"""LoRA layers in fewer passes: the same numbers as PEFT's own forward, with less work and fewer saved tensors.

PEFT keeps adapters in float32 and, on a bfloat16 base, computes them in float32 from a float32 copy of the input. Here
the float32 adapter is the master copy and the products run in the base's precision, added in place to its output.
"""

import hashlib
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.nn.functional as F
from peft.tuners.lora.layer import Linear as LoraLinear
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn

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


def _fast_forward(layer: LoraLinear) -> Callable[[Tensor], Tensor]:
    base, a, b = layer.base_layer, layer.lora_A[ADAPTER], layer.lora_B[ADAPTER]
    scale = float(layer.scaling[ADAPTER])

    def forward(x: Tensor) -> Tensor:
        if layer.disable_adapters:
            return cast(Tensor, base(x))
        result = _LowRank.apply(x, base.weight, base.bias, a.weight, b.weight, scale)  # type: ignore[no-untyped-call]
        return cast(Tensor, result)

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
    for layer in layers:
        layer._disable_adapters = True
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False
