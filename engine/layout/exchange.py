"""What processes hand each other while they compute, each with its derivative: sums, parts, and swapped dimensions."""

from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from engine.layout.mesh import Group


class _Sum(torch.autograd.Function):
    """Sum of everybody's partial results; everybody's derivative is the same one."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, group: Group) -> Tensor:
        return group.sum_(value.clone(memory_format=torch.contiguous_format))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _SumBackward(torch.autograd.Function):
    """A value that everybody has and of whose use everybody sees a part: the derivatives add up."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.group.sum_(gradient.clone(memory_format=torch.contiguous_format)), None


class _Gather(torch.autograd.Function):
    """Everybody's parts along `dim`, in order, and the same use of the whole by everybody: one's own derivative."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, dim: int, sizes: tuple[int, ...], group: Group) -> Tensor:
        ctx.dim, ctx.sizes, ctx.index = dim, sizes, group.index
        longest = max(sizes)
        if part.shape[dim] < longest:
            part = torch.cat([part, part.new_zeros(_resized(part, dim, longest - part.shape[dim]))], dim)
        return torch.cat(
            [found.narrow(dim, 0, size) for found, size in zip(group.gather(part), sizes, strict=True)], dim
        )

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return gradient.split(ctx.sizes, ctx.dim)[ctx.index], None, None, None


class _Part(torch.autograd.Function):
    """One's own part along `dim` of a value that everybody has; the derivatives of the parts make the whole one."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, dim: int, group: Group) -> Tensor:
        ctx.dim, ctx.group = dim, group
        return value.chunk(group.size, dim)[group.index].contiguous()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return torch.cat(ctx.group.gather(gradient), ctx.dim), None, None


class _Swap(torch.autograd.Function):
    """`split` is dealt out, `joined` comes together; backward is the same the other way round."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, split: int, joined: int, group: Group) -> Tensor:
        ctx.split, ctx.joined, ctx.group = split, joined, group
        return _swap(value, split, joined, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return _swap(gradient, ctx.joined, ctx.split, ctx.group), None, None, None


def _swap(value: Tensor, split: int, joined: int, group: Group) -> Tensor:
    sent = torch.stack(value.chunk(group.size, split)).contiguous()
    received = torch.empty_like(sent)  # of a contiguous tensor: a received part must lie the way it was sent
    dist.all_to_all_single(received, sent, group=group.handle)
    return torch.cat(received.unbind(), joined)


def _resized(value: Tensor, dim: int, size: int) -> list[int]:
    shape = list(value.shape)
    shape[dim] = size
    return shape


def summed(value: Tensor, group: Group) -> Tensor:
    """Sum of partial results over the group, which goes on as one value."""
    return value if group.size == 1 else _apply(_Sum, value, group)


def shared(value: Tensor, group: Group) -> Tensor:
    """A value that everybody has and uses a part of: its derivative is summed over the group."""
    return value if group.size == 1 else _apply(_SumBackward, value, group)


def gathered(part: Tensor, dim: int, sizes: tuple[int, ...], group: Group) -> Tensor:
    """The whole along `dim` out of everybody's parts, of these sizes; used by everybody in the same way."""
    return part if group.size == 1 else _apply(_Gather, part, dim, sizes, group)


def own_part(value: Tensor, dim: int, group: Group) -> Tensor:
    """One's own part along `dim` of a value that everybody has."""
    return value if group.size == 1 else _apply(_Part, value, dim, group)


def swapped(value: Tensor, split: int, joined: int, group: Group) -> Tensor:
    """All-to-all: from parts along `joined` with everything of `split`, to parts along `split` with all of `joined`."""
    return value if group.size == 1 else _apply(_Swap, value, split, joined, group)


def _apply(function: type[torch.autograd.Function], *given: Any) -> Tensor:
    return cast(Tensor, function.apply(*given))
