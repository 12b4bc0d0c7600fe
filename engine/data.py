"""From a dataset file to token samples ready to train on: reading, splitting, rendering, cutting, counting."""

import datetime
import hashlib
import time
from array import array
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.batches import Samples
from engine.events import Event, Phase, Warned
from engine.failure import Failure
from engine.inspect_data import renderer_for
from engine.prompts import Prompt, Questions
from engine.reading import reader_for
from engine.render.pair import render_pair
from engine.render.renderer import Renderer, trained_turns
from engine.render.sample import Refusal, Rendered
from engine.render.template import Variables
from engine.rows import Report, Row, check, sniff, usable
from engine.rows.model import Message
from engine.spec import SFT, RunSpec

SPLIT = 0x5EED  # keeps the split's random numbers apart from those of the row order
SAY_EVERY = 1.0  # seconds


@dataclass(frozen=True)
class Counts:
    """What became of the rows. Tokens are those of the training samples, per epoch."""

    rows: int
    bad_rows: int  # could not be read, or are of another kind
    refused_rows: int  # the chat template cannot render any trained turn of them
    truncated_rows: int
    nothing_to_learn_rows: int  # no trained token within max_length
    train_rows: int
    eval_rows: int
    trained_tokens: int
    total_tokens: int


@dataclass(frozen=True, eq=False)
class SamplePrompt:
    """A prompt to answer before and after training: messages as a person wrote them, and the ids serving sends."""

    row: int
    messages: list[dict[str, Any]]
    expected: str
    ids: NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Prepared:
    """Everything the train loop needs from the data; `eval` may be empty, `train` never is."""

    train: Samples
    eval: Samples
    counts: Counts
    prompts: list[SamplePrompt]


def prepare(
    spec: RunSpec,
    tokenizer: Any,
    stop_ids: Collection[int],
    say: Callable[[Event], None],
    *,
    frozen_date: datetime.date | None = None,
) -> Prepared:
    """Read, split, render and cut the rows of `spec.data`.

    `stop_ids`: `generation_config.eos_token_id` (one or several) plus `tokenizer.eos_token_id`; at least one.
    `frozen_date`: what templates that ask for the date are told; give the day of the run's start, so that a resumed
    run sees the same tokens (today when None). `say` gets `Phase(phase="loading_data", done, total)` and `Warned`.
    Raises Failure when the file is gone or changed, when too many rows are bad, when the method cannot use rows of this
    kind, or when nothing is left to learn.
    """
    path = Path(spec.data.dataset)
    say(Phase(phase="loading_data", detail="Checking rows"))
    format = sniff(path, path.name)
    same_file(path, spec.data.sha256)
    report = check(path, format, preview=0)
    usable_kind(report, path.name, spec.method.kinds)
    work = _Work(
        spec,
        renderer_for(tokenizer, stop_ids, spec.data.reasoning_level, bridge=spec.data.bridge, date=frozen_date),
        held_out(report.usable, spec.data.eval_fraction, spec.training.seed),
    )
    said = time.monotonic()
    for index, row in enumerate(usable(path, format, report.kind)):
        work.take(index, row)
        if time.monotonic() - said >= SAY_EVERY:
            said = time.monotonic()
            say(Phase(phase="loading_data", detail="Rendering rows", done=index + 1, total=report.usable))
    prepared = work.finish(report)
    say(Phase(phase="loading_data", detail="Rendering rows", done=report.usable, total=report.usable))
    for warning in work.warnings(report):
        say(warning)
    return prepared


def asked_of(row: Row) -> tuple[list[Message], str]:
    """A row as what is asked and the expected answer: of a chat, everything before its last answer and that answer."""
    if row.kind == "prompt":
        return row.prompt, row.answer
    last = max(at for at, message in enumerate(row.messages) if message["role"] == "assistant")
    return row.messages[:last], str(row.messages[last].get("content") or "")


def same_file(path: Path, sha256: str) -> None:
    """Raise Failure when the file is no longer the one that the run was made for; '' accepts any."""
    if not sha256:
        return
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256.lower():
        message = f"{path.name} has changed since this run was made, so the run would not be what was asked for."
        raise Failure("data_changed", message, ["Make a new run from the dataset as it is now."])


def usable_kind(report: Report, name: str, kinds: tuple[str, ...]) -> None:
    """Raise Failure when the file has no rows of the kinds that the method learns from."""
    if not report.usable:
        advice = [problem.fix for problem in report.problems[:3] if problem.fix]
        raise Failure("no_usable_rows", f"{name}: {report.summary}", dict.fromkeys(advice))
    if report.kind not in kinds:
        message = f"{name} holds {report.kind} rows; the method learns from {' or '.join(kinds)} rows."
        raise Failure("wrong_kind", message, ["Choose another dataset, or a method for such rows."])


def held_out(rows: int, fraction: float, seed: int) -> frozenset[int]:
    """Which of `rows` rows (from 0) are kept for evaluation: whole rows, chosen by `seed`, never all of them."""
    if fraction <= 0 or rows < 2:
        return frozenset()
    count = min(rows - 1, max(1, round(rows * fraction)))
    return frozenset(np.random.default_rng([seed, SPLIT]).permutation(rows)[:count].tolist())


_Document = tuple[NDArray[np.int32], NDArray[np.bool_], tuple[int, ...]]  # ids, trained, tokens of its answers


@dataclass
class _Store:
    """Samples while they are collected: flat and compact."""

    ids: "array[int]" = field(default_factory=lambda: array("i"))
    trained: bytearray = field(default_factory=bytearray)
    offsets: "array[int]" = field(default_factory=lambda: array("q", [0]))
    rows: "array[int]" = field(default_factory=lambda: array("q"))
    answers: list[tuple[int, ...]] = field(default_factory=list)
    row_count: int = 0

    def add(self, row: int, ids: NDArray[np.int32], trained: NDArray[np.bool_], answers: tuple[int, ...]) -> None:
        """Append one sample."""
        self.ids.frombytes(ids.astype(np.int32).tobytes())
        self.trained += trained.tobytes()
        self.offsets.append(len(self.ids))
        self.rows.append(row)
        self.answers.append(answers)

    def samples(self) -> Samples:
        """What was collected, without a copy."""
        return Samples(
            ids=np.frombuffer(self.ids, dtype=np.int32),
            trained=np.frombuffer(self.trained, dtype=np.bool_),
            offsets=np.frombuffer(self.offsets, dtype=np.int64),
            rows=np.frombuffer(self.rows, dtype=np.int64),
            answers=np.array(self.answers, dtype=np.int64) if any(self.answers) else None,
        )


class _Work:
    """Renders row after row and counts what becomes of them."""

    def __init__(self, spec: RunSpec, renderer: Renderer, eval_rows: frozenset[int]) -> None:
        self.spec = spec
        self.renderer = renderer
        self.eval_rows = eval_rows
        self.train, self.eval = _Store(), _Store()
        self.prompts: list[SamplePrompt] = []
        self.questions: dict[int, Prompt] = {}
        self.refused: Counter[str] = Counter()  # turns, by code
        self.first_refusal: dict[str, str] = {}
        self.notes: Counter[str] = Counter()  # rows, by code
        self.first_note: dict[str, str] = {}
        self.refused_rows = self.truncated_rows = self.empty_rows = 0
        self.needed_length = 0  # tokens of the shortest prompt that fills the window

    def take(self, index: int, row: Row) -> None:
        """Render, cut and keep one row."""
        if self.spec.method.type == "grpo":
            self._take_question(index, row)
            return
        if row.kind == "preference":
            self._take_pair(index, row)
            return
        train_on = self.spec.method.train_on if isinstance(self.spec.method, SFT) else "all_turns"
        rendered = self.renderer.render(row, train_on)
        self._note(row, rendered)
        if not rendered.samples:
            self.refused_rows += 1
            return
        limit = self.spec.data.max_length
        self.truncated_rows += any(len(sample.ids) > limit for sample in rendered.samples)
        kept = [(sample.ids[:limit], sample.trained[:limit], ()) for sample in rendered.samples]
        needed = min(int(np.argmax(sample.trained)) for sample in rendered.samples)
        self._keep(index, row, [one for one in kept if one[1].any()], needed, rendered.samples[-1].level)

    def _take_pair(self, index: int, row: Row) -> None:
        """Render both answers to a prompt, cut each, and keep them as one document with the prompt once."""
        rendered = render_pair(self.renderer, row)
        self._note(row, Rendered(warnings=rendered.warnings, refusals=rendered.refusals))
        if rendered.pair is None:
            self.refused_rows += 1
            return
        pair, limit = rendered.pair, self.spec.data.max_length
        sides = (pair.chosen, pair.rejected)
        self.truncated_rows += any(len(side.ids) > limit for side in sides)
        at = pair.prompt_length
        ids = np.concatenate([pair.prompt, *(side.ids[at:limit] for side in sides)])
        trained = np.concatenate([np.zeros(at, dtype=np.bool_), *(side.trained[at:limit] for side in sides)])
        answers = tuple(len(side.ids[at:limit]) for side in sides)
        self._keep(index, row, [(ids, trained, answers)] if at < limit else [], at, pair.chosen.level)

    def _take_question(self, index: int, row: Row) -> None:
        """Keep a prompt to be answered by sampling, and what the row says about good answers."""
        messages, expected = asked_of(row)
        try:
            ids = self.renderer.prompt_ids(messages, row.tools, row.shape)
        except Failure as error:
            self._note(row, Rendered(refusals=[Refusal(error.code, error.message, len(messages))]))
            self.refused_rows += 1
            return
        fits = len(ids) <= self.spec.data.max_length
        document: _Document = (ids, np.zeros(len(ids), dtype=np.bool_), ())
        shown = [{key: value for key, value in message.items() if key != "weight"} for message in messages]
        self.questions[row.number] = Prompt(row.number, ids.tolist(), shown, expected, row.metadata)
        self._keep(index, row, [document] if fits else [], len(ids), {})

    def _keep(self, index: int, row: Row, documents: list[_Document], needed: int, level: Variables) -> None:
        """Store what is left of a row, and its prompt; `needed`: tokens before the first that is trained."""
        store = self.eval if index in self.eval_rows else self.train
        for ids, trained, answers in documents:
            store.add(row.number, ids, trained, answers)
        if documents:
            store.row_count += 1
            if store is self.eval or not self.eval_rows:
                self._prompt(row, level)
            return
        self.empty_rows += 1
        self.needed_length = min(self.needed_length or needed, needed)

    def _note(self, row: Row, rendered: Rendered) -> None:
        """Count refusals and notes; keep the first of each."""
        for refusal in rendered.refusals:
            self.refused[refusal.code] += 1
            where = f"row {row.number}, turn {refusal.turn + 1}"
            self.first_refusal.setdefault(refusal.code, f"{refusal.message} First in {where}.")
        for note in rendered.warnings:
            self.notes[note.code] += 1
            self.first_note.setdefault(note.code, f"{note.message} First in row {row.number}.")

    def _prompt(self, row: Row, level: Variables) -> None:
        """Keep the row's last trained turn as a prompt to answer, at the level it is learned at."""
        if row.kind == "text" or len(self.prompts) >= self.spec.saving.sample_prompts:
            return
        if row.kind == "preference":
            before, expected = row.prompt, str(row.chosen[0].get("content") or "")
        elif row.kind == "prompt":
            before, expected = asked_of(row)
        else:
            turns = trained_turns(row.messages, "last_turn")
            if not turns or turns[0] == 0:
                return
            before, expected = row.messages[: turns[0]], str(row.messages[turns[0]].get("content") or "")
        try:
            ids = self.renderer.prompt_ids(before, row.tools, row.shape, level=level)
        except Failure:
            return  # its samples come from other turns; there are more rows
        if len(ids) < self.spec.data.max_length:
            shown = [{key: value for key, value in message.items() if key != "weight"} for message in before]
            self.prompts.append(SamplePrompt(row.number, shown, expected, ids))

    def finish(self, report: Report) -> Prepared:
        """The result. Raises Failure when too much was lost."""
        bad = report.bad + self.refused_rows
        if bad > report.rows * self.spec.data.max_bad_fraction:
            self._too_many_bad(report, bad)
        if not self.train.row_count:
            self._nothing_to_learn()
        train, held = self.train.samples(), self.eval.samples()
        if self.questions:
            questions = Questions(self.questions, reader_for(self.renderer))
            train, held = replace(train, questions=questions), replace(held, questions=questions)
        counts = Counts(
            rows=report.rows,
            bad_rows=report.bad,
            refused_rows=self.refused_rows,
            truncated_rows=self.truncated_rows,
            nothing_to_learn_rows=self.empty_rows,
            train_rows=self.train.row_count,
            eval_rows=self.eval.row_count,
            trained_tokens=train.trained_tokens,
            total_tokens=train.total_tokens,
        )
        return Prepared(train, held, counts, self.prompts)

    def _too_many_bad(self, report: Report, bad: int) -> None:
        """Refuse the run, with the reasons."""
        allowed = self.spec.data.max_bad_fraction
        first = f" {report.summary}" if report.problems else ""
        refused = f" {next(iter(self.first_refusal.values()))}" if self.refused_rows else ""
        counts = f"{bad} of {report.rows} rows cannot be used, more than the tolerated share of {allowed:.4g}."
        message = counts + first + refused
        fixes = dict.fromkeys(problem.fix for problem in report.problems[:3] if problem.fix)
        raise Failure("too_many_bad_rows", message, [*fixes, "Or raise data.max_bad_fraction to train without them."])

    def _nothing_to_learn(self) -> None:
        """Refuse the run: no trained token is left; say what really took them."""
        if self.empty_rows:
            limit = self.spec.data.max_length
            message = (
                f"Nothing is left to learn: in {self.empty_rows} rows the prompt alone fills the maximum length of "
                f"{limit} tokens, so the answer is cut away."
            )
            shortest = f"the shortest of these prompts has {self.needed_length} tokens"
            advice = [f"Raise data.max_length: {shortest}, and the answer needs room too.", "Or shorten the prompts."]
            raise Failure("nothing_to_learn", message, advice)
        reasons = " ".join(self.first_refusal.values())
        message = f"Nothing is left to learn: the chat template cannot render any of the rows. {reasons}"
        raise Failure("nothing_to_learn", message.strip(), ["Choose a model whose chat template fits the rows."])

    def warnings(self, report: Report) -> list[Warned]:
        """What a person should know about the data before training starts."""
        said: list[tuple[str, str]] = []
        if report.bad:
            said.append(("bad_rows", report.summary))
        said += [
            (code, f"Not trained, {count} turns: {self.first_refusal[code]}") for code, count in self.refused.items()
        ]
        said += [(code, f"{count} rows: {self.first_note[code]}") for code, count in self.notes.items()]
        limit = self.spec.data.max_length
        if self.truncated_rows:
            message = f"{self.truncated_rows} rows are longer than {limit} tokens and were cut at the end."
            said.append(("truncated_rows", message))
        if self.empty_rows:
            message = f"{self.empty_rows} rows were left out: their prompt alone fills {limit} tokens."
            said.append(("nothing_to_learn_rows", message))
        return [Warned(code=code, message=message) for code, message in said]
