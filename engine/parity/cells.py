"""The cells of the table: which family is trained on which layout, and what else is asked of it there."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from engine.layout.degrees import Degrees
from engine.parity.families import ALONE, LIFTED, ROUTED
from engine.spec import RunSpec

METHODS: dict[str, dict[str, Any]] = {
    "sft": {"type": "sft"},
    "dpo": {"type": "dpo"},
    "kto": {"type": "kto", "undesirable_weight": 1.5},
    "grpo": {
        "type": "grpo",
        "rewards": {"length:3": 1.0},
        "num_generations": 4,
        "max_completion_length": 8,
        "top_p": 0.95,
        "beta": 0.1,
    },
}
TOLERANCE = 1e-12  # how far any number may be from that of one process


@dataclass(frozen=True)
class Cell:
    """One family on one layout; `micro_batches` per step over all devices; `recompute`: activations in backward.

    `method`: what is learned, from rows of its own; `everything`: all weights, no adapter. `checkpoint`: the state
    after step 3 is saved, or read instead of training the first three steps. `base`: held in 4 bits, or published in 8.
    """

    family: str
    degrees: Degrees
    recompute: bool = False
    micro_batches: int = 4
    checkpoint: Literal["", "saved", "resumed"] = ""
    method: Literal["sft", "dpo", "kto", "grpo"] = "sft"
    everything: bool = False
    base: Literal["", "nf4", "fp8"] = ""

    @property
    def model(self) -> str:
        """Name of the folder of its base model."""
        return f"{self.family}-published-fp8" if self.base == "fp8" else self.family

    @property
    def reference(self) -> str:
        """Name of the one-process trace that it is compared with."""
        return f"{self.family}{self.base}-{self.method}-{self.micro_batches}{'-everything' * self.everything}"

    @property
    def layout(self) -> str:
        """The layout as a person reads it, with what else is asked of it."""
        more = [f"{self.base} base"] * bool(self.base) + ["all weights"] * self.everything
        more += [self.method.upper()] * (self.method != "sft")
        more += ["recomputed"] * self.recompute + [f"{self.micro_batches} micro-batches"] * (self.micro_batches != 4)
        return ", ".join([str(self.degrees), *more, *([self.checkpoint] if self.checkpoint else [])])

    @property
    def lifted(self) -> bool:
        """Whether the model's parts in float32 compute in float64; see `engine.parity.lifted`."""
        return self.family in LIFTED

    @property
    def possible(self) -> bool:
        """Whether the family can be split like this; see `engine.layout.rules`."""
        if self.degrees.expert > 1 and self.family not in ROUTED:
            return False
        return self.degrees.context == 1 or self.family not in ALONE

    def spec(self, folder: Path) -> RunSpec:
        """The run that is made of it."""
        targets = "all-linear+experts" if self.family in ROUTED else "all-linear"
        return RunSpec.model_validate(
            {
                "model": str(folder / self.model),
                "data": {"dataset": "made up"},
                "method": METHODS[self.method],
                "lora": {"r": 4, "lora_alpha": 8, "target_modules": targets},
                "optimizer": {"learning_rate": 1e-2, "weight_decay": 0.01, "lr_scheduler_type": "constant"},
                "training": {
                    "device": "cpu",
                    "max_steps": 5,
                    "gradient_checkpointing": self.recompute,
                    "full_finetuning": self.everything,
                    "quantization": "nf4" if self.base == "nf4" else "none",
                },
                "layout": asdict(self.degrees),
            }
        )

    def told(self) -> dict[str, Any]:
        """As JSON for the processes of a launch."""
        return asdict(self)

    @classmethod
    def of(cls, told: dict[str, Any]) -> "Cell":
        """What `told` gave."""
        return cls(**{**told, "degrees": Degrees(**told["degrees"])})


ON_TWO = [
    Degrees(data=2),
    Degrees(shard=2),
    Degrees(tensor=2),
    Degrees(context=2),
    Degrees(shard=2, expert=2),
    Degrees(tensor=2, expert=2),
]
ON_FOUR = [
    Degrees(shard=4),
    Degrees(context=4),
    Degrees(data=2, shard=2),
    Degrees(data=2, tensor=2),
    Degrees(data=2, context=2),
    Degrees(shard=2, tensor=2),
    Degrees(shard=2, context=2),
    Degrees(tensor=2, context=2),
    Degrees(shard=4, expert=2),
    Degrees(shard=4, expert=4),
    Degrees(data=2, shard=2, expert=2),
    Degrees(shard=2, tensor=2, expert=2),
    Degrees(shard=2, tensor=2, expert=4),
    Degrees(shard=2, context=2, expert=2),
    Degrees(tensor=2, context=2, expert=2),
]
COMPOSITE = {
    "llama": Degrees(shard=2, tensor=2),
    "qwen3": Degrees(tensor=2, context=2),
    "mistral": Degrees(shard=2, context=2),
    "gemma3_text": Degrees(data=2, context=2),
    "gpt_oss": Degrees(shard=2, context=2, expert=2),
    "qwen3_moe": Degrees(shard=2, tensor=2, expert=4),
    "deepseek_v3": Degrees(tensor=2, context=2, expert=2),
    "glm4_moe": Degrees(shard=4, expert=2),
    "mistral_large4": Degrees(shard=4, expert=4),
    "qwen3_5_text": Degrees(shard=2, tensor=2),
    "qwen3_5_moe_text": Degrees(shard=2, tensor=2, expert=2),
}
"""Each family on one composite layout, for the quick table."""


HARDER = (Degrees(shard=4), Degrees(shard=2, tensor=2), Degrees(shard=2, context=2, expert=2))
"""Layouts on which activations are also recomputed, with three micro-batches for the devices: one has no token."""

WHOLE = (Degrees(data=2), Degrees(shard=2), Degrees(context=2), Degrees(shard=4), Degrees(data=2, shard=2))
"""Layouts on which all weights are trained, and on which the base is in 4 or 8 bits."""

SPREAD = (Degrees(shard=2, expert=2), Degrees(shard=4, expert=4), Degrees(shard=4, expert=2))
"""Layouts on which the experts of a base in fewer bits are spread besides."""

MOVED = ("qwen3_moe", "gpt_oss")
"""Families whose checkpoint is saved on four devices and resumed on two and on one."""


ALIGNED = (Degrees(data=2), Degrees(shard=2), Degrees(tensor=2), Degrees(context=2), Degrees(shard=2, tensor=2))
"""Layouts on which the other methods train too, of the first family; routed experts are spread besides."""


def full(families: list[str]) -> Iterator[Cell]:
    """Every family on every layout that it can be split like, and what is harder than usual on a few."""
    for degrees in ON_FOUR + ON_TWO:
        for family in families:
            yield Cell(family, degrees)
            if degrees in HARDER:
                yield replace(Cell(family, degrees), recompute=True, micro_batches=3)
    yield from _moved(families)
    yield from _aligned(families)
    yield from _everything(families)
    yield from _packed(families)


def quick(families: list[str]) -> Iterator[Cell]:
    """Each family on one composite layout, each layout on a family more, and a checkpoint moved."""
    for family in families:
        yield Cell(family, COMPOSITE[family])
    for degrees in ON_FOUR:
        for family in ("qwen3", "gpt_oss", "qwen3_moe")[degrees.expert > 1 :][:1]:
            if family in families and COMPOSITE[family] != degrees:
                yield Cell(family, degrees, recompute=degrees in HARDER, micro_batches=3 if degrees in HARDER else 4)
    yield from _moved([family for family in families if family == MOVED[0]])
    yield from (cell for cell in _aligned(families) if cell.degrees == ALIGNED[-1])
    yield from (cell for cell in _everything(families[:1]) if cell.degrees == WHOLE[-1] and not cell.checkpoint)
    if "deepseek_v3" in families:
        yield Cell("deepseek_v3", SPREAD[-1], base="fp8")


def _aligned(families: list[str]) -> Iterator[Cell]:
    for method in ("dpo", "kto", "grpo"):
        for degrees in ALIGNED:
            if "qwen3" in families:
                yield Cell("qwen3", degrees, method=method)
        if "qwen3_moe" in families:
            yield Cell("qwen3_moe", Degrees(shard=2, expert=2), method=method)


def _everything(families: list[str]) -> Iterator[Cell]:
    for family in ("llama", "gemma3_text", "qwen3_moe"):
        for degrees in WHOLE if family in families else ():
            yield Cell(family, degrees, everything=True)
    if "llama" in families:
        yield Cell("llama", WHOLE[-1], everything=True, checkpoint="saved")
        yield Cell("llama", WHOLE[1], everything=True, checkpoint="resumed")
        yield Cell("llama", Degrees(), everything=True, checkpoint="resumed")


def _packed(families: list[str]) -> Iterator[Cell]:
    for degrees in (*WHOLE, SPREAD[0]):
        for family in ("llama", "qwen3_moe"):
            if family in families:
                yield Cell(family, degrees, base="nf4")
    for degrees in (*WHOLE, *SPREAD):
        for family in ("deepseek_v3", "qwen3_moe", "mistral_large4"):
            if family in families:
                yield Cell(family, degrees, base="fp8")


def _moved(families: list[str]) -> Iterator[Cell]:
    for family in MOVED:
        if family in families:
            yield Cell(family, Degrees(shard=2, tensor=2), checkpoint="saved")
            yield Cell(family, Degrees(shard=2, expert=2), checkpoint="resumed")
            yield Cell(family, Degrees(), checkpoint="resumed")
