"""The processes of a run as a mesh: who shares what with whom. One process is the smallest, and needs no network."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from engine.layout.degrees import Degrees

T = TypeVar("T")
PATIENCE = timedelta(hours=2)  # the slowest thing that others wait for: one process reading or writing alone


@dataclass(frozen=True, eq=False)
class Group:
    """Some processes that work together: how many, which of them this one is, and torch's handle (None: only this)."""

    size: int = 1
    index: int = 0
    handle: Any = None

    def sum_(self, value: Tensor) -> Tensor:
        """Sum over the group, in place."""
        if self.size > 1:
            dist.all_reduce(value, group=self.handle)
        return value

    def gather(self, value: Tensor) -> list[Tensor]:
        """Everybody's tensor of this shape, in order."""
        if self.size == 1:
            return [value]
        parts = [torch.empty_like(value, memory_format=torch.contiguous_format) for _ in range(self.size)]
        dist.all_gather(parts, value.contiguous(), group=self.handle)
        return parts

    def passing(self, value: Tensor, by: int = 1) -> Callable[[], Tensor]:
        """Begin to pass a tensor on by so many places; what is given back waits for the one that arrives.

        All of the group call it, with tensors of one shape, which stay as they are until then.
        """
        to, origin = (self.index + by) % self.size, (self.index - by) % self.size
        if to == self.index:
            return lambda: value
        sent = value.contiguous().view(-1)
        found = torch.empty_like(sent)
        come, go = ([len(sent) * (one == other) for one in range(self.size)] for other in (origin, to))
        work = dist.all_to_all_single(found, sent, come, go, group=self.handle, async_op=True)

        def arrived() -> Tensor:
            work.wait()
            return found.view(value.shape)

        return arrived


ONLY_THIS = Group()


@dataclass(frozen=True, eq=False)
class Mesh:
    """The place of this process among the others of the run.

    `tensor`, `context`, `expert`: those that share one layer, one sequence, one set of experts. `batches`: those with
    micro-batches of their own (same slice, same stretch). `slices`: those with the same slice of every layer, whose
    gradients belong together. `holders`: those that keep the same experts. `splits`: how `context` attends, by how many
    ways heads are dealt out: those that swap heads, and those that pass keys round.
    """

    degrees: Degrees = field(default_factory=Degrees)
    rank: int = 0
    world: Group = ONLY_THIS
    tensor: Group = ONLY_THIS
    context: Group = ONLY_THIS
    expert: Group = ONLY_THIS
    batches: Group = ONLY_THIS
    slices: Group = ONLY_THIS
    holders: Group = ONLY_THIS
    splits: Mapping[int, tuple[Group, Group]] = field(default_factory=dict)

    @property
    def main(self) -> bool:
        """Whether this process speaks and writes for the run."""
        return self.rank == 0

    def share(self, items: Sequence[T], idle: T) -> list[T]:
        """The items of this process: as many on every process, the last one `idle` where they do not divide evenly."""
        mine = list(items[self.batches.index :: self.batches.size])
        rounds = -(-len(items) // self.batches.size)
        return mine + [idle] * (rounds - len(mine))

    def together(self, mine: Sequence[T], count: int) -> list[T]:
        """What everybody made of its `share` of `count` items, in their order, everywhere; the idle ones are left out.

        All processes call this.
        """
        size = self.batches.size
        every = [mine] if size == 1 else self._everyones(mine, self.batches)
        return [every[at % size][at // size] for at in range(count)]

    def anywhere(self, here: bool) -> bool:
        """Whether something is so on any process; all of them ask."""
        return bool(self.world.sum_(torch.tensor(float(here)))) if self.world.size > 1 else here

    def total(self, values: Mapping[str, float]) -> dict[str, float]:
        """Sums, by name, over all that have micro-batches of their own; names that some lack count as 0 there."""
        told = [values] if self.batches.size == 1 else self._everyones(values, self.batches)
        names = dict.fromkeys(name for one in told for name in one)
        return {name: sum(one.get(name, 0.0) for one in told) for name in names}

    def everyones(self, value: T) -> list[T]:
        """Every process's value, by rank, on every process."""
        return [value] if self.world.size == 1 else self._everyones(value, self.world)

    @staticmethod
    def _everyones(value: T, group: Group) -> list[T]:
        box: list[Any] = [None] * group.size
        dist.all_gather_object(box, value, group=group.handle)
        return box

    def hosts(self) -> list[str]:
        """Names of the hosts of a run on several of them, the one that speaks for it first; all processes ask."""
        number = int(os.environ.get("GROUP_RANK", "0"))
        return [name for name in dict(self.everyones((number, host()))).values() if name]

    def once(self, work: Callable[[], T]) -> T:
        """What the main process finds, everywhere; the others wait for it and do not look for themselves."""
        if self.world.size == 1:
            return work()
        box: list[Any] = [work() if self.main else None]
        dist.broadcast_object_list(box, src=0)
        found: T = box[0]
        return found


def join(degrees: Degrees, device: torch.device) -> Mesh:
    """Meet the other processes of the run, which torchrun's environment names, and form the groups."""
    if degrees.processes == 1:
        return Mesh()
    if device.type != "cpu":
        torch.accelerator.set_device_index(int(os.environ.get("LOCAL_RANK", "0")))
    if not dist.is_initialized():
        backend = {"cuda": "cpu:gloo,cuda:nccl", "xpu": "cpu:gloo,xpu:xccl"}.get(device.type, "gloo")
        dist.init_process_group(backend, timeout=PATIENCE)
    rank = dist.get_rank()
    tensor, context, batch, expert = (
        getattr(degrees, f"{name}_index") for name in ("tensor", "context", "batch", "expert")
    )
    team = _group(degrees, lambda one: (batch(one), tensor(one)))
    return Mesh(
        degrees=degrees,
        rank=rank,
        world=Group(degrees.processes, rank, dist.group.WORLD),
        tensor=_group(degrees, lambda one: (batch(one), context(one))),
        context=team,
        splits=_splits(degrees, team),
        expert=_group(degrees, lambda one: one // degrees.expert),
        batches=_group(degrees, lambda one: (context(one), tensor(one))),
        slices=_group(degrees, tensor),
        holders=_group(degrees, expert),
    )


def _splits(degrees: Degrees, team: Group) -> dict[int, tuple[Group, Group]]:
    """Every way to split a team that shares a sequence, into neighbours that swap heads and rings across them."""
    found = {1: (ONLY_THIS, team), team.size: (team, ONLY_THIS)}
    for ways in (ways for ways in range(2, team.size) if team.size % ways == 0):
        found[ways] = (
            _group(degrees, partial(_neighbours, degrees, ways)),
            _group(degrees, partial(_ring, degrees, ways)),
        )
    return found


def _neighbours(degrees: Degrees, ways: int, one: int) -> tuple[int, ...]:
    return degrees.batch_index(one), degrees.tensor_index(one), degrees.context_index(one) // ways


def _ring(degrees: Degrees, ways: int, one: int) -> tuple[int, ...]:
    return degrees.batch_index(one), degrees.tensor_index(one), degrees.context_index(one) % ways


def _group(degrees: Degrees, shared: Callable[[int], Any]) -> Group:
    """The processes for which `shared` is the same as here. Everybody makes every group, as torch demands."""
    rank = dist.get_rank()
    members: dict[Any, list[int]] = {}
    for one in range(degrees.processes):
        members.setdefault(shared(one), []).append(one)
    mine = members[shared(rank)]
    if len(mine) == 1:
        return ONLY_THIS
    if len(mine) == degrees.processes:
        return Group(len(mine), rank, dist.group.WORLD)
    handle, _ = dist.new_subgroups_by_enumeration(list(members.values()))
    return Group(len(mine), mine.index(rank), handle)


def processes() -> int:
    """Processes that this one was started among."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """The number of this process among them; 0 speaks and writes for the run."""
    return int(os.environ.get("RANK", "0"))


def host() -> str:
    """The name of this process's host in a run on several of them; empty in a run on one."""
    return os.uname().nodename if int(os.environ.get("GROUP_WORLD_SIZE", "1")) > 1 else ""


def leave() -> None:
    """Say goodbye to the others."""
    if dist.is_initialized():
        dist.destroy_process_group()
