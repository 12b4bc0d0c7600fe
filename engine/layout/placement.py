"""Where each trained parameter lies on the mesh: which piece is here, what makes the whole, whose gradients add up."""

import math
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, distribute_tensor

from engine.layout.mesh import ONLY_THIS, Group


@dataclass(frozen=True)
class Placement:
    """One parameter's place.

    `dim` is cut into as many pieces as `over` has members, `blocks` times over (2 for a gate and an up projection in
    one matrix, each of which is cut); None: whole everywhere. `sums`: the processes whose gradients add up to the whole
    gradient of this piece.
    """

    sums: Group = ONLY_THIS
    dim: int | None = None
    over: Group = ONLY_THIS
    blocks: int = 1

    @property
    def pieces(self) -> int:
        """Different pieces there are."""
        return 1 if self.dim is None else self.over.size

    def whole_shape(self, piece: torch.Size) -> torch.Size:
        """Shape of the whole tensor, by that of one piece."""
        return torch.Size(size * self.pieces if at == self.dim else size for at, size in enumerate(piece))

    def cut(self, whole: Tensor) -> Tensor:
        """The piece of a whole tensor that this process keeps."""
        if self.dim is None or self.over.size == 1:
            return whole
        size, index = self.over.size, self.over.index
        parts = [block.chunk(size, self.dim)[index] for block in whole.chunk(self.blocks, self.dim)]
        return torch.cat(parts, self.dim).contiguous()

    def whole(self, piece: Tensor) -> Tensor:
        """The whole tensor from everybody's pieces; all of `over` must call."""
        if self.dim is None or self.over.size == 1:
            return piece
        columns = [part.chunk(self.blocks, self.dim) for part in self.over.gather(piece)]
        rows = [column[block] for block in range(self.blocks) for column in columns]
        return torch.cat(rows, self.dim)


@dataclass(frozen=True)
class Sharded:
    """The place of a parameter that FSDP2 keeps as a DTensor, and whose gradient it sums itself."""

    mesh: DeviceMesh
    how: tuple[Any, ...]  # torch's own placements, one for each dimension of `mesh`
    sums: Group = ONLY_THIS

    @property
    def pieces(self) -> int:
        """Different pieces there are."""
        return math.prod(self.mesh.size(at) for at, one in enumerate(self.how) if one.is_shard())

    def whole_shape(self, piece: torch.Size) -> torch.Size:
        """Shape of the whole tensor, which is what a DTensor tells."""
        return piece

    def cut(self, whole: Tensor) -> Tensor:
        """The DTensor of a whole tensor that every process has."""
        return distribute_tensor(whole.to(self.mesh.device_type), self.mesh, self.how, src_data_rank=None)

    def whole(self, piece: Tensor) -> Tensor:
        """The whole tensor from everybody's pieces; all processes must call."""
        return cast(DTensor, piece).full_tensor()


def local(value: Tensor) -> Tensor:
    """What of a tensor lies here."""
    return value.to_local() if isinstance(value, DTensor) else value


Placements = dict[str, Placement | Sharded]
