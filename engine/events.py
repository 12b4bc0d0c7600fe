"""What a run says, one JSON line each, appended to `events.jsonl` by one writer and followed by any number of readers.

The byte offset at which a line ends is the event's identity: relaying a line twice is harmless, and a half-written
last line waits until it is whole. This module imports no torch.
"""

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter

from engine.failure import Change, Failure

PhaseName = Literal[
    "starting",
    "loading_data",
    "loading_model",
    "reference",
    "training",
    "evaluating",
    "sampling",
    "saving",
    "checking_adapter",
]


def finite_or_gap(value: float | None) -> float | None:
    """NaN and infinities become None: a gap in the curve, and a line that is always valid JSON."""
    return value if value is not None and math.isfinite(value) else None


Measured = Annotated[float | None, BeforeValidator(finite_or_gap)]


class Said(BaseModel):
    """Fields that every event has."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    time: float = Field(default_factory=time.time, description="Seconds since the epoch, UTC.")


class Phase(Said):
    """What the run is doing now; `done` of `total` counts the phase's own units where it has any."""

    kind: Literal["phase"] = "phase"
    phase: PhaseName
    detail: str = ""
    done: int | None = None
    total: int | None = None


class Started(Said):
    """The facts known once model and data are loaded, said again after each resume."""

    kind: Literal["started"] = "started"
    total_steps: int
    first_step: int = Field(default=0, description="0 for a fresh run, else the step resumed from.")
    device: str
    devices: int = 1
    hosts: list[str] = Field(default=[], description="Names of the hosts, where there are several.")
    layout: str = Field(default="", description="How the run is split over the devices.")
    layout_why: str = Field(default="", description="Why like this, where the spec left it open.")
    micro_batches: int = Field(default=0, description="Per step, over all devices; a resumed run keeps it.")
    dtype: str
    train_rows: int
    eval_rows: int
    bad_rows: int = 0
    truncated_rows: int = 0
    dropped_rows: int = Field(default=0, description="Longer than the maximum length, and left out.")
    max_length: int | None = Field(default=None, description="Tokens per sequence, as set or chosen from the rows.")
    level: dict[str, Any] = Field(default={}, description="What the chat template is told in every row.")
    date: str = Field(default="", description="The day that the chat template is told.")
    trained_tokens: int = Field(description="Tokens with a loss, per epoch.")
    total_tokens: int = Field(description="All tokens, per epoch.")
    trainable_parameters: int
    trained_modules: list[str] = Field(default=[], description="Names of the layers that are trained, each kind once.")
    total_parameters: int
    versions: dict[str, str] = {}


class DeviceMemory(BaseModel):
    """Bytes on one device; on a CPU `allocated` is the resident memory of the process and `reserved` equals it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    device: str
    allocated: int
    reserved: int
    peak: int
    total: int


class Step(Said):
    """One optimizer step; `loss` and `grad_norm` are None where they were not finite."""

    kind: Literal["step"] = "step"
    step: int = Field(description="Counts from 1.")
    epoch: float
    loss: Measured = Field(description="Mean over the trained tokens of the whole step.")
    learning_rate: float
    grad_norm: Measured = Field(description="Before clipping.")
    tokens: int = Field(description="All tokens of the step.")
    trained_tokens: int
    seconds: float
    tokens_per_second: float
    memory: list[DeviceMemory] = []
    metrics: dict[str, Measured] = Field(default={}, description="What the method measures besides, by name.")


class Eval(Said):
    """Loss on the held-out rows after `step` steps."""

    kind: Literal["eval"] = "eval"
    step: int
    loss: Measured
    tokens: int
    best: bool = False
    metrics: dict[str, Measured] = Field(default={}, description="What the method measures besides, by name.")


class Sample(Said):
    """The same held-out prompt answered by the base model and by the tuned one."""

    kind: Literal["sample"] = "sample"
    step: int
    prompt: list[dict[str, Any]] = Field(description="Messages in OpenAI's shape, without the answer.")
    expected: str = ""
    base_answer: str
    answer: str


class Attempt(BaseModel):
    """One sampled answer: `rewards` by name, None where one could not be had, and `reward`, their weighted sum."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    text: str
    reward: Measured
    rewards: dict[str, Measured] = {}
    advantage: Measured
    tokens: int
    reasoning_tokens: int | None = Field(default=None, description="Of them, until the thought was closed.")
    truncated: bool = False


class Rollout(Said):
    """A group of answers that a step learned from, as an example of them."""

    kind: Literal["rollout"] = "rollout"
    step: int
    prompt: list[dict[str, Any]] = Field(description="Messages in OpenAI's shape, without the answer.")
    expected: str = ""
    answers: list[Attempt]


class Saved(Said):
    """A complete checkpoint, or the result."""

    kind: Literal["saved"] = "saved"
    step: int
    what: Literal["checkpoint", "adapter", "model"]
    path: str = Field(description="Relative to the run's folder.")
    bytes: int


class Warned(Said):
    """Something that a person should know and that does not end the run."""

    kind: Literal["warning"] = "warning"
    code: str
    message: str


class Finished(Said):
    """The last event of every run that ended by itself.

    `succeeded`: the adapter was proven to load. `paused` / `cancelled`: a stop was asked for. `failed`: `message` says
    what happened, `advice` what to change; `changes` are settings that can be made at once, for another run.
    """

    kind: Literal["finished"] = "finished"
    status: Literal["succeeded", "failed", "paused", "cancelled"]
    step: int = 0
    code: str = ""
    message: str = ""
    advice: list[str] = []
    changes: list[Change] = []

    @classmethod
    def of(cls, failure: Failure, step: int = 0) -> Self:
        """A failure as a run's last event, after this many steps."""
        told = {name: getattr(failure, name) for name in ("code", "message", "advice", "changes")}
        return cls(status="failed", step=step, **told)


Event = Annotated[
    Phase | Started | Step | Eval | Sample | Rollout | Saved | Warned | Finished, Field(discriminator="kind")
]
_EVENT: TypeAdapter[Event] = TypeAdapter(Event)


def parse(line: str | bytes) -> Event:
    """One line as an event."""
    return _EVENT.validate_json(line)


def append(path: Path, event: Event) -> None:
    """Append one event and hand it to the operating system before returning."""
    with path.open("ab") as file:
        file.write(event.model_dump_json().encode() + b"\n")


def read(path: Path, offset: int = 0) -> Iterator[tuple[int, Event]]:
    """Whole lines from byte `offset` on, each with the offset at which it ends; nothing if there is no file yet."""
    if not path.exists():
        return
    with path.open("rb") as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                return
            offset += len(line)
            yield offset, parse(line)
