"""What a model would learn from a dataset, before anything runs: one row as tokens, the whole file in numbers."""

import json
import math
import sys
import time
from array import array
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.crew import helpers_for, in_order
from engine.cuts import Cuts, lengths, suggested_length
from engine.failure import Failure
from engine.prompts import as_prompt
from engine.render.levels import Level
from engine.render.pair import render_pair
from engine.render.renderer import Renderer
from engine.render.sample import Rendered, Sample, without_spans
from engine.render.settings import open_renderer, settings_of
from engine.render.template import Variables
from engine.rows import AS_SEEN, Declared, Kind, Problem, Report, Row, check, sniff, usable
from engine.spec import RunSpec

MOST_PROBLEMS = 200
SIDES = ("chosen", "rejected")
MEND = {
    "assistant_first": "Put the question that it answers before it.",
    "answer_not_rendered": "Move the text into a turn of its own.",
    "cue_not_in_rows": "Choose a model whose chat template can write such a turn.",
    "answer_not_one_sample": "Let both answers be one assistant turn, with what comes before it in the prompt.",
    "level_conflict": "Choose another level, or “as in the data”.",
    "level_refused": "Change what the row sets, or remove it.",
    "no_stop_token": "Check the model's generation config: it must name the token that ends a turn.",
    "reasoning_not_rendered": "Remove the reasoning, or choose a model that reasons.",
    "template_refuses": "Change the row to what the template accepts, or choose another model.",
    "tool_call_not_rendered": "Choose a model that calls tools, or make one call per turn.",
}


def rendered_as(renderer: Renderer, row: Row) -> tuple[Rendered, int]:
    """A row of any kind, and how many tokens its samples share: the prompt before the two answers of a preference."""
    if row.kind != "preference":
        return renderer.render(row), 0
    found = render_pair(renderer, row)
    samples = [found.pair.chosen, found.pair.rejected] if found.pair else []
    return Rendered(samples, found.warnings, found.refusals), found.pair.prompt_length if found.pair else 0


def show(renderer: Renderer, row: Row) -> dict[str, Any]:
    """One row as its samples' tokens, with warnings and refusals.

    Of a preference row the samples are its answers, each after the same prompt; a rated row says of its answer that it
    is good or bad; of a prompt row nothing is trained, and `expected` is its reference answer.
    Raises Failure for rows that the model has no form for.
    """
    rendered, shared = rendered_as(renderer, row)
    alone = "" if row.label is None else "good" if row.label else "bad"
    sides = SIDES if row.kind == "preference" else (alone,) * len(rendered.samples)
    return {
        "row": row.number,
        "kind": row.kind,
        "level": _level_name({**renderer.level, **row.chat_template_kwargs}),
        "samples": [
            {**_shown(renderer, sample), "side": side, "shared": shared}
            for sample, side in zip(rendered.samples, sides, strict=False)
        ],
        "expected": row.answer,
        "warnings": [{"code": note.code, "message": note.message} for note in rendered.warnings],
        "refusals": [
            {
                "turn": one.turn,
                "code": one.code,
                "message": one.message,
                "fix": MEND.get(one.code, ""),
                "prompt": one.prompt,
                "rendered": one.rendered,
            }
            for one in rendered.refusals
        ],
    }


def _level_name(told: Variables) -> str:
    return Level(told).name if told else ""


def _shown(renderer: Renderer, sample: Sample) -> dict[str, Any]:
    """A sample's tokens. `turn` of the sample is the first assistant turn that it learns."""
    texts = renderer.tokenizer.batch_decode([[token] for token in sample.ids.tolist()])
    tokens = [
        {
            "id": int(sample.ids[at]),
            "text": texts[at],
            "role": span.role,
            "turn": span.turn,
            "kind": span.kind,
            "trained": bool(sample.trained[at]),
        }
        for span in sample.spans
        for at in range(span.start, span.end)
    ]
    turn = next((token["turn"] for token in tokens if token["trained"]), 0)
    return {"turn": turn, "level": dict(sample.level), "tokens": tokens}


def row_number(path: Path, number: int, declared: Declared = AS_SEEN) -> Row:
    """Row `number` (from 1) of a dataset file. Raises Failure when there is none or it cannot be used."""
    format = sniff(path, path.name)
    report = check(path, format, preview=0, declared=declared)
    for row in usable(path, format, report.kind, declared):
        if row.number == number:
            return row
    found = [problem.message for problem in report.problems if problem.row == number]
    why = found[0] if found else f"The file has {report.rows} rows."
    raise Failure("no_such_row", f"Row {number} of {path.name} cannot be shown. {why}")


@dataclass
class _Count:
    """What is counted while the rows are rendered. Lengths are those of samples."""

    rows: int = 0
    cuts: Cuts = field(default_factory=Cuts)
    lengths: "array[int]" = field(default_factory=lambda: array("q"))
    refused: int = 0  # rows
    levels: Counter[str] = field(default_factory=Counter)  # samples
    notes: Counter[str] = field(default_factory=Counter)  # rows
    first_note: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)  # the first ones
    problem_counts: Counter[str] = field(default_factory=Counter)  # turns

    def take(self, row: Row, rendered: Rendered, shared: int) -> None:
        """Count one row; `shared`: tokens of the prompt that its samples have in common."""
        samples = rendered.samples
        self.rows += 1
        self.cuts.take(samples, shared)
        found = [len(sample.ids) for sample in samples]
        self.lengths.extend([max(found)] if shared and found else found)
        self.levels.update(Level(sample.level).name for sample in samples)
        self.refused += not samples
        for note in rendered.warnings:
            self.notes[note.code] += 1
            message = f"{note.message} First in row {row.number}."
            self.first_note.setdefault(note.code, {"message": message, "row": row.number})
        self.problem_counts.update(one.code for one in rendered.refusals)
        for one in rendered.refusals[: MOST_PROBLEMS - len(self.problems)]:
            message = f"Turn {one.turn + 1}: {one.message}"
            fix = MEND.get(one.code, "")
            self.problems.append(Problem(row=row.number, line=row.line, code=one.code, message=message, fix=fix))

    def remarks(self) -> list[dict[str, Any]]:
        """What rendering remarked, once for each code: of how many rows, and the first."""
        return [{"code": code, "rows": rows, **self.first_note[code]} for code, rows in self.notes.items()]


def survey_file(  # noqa: PLR0913 - keywords, each with a default
    path: Path,
    renderer: Renderer | None,
    *,
    max_length: int | None = None,
    drop: bool = False,
    seconds: float | None = None,
    asks: bool = False,
    declared: Declared = AS_SEEN,
    said: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """The whole file in numbers, as the model would learn it; without a renderer only what its rows are.

    `max_length`: tokens that are kept of each sample; without it what a run would choose: the length that keeps 99 of
    100 samples whole. `drop`: longer rows are left out. `seconds`: how long to render; the numbers are then of the
    first `rendered` rows. `asks`: answers are sampled, so of a chat only the prompt is read. `said` gets rows done and
    in all.
    Raises Failure for a file that cannot be read, or a template that does not end.
    """
    format = sniff(path, path.name)
    report = check(path, format, preview=0, declared=declared)
    found = report.model_dump(include={"kind", "rows", "usable", "problem_counts", "warnings"})
    found["problems"] = _listed(report.problems)
    if renderer is None or report.kind is None:
        return found
    count, until = _Count(), time.monotonic() + (math.inf if seconds is None else seconds)
    rows, helpers = usable(path, format, report.kind, declared), helpers_for(report.usable)
    if asks and report.kind == "chat":
        rows, found["kind"] = map(as_prompt, rows), "prompt"
    with closing(in_order(lambda row: _counted(renderer, row), rows, helpers)) as made:
        for done, (row, (rendered, shared)) in enumerate(made, start=1):
            count.take(row, rendered, shared)
            if done % 100 == 0:
                said(done, report.usable)
            if time.monotonic() > until:
                break
    return found | _numbers(count, report, renderer) | _kept(count, found["kind"], max_length, drop=drop)


def _counted(renderer: Renderer, row: Row) -> tuple[Rendered, int]:
    """A row as far as it is counted; may be done in another process."""
    rendered, shared = rendered_as(renderer, row)
    return without_spans(rendered), shared


def _listed(problems: list[Problem]) -> list[dict[str, Any]]:
    """The first problems, in the order of the rows."""
    return [one.model_dump() for one in sorted(problems, key=lambda one: one.row)[:MOST_PROBLEMS]]


def _numbers(count: _Count, report: Report, renderer: Renderer) -> dict[str, Any]:
    """What rendering adds to the report."""
    levels, bridge = renderer.levels, renderer.offered_bridge
    return {
        "usable": report.usable - count.refused,
        "problems": _listed([*report.problems, *count.problems]),
        "problem_counts": {**report.problem_counts, **count.problem_counts},
        "rendered": count.rows,
        "samples": len(count.lengths),
        "cuts": count.cuts.told(),
        "lengths": lengths(count.lengths),
        "warnings": [*(remark.model_dump() for remark in report.warnings), *count.remarks()],
        "levels": [_described(level, count.levels) for level in levels.levels],
        "bridge": {"opens": bridge.opens, "closes": bridge.closes} if bridge else None,
        "history_switches": [_described(level, count.levels) for level in levels.history],
    }


def _kept(count: _Count, kind: Kind, max_length: int | None, *, drop: bool) -> dict[str, Any]:
    """What the maximum length leaves of the rows."""
    limit = max_length or (suggested_length(count.lengths) if count.lengths else 0)
    kept = count.cuts.kept(limit, drop=drop)
    return {
        "max_length": limit,
        "trained_tokens": kept.trained,
        "total_tokens": kept.total,
        "truncated": kept.truncated,
        "dropped": kept.dropped,
        "nothing_to_learn": 0 if kind == "prompt" else kept.empty,
    }


def _described(level: Level, samples: Counter[str]) -> dict[str, Any]:
    """A level for the page: what it is told, what that changes, and how many samples have it."""
    return {
        "name": level.name,
        "variables": dict(level.variables),
        "alike": [Level(one).name for one in level.alike],
        "prompt_text": level.prompt_text[:400],
        "cue": level.cue,
        "thinks": level.thinks,
        "samples": samples[level.name],
    }


def show_main(path: Path, model: Path, number: int, spec: RunSpec) -> int:
    """Print one row as JSON, read as by a run with these settings; exit status 1 when nothing of it is learned."""
    try:
        row = row_number(path, number, spec.data.declared)
        found = show(open_renderer(model, settings_of(spec)), as_prompt(row) if asks(spec) else row)
    except Failure as failure:
        return _failed(failure)
    _print(found)
    return 0 if found["samples"] else 1


def check_main(path: Path, model: Path | None, spec: RunSpec) -> int:
    """Print the whole file in numbers as JSON; exit status 1 when a run with these settings could not use it."""
    try:
        renderer = open_renderer(model, settings_of(spec)) if model else None
        drop, declared = spec.data.truncation_mode == "drop", spec.data.declared
        most = spec.data.max_length
        found = survey_file(path, renderer, max_length=most, drop=drop, asks=asks(spec), declared=declared)
    except Failure as failure:
        return _failed(failure)
    _print(found)
    bad = found["rows"] - found["usable"]
    return 0 if found["usable"] and bad <= found["rows"] * spec.data.max_bad_fraction else 1


def asks(spec: RunSpec) -> bool:
    """Whether the method samples the answers itself."""
    return "prompt" in spec.method.kinds


def _failed(failure: Failure) -> int:
    _print({"error": {"code": failure.code, "message": failure.message, "advice": failure.advice}})
    return 1


def _print(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
