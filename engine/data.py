"""From a dataset file to token samples ready to train on: reading, splitting, rendering, cutting, counting."""

import datetime
import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.batches import Samples
from engine.crew import helpers_for, in_order
from engine.cuts import suggested_length
from engine.documents import Cutter, Document, Store, document_of, documents_of
from engine.events import Event, Phase, Warned
from engine.failure import Failure
from engine.mismatched import mismatched
from engine.prompts import Prompt, Questions, Reader, asked_of, question_of
from engine.reading import reader_for
from engine.render.levels import Level
from engine.render.pair import RenderedPair, render_pair
from engine.render.renderer import Renderer, trained_turns
from engine.render.sample import Rendered
from engine.render.serving import Serving
from engine.render.settings import renderer_for, settings_of
from engine.render.template import Variables
from engine.rows import Report, Row, check, sniff, usable
from engine.spec import GRPO, KTO, MOST_LENGTH, RunSpec

SPLIT = 0x5EED  # keeps the split's random numbers apart from those of the row order
SAY_EVERY = 1.0  # seconds
MOST_UNEVEN = 2.0  # of what all good answers weigh to what all bad ones do; Ethayarajh et al. 2024 advise 1 to 4/3


@dataclass(frozen=True)
class Counts:
    """What became of the rows. Tokens are those of the training samples, per epoch."""

    rows: int
    bad_rows: int  # could not be read, or are of another kind
    refused_rows: int  # the chat template cannot render any trained turn of them
    truncated_rows: int  # cut at the maximum length
    dropped_rows: int  # longer than that, and left out
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
    max_length: int  # tokens: the spec's, or the one that was chosen from the rows
    serving: Serving  # what the chat template was told


def prepare(
    spec: RunSpec,
    tokenizer: Any,
    stop_ids: Collection[int],
    say: Callable[[Event], None],
    *,
    frozen_date: datetime.date | None = None,
    context: int | None = None,
) -> Prepared:
    """Read, split, render and cut the rows of `spec.data`.

    `stop_ids`: `generation_config.eos_token_id` (one or several) plus `tokenizer.eos_token_id`; at least one.
    `frozen_date`: what templates that ask for the date are told; give the day of the run's start, so that a resumed
    run sees the same tokens (today when None). `context`: tokens that the model was made for, the most that a maximum
    length chosen from the rows may be. `say` gets `Phase(phase="loading_data", done, total)` and `Warned`.
    Raises Failure when the file is gone or changed, when too many rows are bad, when the method cannot use rows of this
    kind, or when nothing is left to learn.
    """
    path = Path(spec.data.dataset)
    say(Phase(phase="loading_data", detail="Checking rows"))
    format = sniff(path, path.name)
    same_file(path, spec.data.sha256)
    declared = spec.data.declared
    report = check(path, format, preview=0, declared=declared)
    usable_kind(report, path.name, spec.method.kinds)
    work = _Work(
        spec,
        renderer_for(tokenizer, stop_ids, settings_of(spec), date=frozen_date),
        held_out(report.usable, spec.data.eval_fraction, spec.training.seed),
        context,
    )
    said = time.monotonic()
    rows, helpers = usable(path, format, report.kind, declared), helpers_for(report.usable)
    with closing(in_order(work.render, rows, helpers)) as made:
        for index, (row, rendered) in enumerate(made):
            work.take(index, row, rendered)
            if time.monotonic() - said >= SAY_EVERY:
                said = time.monotonic()
                say(Phase(phase="loading_data", detail="Rendering rows", done=index + 1, total=report.usable))
    prepared = work.finish(report)
    say(Phase(phase="loading_data", detail="Rendering rows", done=report.usable, total=report.usable))
    for warning in work.warnings(report):
        say(warning)
    return prepared


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


class _Work:
    """Renders rows, and counts what becomes of one after the other."""

    def __init__(self, spec: RunSpec, renderer: Renderer, eval_rows: frozenset[int], context: int | None) -> None:
        self.spec = spec
        self.renderer = renderer
        self.eval_rows = eval_rows
        self.context = min(context or MOST_LENGTH, MOST_LENGTH)
        drop = spec.data.truncation_mode == "drop"
        # until the length is chosen, one token more than it can be tells that a row is longer
        self.cutter = Cutter(spec.data.max_length, drop) if spec.data.max_length else Cutter(self.context + 1)
        self.train, self.eval = Store(), Store()
        self.prompts: list[SamplePrompt] = []
        self.questions: dict[int, Prompt] = {}
        self.refused: Counter[str] = Counter()  # turns, by code
        self.first_refusal: dict[str, str] = {}
        self.notes: Counter[str] = Counter()  # rows, by code
        self.first_note: dict[str, str] = {}
        self.refused_rows = 0
        self.levels: set[str] = set()  # of the rows that are kept

    def render(self, row: Row) -> Rendered | RenderedPair | Prompt:
        """One row as tokens; may be done in another process."""
        if self.spec.method.type == "grpo":
            return question_of(self.renderer, row)
        if row.kind == "preference":
            return render_pair(self.renderer, row)
        return self.renderer.tokens(row)

    def take(self, index: int, row: Row, rendered: Rendered | RenderedPair | Prompt) -> None:
        """Cut and keep one row."""
        store = self.eval if index in self.eval_rows else self.train
        if isinstance(rendered, Prompt):
            self._take_question(store, rendered)
            return
        self._note(row, rendered)
        documents, level = _documents(rendered, row.label)
        if not documents:
            self.refused_rows += 1
            return
        kept = self.cutter.take(documents)
        store.add(row.number, kept)
        if kept:
            self.levels.add(Level(level).key)
        if kept and (store is self.eval or not self.eval_rows):
            self._prompt(row, level)

    def _take_question(self, store: Store, prompt: Prompt) -> None:
        """Keep a prompt to be answered by sampling, whole or not at all."""
        length = len(prompt.ids)
        if length > self.cutter.limit:
            self.cutter.leave_out(length)
            return
        self.questions[prompt.row] = prompt
        store.add(prompt.row, [Document(np.asarray(prompt.ids, dtype=np.int32), np.zeros(length, dtype=np.bool_))])

    def _note(self, row: Row, rendered: Rendered | RenderedPair) -> None:
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
            expected = "" if row.label is False else expected
        try:
            ids = self.renderer.prompt_ids(before, row.tools, row.shape, level=level)
        except Failure:
            return  # its samples come from other turns; there are more rows
        if len(ids) < self.cutter.limit:
            shown = [{key: value for key, value in message.items() if key != "weight"} for message in before]
            self.prompts.append(SamplePrompt(row.number, shown, expected, ids))

    def finish(self, report: Report) -> Prepared:
        """The result. Raises Failure when too much was lost."""
        bad = report.bad + self.refused_rows
        if bad > report.rows * self.spec.data.max_bad_fraction:
            self._too_many_bad(report, bad)
        if self.spec.data.max_length is None:
            self._choose_length()
        if not self.train.row_count:
            self._nothing_to_learn()
        train, held, cutter = self.train.samples(), self.eval.samples(), self.cutter
        if self.questions:
            questions = Questions(self.questions, self._reader())
            train, held = replace(train, questions=questions), replace(held, questions=questions)
        if self.spec.method.type == "kto":
            train, held = (replace(each, others=mismatched(each, cutter.limit)) for each in (train, held))
        counts = Counts(
            rows=report.rows,
            bad_rows=report.bad,
            refused_rows=self.refused_rows,
            truncated_rows=cutter.truncated,
            dropped_rows=cutter.dropped,
            nothing_to_learn_rows=cutter.empty,
            train_rows=self.train.row_count,
            eval_rows=self.eval.row_count,
            trained_tokens=train.trained_tokens,
            total_tokens=train.total_tokens,
        )
        prompts = [prompt for prompt in self.prompts if len(prompt.ids) < cutter.limit]
        return Prepared(train, held, counts, prompts, cutter.limit, Serving(self._level(), self.renderer.frozen_date))

    def _reader(self) -> Reader:
        """What tells reasoning from answers. Raises Failure where reasoning is to be limited and there is none."""
        reader, method = reader_for(self.renderer), self.spec.method
        if isinstance(method, GRPO) and method.thinking_budget and not reader.closes:
            message = "There is no reasoning to limit: the model's chat template has none, at the level of this run."
            raise Failure("no_reasoning", message, ["Set method.thinking_budget to 0.", "Or choose another level."])
        return reader

    def _imbalance(self) -> str:
        """That one kind of rated answers far outweighs the other, and what would set that right; '' when none does."""
        method, good, bad = self.spec.method, self.train.labels.count(True), self.train.labels.count(False)
        if not isinstance(method, KTO) or 1 / MOST_UNEVEN <= uneven(method, good, bad) <= MOST_UNEVEN:
            return ""
        name, weight = (
            ("undesirable_weight", good / max(bad, 1)) if good > bad else ("desirable_weight", bad / max(good, 1))
        )
        return f"{good} answers are marked as good and {bad} as bad; method.{name} {weight:.2g} would even that out."

    def _level(self) -> Variables:
        """The level of all rows alike, else the run's own."""
        return json.loads(next(iter(self.levels))) if len(self.levels) == 1 else self.renderer.level

    def _choose_length(self) -> None:
        """Cut everything again at the length that keeps 99 of 100 documents whole, within the model's context."""
        found = np.concatenate([self.train.lengths(), self.eval.lengths()])
        if not len(found):
            return
        if self.questions:  # they are never cut
            self.cutter.limit = int(found.max())
            return
        limit, drop = min(suggested_length(found), self.context), self.spec.data.truncation_mode == "drop"
        self.cutter = Cutter(limit, drop, empty=self.cutter.empty)
        self.train, self.eval = self.train.cut(self.cutter), self.eval.cut(self.cutter)

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
        limit = self.cutter.limit
        if self.cutter.empty:
            message = (
                f"Nothing is left to learn: in {self.cutter.empty} rows the prompt alone fills the maximum length of "
                f"{limit} tokens, so the answer is cut away."
            )
            shortest = f"the shortest of these prompts has {self.cutter.needed} tokens"
            advice = [f"Raise data.max_length: {shortest}, and the answer needs room too.", "Or shorten the prompts."]
            raise Failure("nothing_to_learn", message, advice)
        if self.cutter.dropped:
            message = f"Nothing is left to learn: all rows that could be are longer than {limit} tokens, and left out."
            raise Failure("nothing_to_learn", message, ["Raise data.max_length, or cut longer rows instead."])
        reasons = " ".join(self.first_refusal.values())
        message = f"Nothing is left to learn: the chat template cannot render any of the rows. {reasons}"
        raise Failure("nothing_to_learn", message.strip(), ["Choose a model whose chat template fits the rows."])

    def warnings(self, report: Report) -> list[Warned]:
        """What a person should know about the data before training starts."""
        said: list[tuple[str, str]] = []
        if report.bad:
            said.append(("bad_rows", report.summary))
        said += [(remark.code, f"{remark.rows} rows: {remark.message}") for remark in report.warnings]
        said += [
            (code, f"Not trained, {count} turns: {self.first_refusal[code]}") for code, count in self.refused.items()
        ]
        said += [(code, f"{count} rows: {self.first_note[code]}") for code, count in self.notes.items()]
        said += [("unbalanced_labels", found)] if (found := self._imbalance()) else []
        cutter = self.cutter
        if cutter.truncated:
            message = f"{cutter.truncated} rows are longer than {cutter.limit} tokens and were cut at the end."
            said.append(("truncated_rows", message))
        if cutter.dropped:
            message = f"{cutter.dropped} rows are longer than {cutter.limit} tokens and were left out."
            said.append(("dropped_rows", message))
        if cutter.empty:
            message = f"{cutter.empty} rows were left out: their prompt alone fills {cutter.limit} tokens."
            said.append(("nothing_to_learn_rows", message))
        return [Warned(code=code, message=message) for code, message in said]


def uneven(method: KTO, good: int, bad: int) -> float:
    """How much more all good answers weigh than all bad ones."""
    return method.desirable_weight * good / max(method.undesirable_weight * bad, 1e-9)


def _documents(rendered: Rendered | RenderedPair, label: bool | None) -> tuple[list[Document], Variables]:
    """What a row becomes, and the level that it is learned at; nothing when it is refused."""
    if isinstance(rendered, RenderedPair):
        return ([document_of(rendered.pair)], rendered.pair.chosen.level) if rendered.pair else ([], {})
    return documents_of(rendered.samples, label), rendered.samples[-1].level if rendered.samples else {}
