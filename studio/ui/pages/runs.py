"""Runs: everything that was started, to find, open and compare."""

from collections.abc import Sequence
from typing import Any

import gradio as gr
from sqlalchemy import select
from sqlalchemy.orm import Session

from studio import curves, runs
from studio.context import Studio
from studio.db.tables import Dataset, Model, Run
from studio.ui import chrome
from studio.ui.chrome import QUIET, handler
from studio.ui.html import el
from studio.ui.texts import label, text
from studio.ui.views import runs as views

POLL_SECONDS = 3.0
MOST = 200
SPARK = 40  # points of a sparkline
SPARKED = 30  # newest runs that get one
ANY = "any"


class Runs:
    """The page."""

    def __init__(self, demo: gr.Blocks, studio: Studio) -> None:
        self.studio = studio
        self.sparks = Sparks()
        chrome.top(demo, studio, "runs")
        chrome.sheet(
            chrome.heading(
                text("runs.title"), text("runs.lead"), el("a", text("run.new"), cls="action first", href="/")
            )
        )
        with gr.Row(elem_classes=["filters"], visible=False) as self.filters:
            words = gr.Textbox(
                label=label("runs.filter"),
                placeholder=label("runs.filter_hint"),
                max_lines=1,
                scale=3,
                min_width=200,
                elem_id="filter",
            )
            choices = [
                (text("runs.any"), ANY),
                *((text(f"status.{one}"), one) for one in runs.STATUSES if one != "draft"),
            ]
            status = gr.Dropdown(
                choices=choices, value=ANY, label=label("runs.status"), scale=1, min_width=160, elem_id="status"
            )
            chrome.sheet(views.bar(), classes=("compare-bar",))
        table = chrome.sheet(
            el("p", text("loading"), cls="empty plain"), js_on_load="window.atelierTable(element, props, watch)"
        )
        timer = gr.Timer(POLL_SECONDS)
        demo.load(handler(self.show), [words, status, table], [table, self.filters], **QUIET)
        timer.tick(handler(self.show), [words, status, table], [table, self.filters], **QUIET)
        words.input(
            handler(self.show), [words, status, table], [table, self.filters], trigger_mode="always_last", **QUIET
        )
        status.input(handler(self.show), [words, status, table], [table, self.filters], **QUIET)

    def show(self, words: str | None, status: str, shown: str) -> Any:
        """The table, when it is not what the tab already shows."""
        words, wanted = words or "", None if status == ANY else status
        with self.studio.session() as session:
            names = named(session)
            found = [run for run in runs.list_runs(session, status=wanted, limit=MOST) if matches(run, names, words)]
            filtered = bool(words.strip() or wanted)
            any_ = bool(found) or filtered
            made = str(
                views.table(found, names, self.sparks.of(session, found[:SPARKED]))
                if found
                else views.nothing(filtered)
            )
        return (gr.skip() if made == shown else made), gr.update(visible=any_)


def named(session: Session) -> dict[str, str]:
    """Names of all datasets and models by id."""
    datasets = {row.id: row.name for row in session.execute(select(Dataset.id, Dataset.name))}
    return datasets | {row.id: row.name for row in session.execute(select(Model.id, Model.name))}


def matches(run: Run, names: dict[str, str], words: str) -> bool:
    """Every word is found in the run's name or id, its model or its dataset."""
    where = " ".join(
        (run.name, run.id, run.model_id, names.get(run.model_id, ""), names.get(run.dataset_id, ""))
    ).lower()
    return all(word in where for word in words.lower().split())


class Sparks:
    """Loss of each run in a few points, kept until the run has said more."""

    def __init__(self) -> None:
        self.drawn: dict[str, tuple[int, list[float | None]]] = {}

    def of(self, session: Session, found: Sequence[Run]) -> dict[str, list[float | None]]:
        """Points by run; only those of runs with news are read."""
        fresh = {run.id: self.drawn.get(run.id) or (-1, []) for run in found}
        for run in found:
            if fresh[run.id][0] != run.events_offset:
                step, loss = curves.read(session, run.id).line("loss")
                fresh[run.id] = run.events_offset, curves.numbers(loss[curves.downsample(step, loss, SPARK)])
        self.drawn = fresh
        return {run_id: points for run_id, (_, points) in fresh.items()}
