"""How a trainer keeps its numbers: bytes for each parameter, and what stays when. Ours, and others' to compare."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from engine.devices import choose_dtype
from engine.plan.catalogue import Device
from engine.published import in_float8
from engine.spec import RunSpec

QUANTISED = {"nf4": 0.5, "fp8": 1.0}  # bytes a number
SCALES = {"nf4": 0.127 / 8}  # bytes a number, quantised themselves; those of 8-bit floats are none to speak of
UNPACKED = 2**30  # bytes that transformers turns into bfloat16 at a time, at most
MOMENTS = 2  # of AdamW, each as wide as what is trained
EIGHT_BIT = 2.1  # bytes of both moments in 8 bits, with their scales


@dataclass(frozen=True)
class Recipe:
    """Bytes per parameter, and habits.

    `weights`: of layers; `experts`: of routed ones, if not the same; `scales`: of weights that are packed, which stay
    whole where these are cut; `others`: of embeddings, head, norms and routers. `trained`, `gradient` and
    `optimizer`: of what is trained (the optimizer's part includes master copies). `everything`: all weights are
    trained, not an adapter. `keeps_gradients`: they stay allocated while the loss is computed. `reshards`: layers that
    were gathered are let go after the forward pass (ZeRO-3), or kept whole (ZeRO-2). `shares_experts`: routed experts
    are sharded over those devices that hold the same ones. `head`: tiles; logits whole; or fused with the loss.
    `unpacked`: bytes of a quantised base that are in bfloat16 at a time.
    """

    weights: float = 2.0
    experts: float | None = None
    scales: float = 0.0
    others: float = 2.0
    trained: float = 4.0
    gradient: float = 4.0
    optimizer: float = 8.0
    everything: bool = False
    keeps_gradients: bool = True
    reshards: bool = True
    shares_experts: bool = True
    head: Literal["tiles", "logits", "fused"] = "tiles"
    unpacked: int = 0


def precision(spec: RunSpec, device: Device) -> torch.dtype:
    """The precision that the run will compute in on a device that may not be here."""
    if device.kind == "cpu":
        return choose_dtype(spec, torch.device("cpu"))
    if spec.training.dtype != "auto":
        return torch.bfloat16 if spec.training.dtype == "bfloat16" else torch.float32
    whole = spec.training.full_finetuning and spec.optimizer.optim != "adamw_bf16"
    return torch.float32 if whole else torch.bfloat16


def of(spec: RunSpec, dtype: torch.dtype, config: Any) -> Recipe:
    """What this engine keeps for a run in this precision on a model of this configuration."""
    width = float(dtype.itemsize)
    published = in_float8({"quantization_config": getattr(config, "quantization_config", None)})
    quantised = "fp8" if published else spec.training.quantization  # other formats are unpacked on loading
    training, optim = spec.training, spec.optimizer.optim
    trained = 2.0 if optim == "adamw_bf16" else width if training.full_finetuning else 4.0
    own = Recipe(
        weights=QUANTISED.get(quantised, width),
        experts=None if published else width,  # on loading only linear layers are packed
        scales=SCALES.get(quantised, 0.0),
        others=width,
        trained=trained,
        gradient=trained,
        optimizer=EIGHT_BIT if optim == "adamw_8bit" else MOMENTS * trained,
        everything=training.full_finetuning,
        unpacked=UNPACKED if quantised != "none" else 0,
        keeps_gradients=not training.full_finetuning or training.gradient_accumulation_steps > 1,
    )
    return replace(own, weights=trained, experts=trained, others=trained) if own.everything else own
