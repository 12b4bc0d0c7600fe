"""Gradients of trained parameters, made whole: one sum per group of processes, after a step's last backward pass."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from engine.failure import Failure
from engine.layout.mesh import Group, Mesh
from engine.layout.placement import Placements, Sharded, local


class Gradients:
    """The gradients of all trained parameters of one process.

    A step's loss is divided by the whole step's count before backward, so gradients are summed, never averaged.
    Raises Failure for a parameter that no placement knows: it would drift apart between processes without a sound.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], placements: Placements, mesh: Mesh) -> None:
        self._parameters = list(parameters.values())
        self._mesh = mesh
        if mesh.world.size == 1:
            return
        _scan(parameters, placements)
        self._weights = {value: placements[name].pieces / mesh.world.size for name, value in parameters.items()}
        self._groups: dict[int, tuple[Group, list[nn.Parameter]]] = {}
        for name, value in parameters.items():
            group = placements[name].sums
            self._groups.setdefault(id(group), (group, []))[1].append(value)

    def synchronise(self) -> None:
        """Sum over the processes that share each parameter: one flat all-reduce per group.

        A gradient that only some processes miss is zeros there. One that all miss stays missing, as on one device: the
        optimizer passes such a parameter by, where zeros would have its weights decay.
        """
        if self._mesh.world.size == 1:
            return
        reached = self._reached()
        for group, members in self._groups.values():
            members = [value for value in members if value in reached]
            for value in members:
                if value.grad is None:
                    value.grad = torch.zeros_like(value)
            if group.size == 1 or not members:
                continue
            flat = group.sum_(torch.cat([_gradient(value).reshape(-1) for value in members]))
            for value, part in zip(members, flat.split([value.numel() for value in members]), strict=True):
                _gradient(value).copy_(part.view_as(value))

    def _reached(self) -> set[nn.Parameter]:
        """The parameters that have a gradient on any process."""
        here = torch.tensor([float(value.grad is not None) for value in self._parameters])
        counts = self._mesh.world.sum_(here.to(self._parameters[0].device)).tolist()
        return {value for value, count in zip(self._parameters, counts, strict=True) if count}

    def norm(self) -> Tensor:
        """Norm of the whole gradient, the same on every process: each piece counts once."""
        found = [value for value in self._parameters if value.grad is not None]
        if not found:
            return torch.zeros(())
        gradients = [local(_gradient(value)) for value in found]
        if self._mesh.world.size == 1:
            return torch.nn.utils.get_total_norm(gradients)
        norms = torch._foreach_norm(gradients)
        squares = torch.stack([norm.square() * self._weights[value] for value, norm in zip(found, norms, strict=True)])
        return self._mesh.world.sum_(squares.sum()).sqrt()


def _gradient(value: nn.Parameter) -> Tensor:
    assert value.grad is not None
    return value.grad


def _scan(parameters: Mapping[str, Any], placements: Placements) -> None:
    """Refuse what would train without the others' gradients."""
    lost = [
        name
        for name, value in parameters.items()
        if name not in placements or isinstance(value, DTensor) is not isinstance(placements[name], Sharded)
    ]
    if lost:
        raise Failure(
            "gradient_not_shared",
            f"{len(lost)} trained parameters have no way to sum their gradients over devices: {', '.join(lost[:3])}.",
            ["Train on one device.", "Name other layers as Target modules."],
        )
