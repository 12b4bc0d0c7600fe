"""A base in 4 bits (QLoRA) on one device or several: bitsandbytes packs its weights, and layers unpack them here.

bitsandbytes' own layers keep a weight's scales on the weight, where they get lost when FSDP2 cuts weights, and PEFT has
adapters of another kind for them. Here a layer keeps the scales beside: a thirtieth of the bytes, whole everywhere.
The bytes are cut anywhere, since a layer's weight is whole again while it computes.
"""

import importlib
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import BitsAndBytesConfig

from engine.products import packed


def loading(dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """What `from_pretrained` has to be told to read a base in 4 bits; scales are those of float32 at most."""
    computed = torch.float32 if dtype == torch.float64 else dtype
    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=computed,
    )
    return {"quantization_config": config, "device_map": {"": device}, "dtype": computed}


def install(model: nn.Module, dtype: torch.dtype) -> int:
    """Make every layer of bitsandbytes an Nf4Linear, in place; how many. In checks of float64 all else becomes that."""
    library = importlib.import_module("bitsandbytes")  # an extra: only who asks for it needs it
    count = 0
    for layer in model.modules():
        if isinstance(layer, library.nn.Linear4bit):
            state = layer.weight.quant_state
            plain = layer.weight.detach().as_subclass(Tensor)
            layer.weight = nn.Parameter(plain, requires_grad=False)
            layer.quant_state, layer.library = state, library
            layer.__class__ = Nf4Linear
            count += 1
    if dtype == torch.float64:
        nn.Module.to(model, dtype)
    return count


def bring(model: nn.Module, device: torch.device) -> None:
    """Move the scales to where the weights are."""
    for layer in model.modules():
        if isinstance(layer, Nf4Linear):
            layer.quant_state.to(device)


class Nf4Linear(nn.Linear):
    """A frozen linear layer whose weight is packed in bytes, two numbers each; made by `install`."""

    quant_state: Any
    library: Any  # bitsandbytes

    def forward(self, x: Tensor) -> Tensor:
        """X (..., I) -> (..., O) in x's own precision."""
        if (x.requires_grad and torch.is_grad_enabled()) or x.dtype == torch.float64:
            out = packed(x, self._unpack, self.weight)
        else:  # a kernel that reads four bits a number: generation spends its time on reading weights
            out = cast(Tensor, self.library.matmul_4bit(x, self.weight, quant_state=self.quant_state))
        return out if self.bias is None else out + self.bias

    def _unpack(self, packed_M1: Tensor, dtype: torch.dtype) -> Tensor:
        return cast(Tensor, self.library.functional.dequantize_4bit(packed_M1, self.quant_state)).to(dtype)
