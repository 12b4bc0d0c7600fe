"""A model with the fused kernels that other trainers bring: attention of any kind, RMS norms, gated activations."""

from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from engine.plan.pretence import Attention, Gate, Norm

NAME = "atelier_fused"


def fuse(model: nn.Module) -> str:
    """Give a model on the meta device such kernels; the name of its attention, to be set."""
    AttentionInterface.register(NAME, _attend)
    AttentionMaskInterface.register(NAME, _no_mask)
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm") and isinstance(getattr(module, "weight", None), nn.Parameter):
            module.__dict__["forward"] = partial(_norm, module)
        if all(hasattr(module, name) for name in ("gate_proj", "up_proj", "down_proj", "act_fn")):
            if isinstance(module.gate_proj, nn.Linear):
                module.__dict__["forward"] = partial(_mlp, module)
        elif hasattr(module, "_apply_gate"):
            module.__dict__["_apply_gate"] = Gate.apply
    return NAME


def _attend(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
    result: Tensor = Attention.apply(q, k, v, None)  # type: ignore[no-untyped-call]
    return result.transpose(1, 2), None


def _no_mask(*_: Any, **__: Any) -> None:
    return None


def _norm(module: Any, x: Tensor) -> Tensor:
    result: Tensor = Norm.apply(x, module.weight)  # type: ignore[no-untyped-call]
    return result


def _mlp(module: Any, x: Tensor) -> Tensor:
    result: Tensor = module.down_proj(Gate.apply(module.gate_proj(x), module.up_proj(x)))  # type: ignore[no-untyped-call]
    return result
