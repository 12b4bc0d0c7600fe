"""Adapters on a mesh: their whole shape, their start, and the piece of each that this process keeps."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from peft.tuners.lora.layer import Linear as LoraLinear
from torch import nn

from engine import experts, lora
from engine.devices import exact
from engine.layout import expert, tensor
from engine.layout.mesh import Mesh
from engine.layout.placement import Placement, Placements


@contextmanager
def plain_to_peft(model: Any) -> Iterator[None]:
    """Inside the block PEFT sees a model of no known family that is not split.

    So it adds its layers where it is asked to and no collectives of its own; for some families of experts it would
    read the names of dense layers as those of their routed experts, and build the delta of all of them.
    """
    mesh, model._device_mesh = model._device_mesh, None
    model.config.__dict__["model_type"] = "plain"
    try:
        yield
    finally:
        del model.config.__dict__["model_type"]
        model._device_mesh = mesh


def place(model: Any, mesh: Mesh, seed: int) -> Placements:
    """Start every adapter from its name and the seed, keep this process's piece; where each piece belongs, by name."""
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, LoraLinear)}
    for layer in layers.values():
        _make_whole(layer, exact(model.dtype))
    lora.seed_adapter(model, seed)
    lora.speed_up(model)
    placements: Placements = {}
    for name, layer in layers.items():
        style = tensor.style_of(model, name) if mesh.tensor.size > 1 else ""
        for matrix, placement in zip("AB", tensor.place(layer, name, style, mesh), strict=True):
            _keep_piece(getattr(layer, f"lora_{matrix}")[lora.ADAPTER], "weight", placement)
            placements[f"{name}.lora_{matrix}.{lora.ADAPTER}.weight"] = placement
        if mesh.tensor.size > 1:
            tensor.install(layer, style, mesh)
    for name, module in experts.adapted(model):
        for part, placement in expert.place(model, name, module, mesh).items():
            kind, matrix = part.split(".")
            _keep_piece(getattr(module, kind), matrix, placement)
            placements[f"{name}.{part}"] = placement
    if mesh.world.size == 1:  # on more, what no rule places is refused when training begins
        placements |= {name: Placement() for name, value in model.named_parameters() if name not in placements}
    return placements


def _make_whole(layer: Any, dtype: torch.dtype) -> None:
    """A and B exact, in the shape of the whole layer: PEFT measures a weight, which may be a piece, or in 8 bits."""
    base = layer.base_layer
    a, b = layer.lora_A[lora.ADAPTER], layer.lora_B[lora.ADAPTER]
    a.weight = nn.Parameter(a.weight.new_zeros(a.weight.shape[0], base.in_features, dtype=dtype))
    b.weight = nn.Parameter(b.weight.new_zeros(base.out_features, b.weight.shape[1], dtype=dtype))


@torch.no_grad()
def _keep_piece(owner: nn.Module, name: str, placement: Placement) -> None:
    setattr(owner, name, nn.Parameter(placement.cut(getattr(owner, name).detach())))
