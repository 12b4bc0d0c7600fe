"""A plan as it is told: JSON for programs, and the sentences that say why."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.failure import Change
from engine.plan import changes
from engine.plan.catalogue import GIB
from engine.plan.planner import Chosen, Machine
from engine.spec import RunSpec, settings

PARTS = (
    *("weights", "adapter", "gradients", "optimizer", "activations"),
    *("cache", "gathered", "head", "dispatch", "reserve"),
)
_MORE = ("training.gradient_accumulation_steps", "data.max_length")


@dataclass(frozen=True)
class Plan:
    """What a run will need. `changes`: the smallest that make it fit, empty when it does, None when nothing helps."""

    spec: RunSpec
    machine: Machine
    chosen: Chosen
    parameters: dict[str, int]
    tokens_per_step: int
    steps: int | None
    disk: int
    changes: Sequence[Change] | None = ()
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def fits(self) -> bool:
        """Whether every device has the room."""
        return self.chosen.fits(self.machine.device)

    @property
    def seconds(self) -> float | None:
        """Of all steps."""
        return None if self.steps is None else self.steps * self.chosen.pace.seconds

    def json(self) -> dict[str, Any]:
        """The plan for programs: GiB per device at the fullest moment, and why."""
        needs = self.chosen.needs
        weights = needs.weights + needs.adapter
        parts = {
            "total_gib": needs.total,
            "weights_gib": weights,
            "gradients_gib": needs.gradients,
            "optimizer_gib": needs.optimizer,
            "activations_gib": needs.activations,
            "buffers_gib": needs.buffers,
        }
        degrees = self.chosen.degrees
        return {
            "fits": self.fits,
            "layout": {axis: getattr(degrees, axis) for axis in ("data", "shard", "tensor", "expert", "context")},
            "per_device": {name: round(size / GIB, 3) for name, size in parts.items()},
            "parameters": self.parameters,
            "tokens_per_step": self.tokens_per_step,
            "steps": self.steps,
            "seconds": None if self.seconds is None else round(self.seconds, 1),
            "disk_gib": round(self.disk / GIB, 3),
            "why": self.why(),
        }

    def told(self) -> dict[str, Any]:
        """For pages: the same, with bytes by part, the room, and the changes as settings."""
        needs = self.chosen.needs
        return {
            **self.json(),
            "parts": {name: getattr(needs, name) for name in PARTS},
            "peak": needs.total,
            "room": self.machine.device.room,
            "memory": self.machine.device.memory,
            "devices": self.machine.number,
            "source": self.chosen.pace.source,
            "changes": None if self.changes is None else [changes.told(change) for change in self.changes],
        }

    def settings(self) -> dict[str, Any]:
        """What was chosen, by setting: layout, recompute, micro-batch and length."""
        named = ("training.gradient_checkpointing", "training.per_device_train_batch_size", *_MORE)
        leaves = settings(self.spec)
        return {name: leaves[name] for name in (*named, *(one for one in leaves if one.startswith("layout.")))}

    def why(self) -> list[str]:
        """Sentences: the layout, the fullest moment, the room, the pace, and what would help."""
        needs, device = self.chosen.needs, self.machine.device
        said = [
            f"Layout: {self.chosen.degrees}.",
            f"Most memory is needed when {needs.moment}: {needs.total / GIB:.2f} of {device.room / GIB:.1f} GiB that a "
            f"run may use of {device.name}.",
            f"Time is {self.chosen.pace.source}.",
            *self.notes,
        ]
        if self.fits:
            return said
        if self.changes is None:
            return [*said, "It does not fit, and no single setting or halving of them helps: choose a smaller model."]
        wanted = " ".join(change.effect for change in self.changes)
        return [*said, f"It does not fit. The smallest change that would: {wanted}"]
