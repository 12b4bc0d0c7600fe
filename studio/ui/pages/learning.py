"""What a model would learn from a dataset: rows as tokens, level, bridge, numbers. One piece for Train and Datasets."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import gradio as gr
from sqlalchemy.orm import Session

from studio import models, previews
from studio.context import Studio
from studio.db import when_over
from studio.db.tables import Dataset, Model, Preview, now
from studio.previews import AS_IN_DATA, ROWS, Key, Way
from studio.queue import send_prepare
from studio.ui import chrome
from studio.ui.pages.columns import Columns
from studio.ui.texts import label, text
from studio.ui.views import learning as views

POLL_SECONDS = 1.0
SOON, SOON_SECONDS = timedelta(seconds=10), 0.2
Updates = dict[Any, Any]


@dataclass(frozen=True)
class Subject:
    """What is looked at: these rows, as this model renders them."""

    dataset: Dataset | None
    model: Model | None
    way: Way = AS_IN_DATA
    row: int = 1
    max_length: int | None = None  # None: chosen from the rows
    drop: bool = False

    @property
    def possible(self) -> bool:
        """Whether there can be a preview."""
        return previews.possible(self.dataset, self.model, self.way)

    def key(self, way: Way, row: int = 1) -> Key:
        """The preview from a row on."""
        assert self.dataset is not None
        assert self.model is not None
        return Key(self.dataset.id, self.model.id, way.key, row)


@dataclass(frozen=True)
class Looked:
    """What there is to see of a subject: the survey with the first rows, and the page with the row."""

    first: Preview | None = None
    page: Preview | None = None
    levels: tuple[Mapping[str, Any], ...] = ()
    way: Way = AS_IN_DATA

    @property
    def waits(self) -> bool:
        """Whether something is being made."""
        return any(one is not None and one.status == "waiting" for one in (self.first, self.page))

    @property
    def pace(self) -> float:
        """Seconds from one look to the next: often while a preview is about to come, seldom once it takes its time."""
        asked = [one.asked_at for one in (self.first, self.page) if one is not None and one.status == "waiting"]
        return SOON_SECONDS if any(now() - moment < SOON for moment in asked) else POLL_SECONDS

    @property
    def mark(self) -> str:
        """Changes whenever there is more of it to see."""
        there = [one for one in (self.first, self.page) if one is not None]
        return " ".join(f"{one.way} {one.row} {one.status} {one.rows is not None}" for one in there)


def look(session: Session, subject: Subject, studio: Studio | None = None) -> Looked:
    """What is there of a subject; with a studio, what is not there yet is asked for.

    A level counts once this model is known to have it, else rows are shown as in the data.
    """
    if not subject.possible:
        return Looked()
    told = (subject.way.model_copy(update={"level": ""}), Way(bridge=subject.way.bridge))
    plain = next(filter(None, (previews.get(session, subject.key(one)) for one in told)), None)
    known = previews.levels(plain.survey if plain else None)
    way = subject.way
    if way.level and way.level not in {level["name"] for level in known}:
        way = way.model_copy(update={"level": ""})
    first = _preview(session, subject.key(way), studio)
    begin = (max(subject.row, 1) - 1) // ROWS * ROWS + 1
    page = first if begin == 1 else _preview(session, subject.key(way, begin), studio)
    if page is not None and page.rows and page.rows[-1]["row"] < subject.row:  # long rows: the page ended before it
        page = _preview(session, subject.key(way, subject.row), studio)
    return Looked(first, page, tuple(known), way)


def _preview(session: Session, key: Key, studio: Studio | None) -> Preview | None:
    if studio is None:
        return previews.get(session, key)
    preview, new = previews.ask(session, key)
    if new:
        when_over(session, committed=lambda: _send(studio, key))
    return preview


def _send(studio: Studio, key: Key) -> None:
    send_prepare(studio.celery, "preview", *map(str, key))


class Learning:
    """The components. `rows` hears `act` with a row to turn to; `numbers` with a bridge or level that is chosen."""

    def draw_rows(self) -> None:
        """Rows, page by page, the level, and what columns hold; inside whatever container is open."""
        self.columns = Columns()
        self.columns.draw()
        self.rows = chrome.pane(views.nothing())
        self.level = gr.Dropdown(
            choices=[(text("learn.level_data"), "")],
            value="",
            label=label("learn.level"),
            info=label("learn.level_help"),
            visible=False,
            elem_id="level",
        )
        chrome.open_choice(self.level)
        self.row = gr.Textbox("1", visible=False)

    def draw_numbers(self) -> None:
        """What is asked of the person, and the whole file in numbers."""
        self.numbers = chrome.pane()

    def show(self, subject: Subject, looked: Looked) -> Updates:
        """Everything that follows from a look."""
        return {
            self.rows: str(views.rows_of(subject.dataset, subject.model, looked.page, subject.row)),
            self.level: level_choice(looked),
            self.row: str(subject.row),
            **self.columns.show(subject.dataset, subject.way.declared),
            **self.count(subject, looked),
        }

    def count(self, subject: Subject, looked: Looked) -> Updates:
        """Only the numbers: another maximum length changes nothing else."""
        asks = views.asks(looked.first, looked.way, looked.levels)
        numbers = views.numbers(subject.dataset, looked.first, subject.max_length, drop=subject.drop)
        return {self.numbers: str(asks + numbers)}


def level_choice(looked: Looked) -> Any:
    """The levels to choose from, each with what it does; hidden where there is no choice."""
    if not looked.levels:
        return gr.update(visible=False)
    named = [(views.level_words(level), level["name"]) for level in looked.levels]
    return gr.update(visible=True, value=looked.way.level, choices=[(text("learn.level_data"), ""), *named])


def acted(session: Session, subject: Subject, action: str, value: str) -> Subject:
    """The subject after a person has turned to a row, agreed to a bridge, or chosen a level.

    Agreeing to a bridge counts for the model from then on.
    """
    if action == "row" and subject.dataset is not None and value.strip().isdecimal():
        return replace(subject, row=min(max(int(value), 1), max(subject.dataset.rows, 1)))
    if action == "level":
        return replace(subject, way=subject.way.model_copy(update={"level": value}))
    if action in ("bridge", "unbridge") and subject.model is not None:
        models.agree_on_bridge(session, subject.model, agreed=action == "bridge")
        return replace(subject, way=subject.way.model_copy(update={"bridge": action == "bridge"}))
    return subject
