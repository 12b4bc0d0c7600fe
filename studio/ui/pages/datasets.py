"""Datasets: drop a file, fetch one from the Hub, have tasks made, look into one (?id=)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gradio as gr
from sqlalchemy.orm import Session

from studio import datasets, queue
from studio.context import Studio
from studio.errors import NotFound, StudioError
from studio.ui import chrome
from studio.ui.chrome import QUIET, handler
from studio.ui.html import el
from studio.ui.pages.dataset import OneDataset
from studio.ui.pages.train_cards import FILES
from studio.ui.status import BUSY
from studio.ui.texts import label, text
from studio.ui.views import datasets as views

POLL_SECONDS = 1.5
TASKS = (
    "chain_sum",
    "basic_arithmetic",
    "products",
    "gcd",
    "simple_equations",
    "fraction_simplification",
    "number_sequence",
    "number_sorting",
    "calendar_arithmetic",
    "leg_counting",
    "letter_counting",
    "spell_backward",
    "word_sorting",
    "knights_knaves",
    "countdown",
    "mini_sudoku",
)
"""Of reasoning-gym, those to start with, the easier first of their kind; the others by their names."""


def _hub_card() -> tuple[gr.Textbox, gr.Textbox, gr.Textbox, gr.Button]:
    """Where a dataset of the Hub is named: (name, subset, split, the button that fetches it)."""
    with gr.Column(elem_classes=["card"], min_width=320):
        chrome.sheet(el("h2", text("datasets.hub")))
        with gr.Row(elem_classes=["joined"]):
            hub_id = gr.Textbox(
                label=label("datasets.hub_id"),
                placeholder=label("datasets.hub_hint"),
                max_lines=1,
                scale=3,
                min_width=150,
            )
            subset = gr.Textbox(
                label=label("datasets.subset"),
                placeholder=label("datasets.subset_hint"),
                max_lines=1,
                scale=2,
                min_width=90,
            )
            split = gr.Textbox(label=label("datasets.split"), value="train", max_lines=1, scale=1, min_width=80)
        fetch = gr.Button(label("datasets.fetch"), size="md")
    return hub_id, subset, split, fetch


def _tasks_card() -> tuple[gr.Dropdown, gr.Number, gr.Button]:
    """Where rows of a procedural task are asked for: (task, how many, the button that makes them)."""
    with gr.Column(elem_classes=["card"], min_width=320):
        chrome.sheet(el("h2", text("datasets.tasks")))
        with gr.Row(elem_classes=["joined"]):
            task = gr.Dropdown(
                choices=[(text(f"task.{name}"), name) for name in TASKS],
                value=TASKS[0],
                label=label("datasets.task"),
                allow_custom_value=True,
                scale=3,
                min_width=150,
                elem_id="task",
            )
            rows = gr.Number(
                500,
                precision=0,
                label=label("datasets.task_rows"),
                scale=1,
                min_width=90,
            )
        make = gr.Button(label("datasets.make"), size="md")
    return task, rows, make


class Datasets:
    """The page: the list, or one dataset."""

    def __init__(self, demo: gr.Blocks, studio: Studio) -> None:
        self.studio = studio
        chrome.top(demo, studio, "datasets")
        with gr.Column(visible=False) as self.adding:
            chrome.sheet(chrome.heading(text("datasets.title"), text("datasets.lead")))
            with gr.Row(equal_height=True):
                with gr.Column(elem_classes=["card"], min_width=320):
                    self.file = gr.File(
                        label=label("train.drop"),
                        show_label=False,
                        file_types=FILES,
                        height=88,
                        elem_classes=["drop"],
                        elem_id="drop",
                    )
                hub_id, subset, split, fetch = _hub_card()
                task, rows, make = _tasks_card()
            self.said = chrome.sheet(visible=False)
        self.pane = chrome.pane(el("p", text("loading"), cls="empty plain"))
        self.one = OneDataset(studio)
        self.timer = gr.Timer(POLL_SECONDS, active=False)
        outputs = [self.adding, self.pane, self.timer]
        demo.load(handler(self.open), {self.pane}, [*outputs, *self.one.components()], **QUIET)
        self.timer.tick(handler(self.load), [self.pane, self.said], [*outputs, self.said], **QUIET)
        self.file.upload(handler(self.drop), [self.file, self.pane], [self.file, self.said, *outputs], **QUIET)
        fetch.click(handler(self.fetch), [hub_id, subset, split, self.pane], [hub_id, self.said, *outputs], **QUIET)
        make.click(handler(self.make), [task, rows, self.pane], [self.said, *outputs], **QUIET)
        self.pane.act(handler(self.act), self.pane, outputs, **QUIET)

    def open(self, given: Mapping[Any, Any], request: gr.Request) -> dict[Any, Any]:
        """What the address names: the list, or one dataset with ?model= and ?row=."""
        query = dict(request.query_params)
        wanted, outputs = query.get("id", ""), (self.adding, self.pane, self.timer)
        with self.studio.session() as session:
            if not wanted:
                return dict(zip(outputs, self._show(session, given[self.pane]), strict=True))
            try:
                dataset = datasets.get(session, wanted)
            except NotFound as error:
                return {self.pane: unknown(error)}
            return {self.pane: "", **self.one.open(session, dataset, query.get("model", ""), query.get("row", ""))}

    def load(self, shown: str, said: str) -> Any:
        """The list as it is now; that something is on its way is not said any longer than it is."""
        with self.studio.session() as session:
            busy = any(one.status in BUSY for one in datasets.list_datasets(session))
            over = not busy and 'class="note busy"' in said
            return *self._show(session, shown), gr.update(visible=False) if over else gr.skip()

    def _show(self, session: Session, shown: str) -> tuple[Any, ...]:
        found = datasets.list_datasets(session)
        made = str(views.cards(found))
        busy = any(one.status in BUSY for one in found)
        return gr.update(visible=True), gr.skip() if made == shown else made, gr.Timer(active=busy)

    def drop(self, path: str, shown: str) -> Any:
        """Store the file; a worker checks it."""
        file = Path(path)
        try:
            with self.studio.session() as session:
                stored = datasets.add(session, self.studio.storage, self.studio.settings, path=file, filename=file.name)
                dataset_id, name = stored.id, stored.name
        except StudioError as error:
            return self._refused(error, shown)
        finally:
            file.unlink(missing_ok=True)
        queue.send_prepare(self.studio.celery, "check_dataset", dataset_id)
        said = gr.update(value=chrome.note("good", text("datasets.stored", name=name)), visible=True)
        with self.studio.session() as session:
            return gr.update(value=None), said, *self._show(session, shown)

    def fetch(self, hub_id: str, subset: str, split: str, shown: str) -> Any:
        """Ask a worker to download a dataset of the Hub."""
        try:
            with self.studio.session() as session:
                dataset = datasets.add_from_hub(session, hub_id, subset, split or "train")
                dataset_id, name = dataset.id, dataset.name
        except StudioError as error:
            return gr.skip(), *self._refused(error, shown)[1:]
        queue.send_prepare(self.studio.celery, "fetch_dataset", dataset_id)
        said = gr.update(value=chrome.note("busy", text("datasets.fetching", name=name)), visible=True)
        with self.studio.session() as session:
            return gr.update(value=""), said, *self._show(session, shown)

    def make(self, task: str, rows: float | None, shown: str) -> Any:
        """Ask a worker to make the rows of a task."""
        try:
            with self.studio.session() as session:
                dataset = datasets.add_tasks(session, str(task or ""), int(rows or 0))
                dataset_id, name = dataset.id, dataset.name
        except StudioError as error:
            return self._refused(error, shown)[1:]
        queue.send_prepare(self.studio.celery, "fetch_dataset", dataset_id)
        said = gr.update(value=chrome.note("busy", text("datasets.making", name=name)), visible=True)
        with self.studio.session() as session:
            return said, *self._show(session, shown)

    def _refused(self, error: StudioError, shown: str) -> tuple[Any, ...]:
        said = gr.update(value=chrome.note("bad", text("train.drop_failed"), error.message, error.advice), visible=True)
        with self.studio.session() as session:
            return gr.update(value=None), said, *self._show(session, shown)

    def act(self, shown: str, event: gr.EventData) -> Any:
        """Delete a dataset."""
        with self.studio.session() as session:
            datasets.delete(session, self.studio.storage, event._data["id"])
        with self.studio.session() as session:
            return self._show(session, shown)


def unknown(error: NotFound) -> str:
    """What to do when the address names no dataset."""
    back = el("a", text("datasets.all"), cls="action first", href="/datasets")
    return str(el("div", chrome.empty(text("datasets.unknown"), error.message, back), style="padding-top:40px"))
