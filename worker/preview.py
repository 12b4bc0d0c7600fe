"""One preview: some rows as tokens at once, then the file in numbers, both from the warm engine process."""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from engine.rows import AS_SEEN, Declared, RawRow, Row, normalise, read
from engine.rows.check import other_kind, shown
from studio import previews
from studio.db.tables import Dataset, Model
from studio.errors import StudioError
from studio.labels import storable, storable_json
from studio.previews import ROWS, Key, Way
from worker.bench import Bench

log = logging.getLogger(__name__)

MOST_TOKENS = 6_000  # of all rows together: a page has to hold them
HEAD, TAIL = 1_000, 500  # tokens of a long sample that are kept
RENDER_SECONDS = 10.0  # a longer file is counted as far as this goes
SHOW_SECONDS, CHECK_SECONDS = 90.0, 300.0  # then the process is ended


def once(bench: Bench, key: Key) -> None:
    """Make the preview unless this process is at it already."""
    with bench.only_once(key.name) as mine:
        if mine:
            make(bench, key)


def warm(bench: Bench, folder: str | None) -> None:
    """Start the process, and let it open the model in this folder."""
    try:
        bench.inspector.ask({"verb": "open", "model": folder or str(bench.studio.storage.models)}, SHOW_SECONDS)
    except StudioError as error:
        log.info("the data process is started anew when it is needed: %s", error.message)


def make(bench: Bench, key: Key) -> None:
    """A waiting preview becomes `ready`, or `failed` with the reason."""
    with bench.studio.session() as session:
        preview = previews.get(session, key)
        dataset, model = session.get(Dataset, key.dataset_id), session.get(Model, key.model_id)
        if preview is None or preview.status != "waiting" or dataset is None or model is None:
            return
        if not previews.possible(dataset, model, Way.model_validate_json(key.way)):
            preview.status, preview.error = "failed", "The dataset or the model cannot be used any more."
            return
        way = Way.model_validate_json(key.way)
        page = Page(bench.studio.storage.dataset_file(dataset).absolute(), dataset, key.row, way.declared)
        common = {"file": str(page.file), "model": model.path, **json.loads(key.way)}
    try:
        asked = {"verb": "show", "row": page.first, "count": ROWS, "kind": page.kind}
        found = bench.inspector.ask({**common, **asked}, SHOW_SECONDS)["rows"]
        _store(bench, key, rows=storable_json(page.filled([row for row in found if row["row"] <= page.last])))
        if key.row > 1:
            _store(bench, key, status="ready")
            return
        survey = bench.inspector.ask({**common, "verb": "check", "seconds": RENDER_SECONDS}, CHECK_SECONDS)
        _store(bench, key, status="ready", survey=storable_json(survey))
    except StudioError as error:
        if not bench.leaving.is_set():  # else it is made at the next start
            said = storable(" ".join((error.message, error.advice)).strip())
            _store(bench, key, status="failed", error=said)


class Page:
    """Rows of a dataset file from one on, those that are set aside included."""

    def __init__(self, file: Path, dataset: Dataset, first: int, declared: Declared = AS_SEEN) -> None:
        self.file, self.format, self.declared = file, dataset.format, declared
        self.kind = (declared.kind if declared else dataset.kind) or None  # None: found by the engine
        self.first, self.last = first, min(first + ROWS - 1, dataset.rows)

    def filled(self, found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """What the engine showed, compact, and between it the rows that are not learned from, as the file has them."""
        rows = compact(found)
        last = self.last if len(rows) == len(found) else rows[-1]["row"]
        lacking = set(range(self.first, last + 1)) - {row["row"] for row in rows}
        if lacking:
            between = takewhile(lambda raw: raw.number <= last, read(self.file, self.format))  # type: ignore[arg-type]
            rows += [self.aside(raw) for raw in between if raw.number in lacking]
        return sorted(rows, key=lambda row: int(row["row"]))

    def aside(self, raw: RawRow) -> dict[str, Any]:
        """A row that is not learned from: its columns, and its problems."""
        known = [] if raw.value is None else normalise(raw.value, self.declared)
        if isinstance(known, Row):
            known = [other_kind(self.kind, known.kind)] if self.kind not in (None, known.kind) else []  # type: ignore[arg-type]
        problems = [raw.problem] if raw.problem else known
        told = [{"message": one.message, "fix": one.fix} for one in problems]
        return {"row": raw.number, "samples": [], "raw": shown(raw.value or {}), "problems": told}


def _store(bench: Bench, key: Key, **values: Any) -> None:
    with bench.studio.session() as session:
        preview = previews.get(session, key)
        if preview is not None:
            for name, value in values.items():
                setattr(preview, name, value)


def compact(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Shown rows for the database: tokens of one span together, long samples without their middle.

    A span is `{"kind", "role", "turn", "trained", "ids", "texts"}`, or `{"left_out": tokens}` for what is not kept.
    """
    kept: list[dict[str, Any]] = []
    left = MOST_TOKENS
    for row in rows:
        samples = [
            {"turn": one["turn"], "side": one["side"], "spans": list(_spans(one["tokens"]))} for one in row["samples"]
        ]
        left -= sum(len(span.get("ids", ())) for sample in samples for span in sample["spans"])
        if kept and left < 0:
            break
        kept.append({**row, "samples": samples})
    return kept


def _spans(tokens: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    gap = range(HEAD, len(tokens) - TAIL)
    span: dict[str, Any] | None = None
    for at, token in enumerate(tokens):
        if at in gap:
            if at == HEAD:
                if span:
                    yield span
                yield {"left_out": len(gap)}
                span = None
            continue
        about = {name: token[name] for name in ("kind", "role", "turn", "trained")}
        if span is None or any(span[name] != value for name, value in about.items()):
            if span:
                yield span
            span = {**about, "ids": [], "texts": []}
        span["ids"].append(token["id"])
        span["texts"].append(token["text"])
    if span:
        yield span
