"""One preview: the first rows as tokens at once, then the file in numbers, both from the warm engine process."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from studio import previews
from studio.db.tables import Dataset, Model, Preview
from studio.errors import StudioError
from studio.labels import storable, storable_json
from worker.bench import Bench

log = logging.getLogger(__name__)

ROWS = 20
MOST_TOKENS = 6_000  # of all rows together: a page has to hold them
HEAD, TAIL = 1_000, 500  # tokens of a long sample that are kept
RENDER_SECONDS = 10.0  # a longer file is counted as far as this goes
SHOW_SECONDS, CHECK_SECONDS = 90.0, 300.0  # then the process is ended


def busy_name(dataset_id: str, model_id: str, level: str) -> str:
    """The key under which a preview is worked on."""
    return f"preview {dataset_id} {model_id} {level}"


def once(bench: Bench, dataset_id: str, model_id: str, level: str) -> None:
    """Make the preview unless this process is at it already."""
    with bench.only_once(busy_name(dataset_id, model_id, level)) as mine:
        if mine:
            make(bench, dataset_id, model_id, level)


def warm(bench: Bench, folder: str | None) -> None:
    """Start the process, and let it open the model in this folder."""
    try:
        bench.inspector.ask({"verb": "open", "model": folder or str(bench.studio.storage.models)}, SHOW_SECONDS)
    except StudioError as error:
        log.info("the data process is started anew when it is needed: %s", error.message)


def make(bench: Bench, dataset_id: str, model_id: str, level: str) -> None:
    """A waiting preview becomes `ready`, or `failed` with the reason."""
    with bench.studio.session() as session:
        preview = previews.get(session, dataset_id, model_id, level)
        dataset, model = session.get(Dataset, dataset_id), session.get(Model, model_id)
        if preview is None or preview.status != "waiting" or dataset is None or model is None:
            return
        if not previews.possible(dataset, model):
            preview.status, preview.error = "failed", "The dataset or the model cannot be used any more."
            return
        file = str(bench.studio.storage.dataset_file(dataset).absolute())
        common = {"file": file, "model": model.path, "level": level}
        kind = dataset.kind
    try:
        shown = bench.inspector.ask({**common, "verb": "show", "count": ROWS, "kind": kind}, SHOW_SECONDS)
        _store(bench, (dataset_id, model_id, level), rows=storable_json(compact(shown["rows"])))
        survey = bench.inspector.ask({**common, "verb": "check", "seconds": RENDER_SECONDS}, CHECK_SECONDS)
        _store(bench, (dataset_id, model_id, level), status="ready", survey=storable_json(survey))
    except StudioError as error:
        if not bench.leaving.is_set():  # else it is made at the next start
            said = storable(" ".join((error.message, error.advice)).strip())
            _store(bench, (dataset_id, model_id, level), status="failed", error=said)


def _store(bench: Bench, key: tuple[str, str, str], **values: Any) -> None:
    with bench.studio.session() as session:
        preview = session.get(Preview, key)
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
        samples = [{"turn": one["turn"], "spans": list(_spans(one["tokens"]))} for one in row["samples"]]
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
