"""The frozen base in fewer bits: 4-bit NormalFloat through bitsandbytes (QLoRA), or floats of 8 bits."""

from typing import Any

import torch
from torch import Tensor, nn

from engine import nf4
from engine.extras import has_bitsandbytes
from engine.failure import Failure

FLOAT8 = torch.float8_e4m3fn
LARGEST = 448.0  # of FLOAT8
GRAIN = 16  # both sides of a weight must be a multiple of this
FLOAT8_CAPABILITY = (9, 0)  # CUDA devices from which on rows may be scaled one by one
NF4_DEVICES = {"cpu", "cuda", "xpu"}


def check(quantization: str, device: torch.device, dtype: torch.dtype) -> None:
    """Raise Failure unless the base can be held like this here, saying what would work instead."""
    if quantization == "nf4":
        if not has_bitsandbytes():
            message = "A base in 4 bits needs the package bitsandbytes, which is not installed."
            raise Failure("quantization_not_installed", message, ["pip install bitsandbytes", "Quantised base none."])
        if device.type not in NF4_DEVICES:
            message = f"A base in 4 bits does not run on {device.type.upper()}."
            raise Failure("quantization_not_here", message, ["Quantised base none."])
    if quantization == "fp8" and (why := _why_no_float8(device, dtype)):
        advice = ["Quantised base nf4: half as large again, on every device.", "Quantised base none."]
        raise Failure("quantization_not_here", f"A base in 8-bit floats is not possible: {why}.", advice)


def _why_no_float8(device: torch.device, dtype: torch.dtype) -> str:
    if device.type != "cuda" or torch.version.hip is not None:
        return f"{device.type.upper()} devices have no such product here"
    if torch.cuda.get_device_capability(device) < FLOAT8_CAPABILITY:
        return f"{torch.cuda.get_device_name(device)} does not multiply 8-bit floats"
    return "" if dtype == torch.bfloat16 else "it computes in bfloat16 only, and the precision is float32"


def loading(quantization: str, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """What `from_pretrained` has to be told to read the base in 4 bits; nothing otherwise."""
    return nf4.loading(dtype, device) if quantization == "nf4" else {}


def frozen_numbers(model: nn.Module) -> int:
    """Parameters of the base, in whatever they are packed; scales are none."""
    kept = sum(
        value.numel()
        for name, value in model.named_parameters()
        if not value.requires_grad and not name.endswith("_scale_inv")
    )
    in_bytes = [one for one in model.modules() if isinstance(one, nn.Linear) and one.weight.dtype == torch.uint8]
    return kept + sum(one.in_features * one.out_features - one.weight.numel() for one in in_bytes)


def keep_trainable(model: nn.Module) -> None:
    """Hold bitsandbytes back from repacking its weights on a CPU at the first evaluation: that form has no backward."""
    for layer in model.modules():
        if "support_avx512bf16_for_cpu" in layer.__dict__:
            layer.__dict__["support_avx512bf16_for_cpu"] = False


class _Float8Product(torch.autograd.Function):
    """x (N, I) times weight (O, I) transposed; every row of both has its own scale. The weight is frozen."""

    @staticmethod
    def forward(ctx: Any, x_NI: Tensor, weight_OI: Tensor, scale_O: Tensor) -> Tensor:
        scale_N1 = (x_NI.abs().amax(1, keepdim=True).float() / LARGEST).clamp_min(1e-12)
        small_NI = (x_NI / scale_N1).clamp_(-LARGEST, LARGEST).to(FLOAT8)
        ctx.save_for_backward(weight_OI, scale_O)
        out: Tensor = torch._scaled_mm(small_NI, weight_OI.t(), scale_N1, scale_O[None], out_dtype=torch.bfloat16)
        return out

    @staticmethod
    def backward(ctx: Any, gradient_NO: Tensor) -> tuple[Tensor, None, None]:
        weight_OI, scale_O = ctx.saved_tensors
        return (gradient_NO * scale_O.to(gradient_NO.dtype)) @ weight_OI.to(gradient_NO.dtype), None, None


class Float8Linear(nn.Linear):
    """A frozen linear layer that keeps its weight as 8-bit floats; made out of an ordinary one by `hold_in_float8`."""

    scale_O: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """X (..., I) -> (..., O) in x's own precision."""
        out_NO: Tensor = _Float8Product.apply(x.reshape(-1, x.shape[-1]), self.weight, self.scale_O)  # type: ignore[no-untyped-call]
        out = out_NO.to(x.dtype).view(*x.shape[:-1], -1)
        return out if self.bias is None else out + self.bias


def hold_in_float8(trunk: nn.Module) -> int:
    """Make every linear layer of the base a Float8Linear, in place; how many. Adapter and head stay as they are."""
    count = 0
    for name, layer in trunk.named_modules():
        if type(layer) is not nn.Linear or ".lora_" in name or any(side % GRAIN for side in layer.weight.shape):
            continue
        scale_O1 = (layer.weight.float().abs().amax(1, keepdim=True) / LARGEST).clamp_min(1e-12)
        small_OI = (layer.weight.float() / scale_O1).clamp_(-LARGEST, LARGEST).to(FLOAT8)
        layer.weight = nn.Parameter(small_OI, requires_grad=False)
        layer.register_buffer("scale_O", scale_O1.squeeze(1), persistent=False)
        layer.__class__ = Float8Linear
        count += 1
    return count
