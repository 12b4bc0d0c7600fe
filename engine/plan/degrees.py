"""The degrees of a layout: how many ways each axis splits a run. No torch."""

from dataclasses import dataclass

AXES = ("data", "shard", "tensor", "context", "expert")


@dataclass(frozen=True)
class Degrees:
    """How many ways each axis splits a run."""

    data: int = 1
    shard: int = 1
    tensor: int = 1
    expert: int = 1
    context: int = 1

    @property
    def processes(self) -> int:
        """Processes of the run, one per device."""
        return self.data * self.copy

    @property
    def copy(self) -> int:
        """Processes that keep one copy of the model between them."""
        return self.shard * self.context * self.tensor

    @property
    def batches(self) -> int:
        """Processes, or teams of them, that each see micro-batches of their own."""
        return self.data * self.shard

    def __str__(self) -> str:
        """`shard 2 x tensor 2`, as a person reads it."""
        split = [f"{axis} {ways}" for axis in AXES if (ways := getattr(self, axis)) > 1]
        return " x ".join(split) or "one device"
