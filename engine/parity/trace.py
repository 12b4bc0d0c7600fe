"""Five steps of a run, kept as numbers: losses, gradient norms, the first step's gradients, the weights at the end."""

import hashlib
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.batches import Plan
from engine.build import Built, build
from engine.layout.mesh import Mesh
from engine.methods import METHODS
from engine.parity.lifted import lifted
from engine.parity.rows import ROWS
from engine.spec import RunSpec
from engine.trainer import Trainer

SAVED, LENGTH = 3, 48
STOPS = range(64)  # tokens that end a sampled answer: a fourth of all, so that answers differ in length


@dataclass(frozen=True)
class Trace:
    """What five steps did: losses and norms (5); whole gradients of the first and weights after the last, by name."""

    losses: Tensor
    norms: Tensor
    gradients: dict[str, Tensor]
    weights: dict[str, Tensor]

    def save(self, path: Path) -> None:
        """Write it to one file."""
        named = {f"gradient.{name}": value for name, value in self.gradients.items()}
        named |= {f"weight.{name}": value for name, value in self.weights.items()}
        save_file({"losses": self.losses, "norms": self.norms, **named}, path)

    @classmethod
    def load(cls, path: Path) -> "Trace":
        """Read what `save` wrote."""
        found = load_file(path)
        parts = ({n.removeprefix(p): v for n, v in found.items() if n.startswith(p)} for p in ("gradient.", "weight."))
        return cls(found["losses"], found["norms"], *parts)

    def distance(self, other: "Trace") -> dict[str, float]:
        """Largest difference to another trace, part by part."""
        if self.weights.keys() != other.weights.keys():
            raise ValueError(f"other parameters: {sorted(self.weights.keys() ^ other.weights.keys())[:4]}")
        made = len(self.losses)
        return {
            "losses": _farthest(self.losses, other.losses[-made:]),
            "norms": _farthest(self.norms, other.norms[-made:]),
            "gradients": max((_farthest(v, other.gradients[n]) for n, v in self.gradients.items()), default=0.0),
            "weights": max(_farthest(value, other.weights[name]) for name, value in self.weights.items()),
        }


def _farthest(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


def trace(
    spec: RunSpec,
    mesh: Mesh,
    accumulation: int,
    *,
    lift: bool = False,
    save: Path | None = None,
    resume: Path | None = None,
) -> Trace:
    """Train five steps of float64 on this mesh, `accumulation` micro-batches each in all; the numbers.

    `lift`: what the model's code would compute in float32 is in float64 too.

    After step SAVED the state goes to the folder `save`; from `resume` it is read, and only the other steps are made.
    """
    built = build(spec, mesh, torch.float64)
    _fill(built)
    trainer = Trainer(built, spec.optimizer, STOPS)
    optimizer = trainer.optimizer
    for group in optimizer.param_groups:
        group["fused"], group["foreach"] = False, True
    gradients: dict[str, Tensor] = {}

    def keep(*_: Any) -> None:
        if trainer.step == 0:
            gradients.update(_whole(built, {name: value.grad for name, value in built.parameters().items()}))

    hook = optimizer.register_step_pre_hook(keep)
    rows, packing = ROWS[spec.method.type](), spec.method.type == "sft"
    plan = Plan(rows, max_length=LENGTH, packing=packing, accumulation=accumulation, seed=3)
    if resume is not None:
        trainer.load(resume)
    steps = []
    with lifted(built.model) if lift else nullcontext():
        for step in METHODS[spec.method.type](trainer, spec, plan):
            steps.append(step)
            if save is not None and step.step == SAVED:
                snapshot = trainer.save()
                if mesh.main:
                    snapshot.write(save)
    hook.remove()
    return Trace(
        losses=torch.tensor([step.loss for step in steps], dtype=torch.float64),
        norms=torch.tensor([step.grad_norm for step in steps], dtype=torch.float64),
        gradients=gradients,
        weights=_whole(built, {name: value.detach() for name, value in built.parameters().items()}),
    )


@torch.no_grad()
def _fill(built: Built) -> None:
    """Give every adapter matrix values of its own, B included, so that every gradient is alive from the first step."""
    for name, value in built.parameters().items():
        placement = built.placements[name]
        shape = placement.whole_shape(value.shape)
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "big")
        whole = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 0.2
        value.copy_(placement.cut(whole))


def _whole(built: Built, pieces: dict[str, Tensor | None]) -> dict[str, Tensor]:
    zeros = {name: torch.zeros_like(value) for name, value in built.parameters().items()}
    return {
        name: built.placements[name].whole(zeros[name] if piece is None else piece).contiguous().clone()
        for name, piece in pieces.items()
    }
