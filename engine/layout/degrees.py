"""The degrees of a layout: how many ways each axis splits a run, and which place every process has. No torch."""

import math
from dataclasses import asdict, dataclass

from engine.spec import Layout

AXES = ("data", "shard", "tensor", "expert", "context")


@dataclass(frozen=True)
class Degrees:
    """How many ways each axis splits a run; all 1 is one process.

    A process's rank counts tensor fastest, then context, shard, data. Experts are spread over `expert` neighbours of
    one copy of the model, so `expert` divides shard x context x tensor and is no factor of the number of processes.
    """

    data: int = 1
    shard: int = 1
    tensor: int = 1
    expert: int = 1
    context: int = 1

    @property
    def processes(self) -> int:
        """Processes of the run, one per device."""
        return self.data * self.shard * self.context * self.tensor

    @property
    def copy(self) -> int:
        """Processes that keep one copy of the model between them."""
        return self.shard * self.context * self.tensor

    @property
    def batches(self) -> int:
        """Processes, or teams of them, that each see micro-batches of their own."""
        return self.data * self.shard

    @property
    def sharded(self) -> bool:
        """Whether weights are cut while they load."""
        return self.copy > 1

    def tensor_index(self, rank: int) -> int:
        """Which slice of every layer a process computes."""
        return rank % self.tensor

    def context_index(self, rank: int) -> int:
        """Which stretch of its sequence a process computes."""
        return rank // self.tensor % self.context

    def batch_index(self, rank: int) -> int:
        """Whose micro-batches a process sees."""
        return rank // (self.tensor * self.context)

    def expert_index(self, rank: int) -> int:
        """Which routed experts a process keeps."""
        return rank % self.copy % self.expert

    def __str__(self) -> str:
        """`shard 2 x tensor 2`, as a person reads it."""
        split = [f"{axis} {ways}" for axis in AXES if (ways := getattr(self, axis)) > 1]
        return " x ".join(split) or "one device"


def devices_of(layout: Layout) -> int:
    """Devices that a layout asks for by itself: the product of what is set; `auto` asks for one."""
    given = {axis: ways for axis in AXES if isinstance(ways := getattr(layout, axis), int)}
    return math.prod(ways for axis, ways in given.items() if axis != "expert")


def layout_of(degrees: Degrees) -> Layout:
    """The layout that sets these degrees."""
    return Layout(**asdict(degrees))


def degrees_of(layout: Layout, processes: int) -> Degrees:
    """The layout on this many processes: what is `auto` becomes 1, but shard (or data), which takes what is left.

    Raises ValueError when the processes do not make whole copies.
    """
    given = {axis: ways for axis in AXES if isinstance(ways := getattr(layout, axis), int)}
    fixed = devices_of(layout)
    left, rest = divmod(processes, fixed)
    if rest or not left:
        raise ValueError(f"a layout of {Degrees(**given)} cannot use {processes} devices")
    if left > 1:
        free = next((axis for axis in ("shard", "data") if axis not in given), None)
        if free is None:
            raise ValueError(f"a layout of {Degrees(**given)} needs {fixed} devices, not {processes}")
        given[free] = left
    return Degrees(**given)
