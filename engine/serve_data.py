"""A process that stays: questions about datasets and plans as JSON lines on stdin, one JSON line on stdout for each.

Loading transformers takes seconds and opening a model a moment; asked again, this process has both. Rendering happens
in the main thread, where the limits on templates work; a second thread only reads lines.
"""

import importlib
import json
import os
import queue
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from engine import lifeline
from engine.failure import Failure
from engine.inspect_data import row_number, show, survey_file
from engine.prompts import as_prompt
from engine.render.renderer import Renderer, TrainOn
from engine.render.settings import RenderSettings, open_renderer
from engine.rows import AS_SEEN, Declared, sniff, usable
from engine.rows.model import Kind
from engine.spec import RunSpec

MOST_RENDERERS = 4
STDIN = 0
CHUNK = 1 << 16


class Request(BaseModel):
    """What every question names, and how rows are rendered. `level` "": as in the data."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Path
    level: str = ""
    bridge: bool = False
    train_on: TrainOn = "all_turns"
    train_reasoning: bool = True

    @property
    def settings(self) -> RenderSettings:
        """What is set about rendering."""
        return RenderSettings(self.level, self.bridge, self.train_on, self.train_reasoning)


class OfFile(Request):
    """A question about a file, and what its rows are declared to be; where nothing is, they are what they show.

    `asks`: of a chat only the prompt is read, since its answers are sampled.
    """

    file: Path
    asks: bool = False
    declared: Declared = AS_SEEN


class Open(Request):
    """Have the model's renderer ready."""

    verb: Literal["open"]


class Show(OfFile):
    """One row as tokens; with `count`, that many usable rows from it on, as `rows`: those of `kind`, if it is known."""

    verb: Literal["show"]
    row: int = Field(default=1, ge=1)
    count: int | None = Field(default=None, ge=1, le=100)
    kind: Kind | None = None


class Check(OfFile):
    """The file in numbers; `seconds`: when to stop rendering and say of how many rows the numbers are."""

    verb: Literal["check"]
    max_length: int | None = Field(default=None, ge=1)
    truncation_mode: Literal["keep_start", "drop"] = "keep_start"
    seconds: float | None = Field(default=None, gt=0)


class PlanRun(BaseModel):
    """The plan of a run whose model is a folder, on these devices: `{kind, label, total_bytes}` each.

    `rows`: usable ones; `survey`: what Check told of them, as far as it is known. `tokens_per_second`: of earlier runs.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    verb: Literal["plan"]
    spec: RunSpec
    devices: list[dict[str, Any]] = Field(min_length=1)
    rows: int = Field(default=0, ge=0)
    survey: dict[str, Any] | None = None
    tokens_per_second: float | None = Field(default=None, gt=0)


ASKED: TypeAdapter[Open | Show | Check | PlanRun] = TypeAdapter(
    Annotated[Open | Show | Check | PlanRun, Field(discriminator="verb")]
)


class Desk:
    """Answers, and keeps the renderers that were used last."""

    def __init__(self) -> None:
        self.plans: Any = None  # engine.plan.desk.PlanDesk, once it is needed
        self.renderers: OrderedDict[tuple[Path, RenderSettings], Renderer] = OrderedDict()

    def answer(self, line: str) -> dict[str, Any]:
        """The answer to one line: what was asked for, or `error` with code, message and advice."""
        try:
            asked = ASKED.validate_json(line)
            return self._planned(asked) if isinstance(asked, PlanRun) else self._found(asked, self._renderer(asked))
        except Failure as failure:
            return _error(failure.code, failure.message, failure.advice)
        except ValidationError as error:
            first = error.errors()[0]
            return _error("bad_request", f"{'.'.join(map(str, first['loc']))}: {first['msg']}", [])
        except (OSError, ValueError, TypeError, LookupError, ArithmeticError, RecursionError, MemoryError) as error:
            # whatever a stranger's file or template provokes: the next question is another one
            return _error("cannot_inspect", f"{type(error).__name__}: {error}"[:1000], [])

    def _renderer(self, asked: Request) -> Renderer:
        """The renderer of this model with these settings, opened at most once while it is in use."""
        key = (asked.model, asked.settings)
        if key not in self.renderers:
            self.renderers[key] = open_renderer(*key)
            if len(self.renderers) > MOST_RENDERERS:
                self.renderers.popitem(last=False)
        self.renderers.move_to_end(key)
        return self.renderers[key]

    def _planned(self, asked: PlanRun) -> dict[str, Any]:
        """The plan; its libraries (torch among them) are loaded with the first one, so that rows are shown before."""
        if self.plans is None:
            self.plans = importlib.import_module("engine.plan.desk").PlanDesk()
        told: dict[str, Any] = self.plans.told(
            asked.spec, asked.devices, asked.rows, asked.survey, asked.tokens_per_second
        )
        return told

    def _found(self, asked: Open | Show | Check, renderer: Renderer) -> dict[str, Any]:
        if isinstance(asked, Check):
            return survey_file(
                asked.file,
                renderer,
                max_length=asked.max_length,
                drop=asked.truncation_mode == "drop",
                seconds=asked.seconds,
                asks=asked.asks,
                declared=asked.declared,
            )
        if isinstance(asked, Open):
            return {"levels": [level.name for level in renderer.levels.levels]}
        read = as_prompt if asked.asks else lambda row: row
        if asked.count is None:
            return show(renderer, read(row_number(asked.file, asked.row, asked.declared)))
        rows = usable(asked.file, sniff(asked.file, asked.file.name), asked.kind, asked.declared)
        wanted = (row for row in rows if row.number >= asked.row)
        return {"rows": [show(renderer, read(row)) for row in islice(wanted, asked.count)]}


def _error(code: str, message: str, advice: list[str]) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "advice": advice}}


def main() -> int:
    """Answer until stdin ends. With a lifeline the process ends with it at once, whatever it is doing."""
    held = os.environ.pop(lifeline.VARIABLE, "") == "1"
    waiting: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(waiting, held), name="questions", daemon=True).start()
    desk = Desk()
    while (line := waiting.get()) is not None:
        sys.stdout.write(json.dumps(desk.answer(line), ensure_ascii=False) + "\n")
        sys.stdout.flush()
    return 0


def _listen(waiting: "queue.SimpleQueue[str | None]", held: bool) -> None:
    for line in _lines():
        waiting.put(line)
    if held:
        os._exit(0)  # whoever asked is gone: nobody reads the answer
    waiting.put(None)


def _lines() -> Iterator[str]:
    """Lines of stdin, read from the descriptor: the lock of sys.stdin, held here, would abort an ordinary exit."""
    rest = b""
    while chunk := os.read(STDIN, CHUNK):
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line.decode("utf-8", "replace") for line in whole if line.strip())
