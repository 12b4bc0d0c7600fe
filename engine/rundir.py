"""A run's folder: the whole contract between the engine process and everything else.

`spec.json` goes in; `events.jsonl`, `checkpoints/` and `adapter/` (or `model/`) come out; whoever starts the process
writes its output to `log.txt`, and a file named `stop` asks it to save and end.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from engine.spec import Layout, RunSpec

StopReason = Literal["pause", "cancel"]


class PlannedLayout(BaseModel):
    """A layout that was planned, and a sentence why."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    layout: Layout
    why: str


@dataclass(frozen=True)
class RunDir:
    """Names of the files of one run; nothing here touches the disk but the small methods at the end."""

    path: Path

    @property
    def spec(self) -> Path:
        """The frozen RunSpec, with `model` and `data.dataset` resolved to paths (or Hub ids)."""
        return self.path / "spec.json"

    @property
    def events(self) -> Path:
        """Append-only JSON lines, one event each."""
        return self.path / "events.jsonl"

    @property
    def log(self) -> Path:
        """Everything the process printed."""
        return self.path / "log.txt"

    def log_of(self, host: int) -> Path:
        """The same of the processes on another host of the run, counted from 1."""
        return self.path / f"log-{host}.txt"

    def logs_elsewhere(self) -> list[Path]:
        """The logs of the other hosts that the run was on."""
        return sorted(self.path.glob("log-*.txt"))

    @property
    def meeting(self) -> Path:
        """A word that the hosts of a run on several of them share, new at each start."""
        return self.path / "meeting"

    @property
    def stop(self) -> Path:
        """Present when somebody wants the run to save and end; its text is the reason."""
        return self.path / "stop"

    @property
    def failure(self) -> Path:
        """What ended a process of the run that does not write events: a Finished event as JSON."""
        return self.path / "failure.json"

    @property
    def layout(self) -> Path:
        """How a run that leaves its layout open is split over the devices that it got: a PlannedLayout as JSON."""
        return self.path / "layout.json"

    @property
    def checkpoints(self) -> Path:
        """Folders `step-<n>`; one without its marker file is half written and is never used."""
        return self.path / "checkpoints"

    @property
    def reference(self) -> Path:
        """What the weights at the start think of each answer, for methods that compare with them."""
        return self.path / "reference.safetensors"

    @property
    def sampler(self) -> Path:
        """The adapter as it is now, for a server that samples answers from it."""
        return self.path / "sampler"

    @property
    def adapter(self) -> Path:
        """The result in PEFT's format."""
        return self.path / "adapter"

    @property
    def model(self) -> Path:
        """The result when all weights are trained: a whole model folder."""
        return self.path / "model"

    def result(self, spec: RunSpec) -> Path:
        """Where a run of this spec leaves what it made."""
        return self.model if spec.training.full_finetuning else self.adapter

    def write_spec(self, spec: RunSpec) -> None:
        """Make the folder and freeze the spec in it."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.spec.write_text(spec.model_dump_json(indent=2), encoding="utf-8")

    def read_spec(self) -> RunSpec:
        """The spec that this folder was made for."""
        return RunSpec.model_validate_json(self.spec.read_text(encoding="utf-8"))

    def planned_layout(self) -> PlannedLayout | None:
        """The layout that was planned for this start of the run, if it left that open."""
        if not self.layout.exists():
            return None
        return PlannedLayout.model_validate_json(self.layout.read_text(encoding="utf-8"))

    def meeting_key(self) -> str:
        """The word that the hosts of the run share; the same for all where nobody gave one."""
        return self.meeting.read_text(encoding="utf-8") if self.meeting.exists() else "atelier"

    def ask_to_stop(self, reason: StopReason) -> None:
        """Ask the engine to save and end."""
        self.stop.write_text(reason, encoding="utf-8")

    def stop_asked(self) -> StopReason | None:
        """Why the engine should stop, or None."""
        if not self.stop.exists():
            return None
        return "cancel" if self.stop.read_text(encoding="utf-8") == "cancel" else "pause"
