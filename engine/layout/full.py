"""All weights in training on a mesh: copies whose gradients are summed here, or shards, whose gradients FSDP2 sums."""

from typing import Any

from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from engine.layout.mesh import Mesh
from engine.layout.placement import Placement, Placements, Sharded
from engine.layout.shard import settle


def place(model: Any, mesh: Mesh) -> Placements:
    """Where each weight lies, by name.

    FSDP2 would average gradients over devices; a step's loss is divided by the whole step's count, so it is to sum.
    """
    settle(model)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    return {
        name: Sharded(value.device_mesh, value.placements) if isinstance(value, DTensor) else Placement(mesh.slices)
        for name, value in model.named_parameters()
    }
