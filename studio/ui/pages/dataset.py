"""One dataset: what it holds, what is wrong with it, and what a model would learn from it."""

from collections.abc import Mapping
from typing import Any

import gradio as gr
from gradio.components import Component
from sqlalchemy.orm import Session

from studio import models, runs
from studio.context import Studio
from studio.db.tables import Dataset, Model
from studio.models import facts
from studio.previews import Way, possible
from studio.ui import chrome
from studio.ui.chrome import QUIET, handler
from studio.ui.pages import learning
from studio.ui.status import BUSY
from studio.ui.texts import label, text
from studio.ui.views import datasets as views
from studio.ui.views import models as model_views

LONGER = ("keep_start", "drop")
Given = Mapping[Any, Any]
Updates = dict[Any, Any]


class OneDataset:
    """The components of one dataset's page, hidden while the list is shown; `id` holds which."""

    def __init__(self, studio: Studio) -> None:
        self.studio = studio
        self.learning = learning.Learning()
        self.id, self.mark = gr.Textbox("", visible=False), gr.Textbox("", visible=False)
        self.timer = gr.Timer(learning.POLL_SECONDS, active=False)
        with gr.Column(visible=False) as self.body:
            self.top = chrome.pane()
            with gr.Row(elem_classes=["train"]):
                with gr.Column(scale=5, min_width=340) as self.left:
                    with gr.Column(elem_classes=["card"]) as self.settings:
                        self._settings()
                        self.learning.draw_numbers()
                    self.problems = chrome.pane()
                with gr.Column(scale=6, min_width=340, elem_classes=["card", "learn"]):
                    self.learning.draw_rows()
            self.raw = chrome.sheet()
        self._listen()

    def _settings(self) -> None:
        self.model = gr.Dropdown(choices=[], value=None, label=label("datasets.as_model"), elem_id="as-model")
        chrome.open_choice(self.model)
        with gr.Row():
            self.length = gr.Textbox(
                label=label("datasets.length"),
                placeholder=label("datasets.length_hint"),
                info=label("datasets.length_help"),
                max_lines=1,
                min_width=140,
            )
            self.longer = gr.Dropdown(
                choices=[(text(f"datasets.longer_{one}"), one) for one in LONGER],
                value=LONGER[0],
                label=label("datasets.longer"),
                info=label("datasets.longer_help"),
                min_width=140,
            )

    def _listen(self) -> None:
        panel = self.learning
        given: Any = {self.id, self.mark, self.model, self.length, self.longer, panel.level, panel.row}
        given |= set(panel.columns.inputs)
        outputs = self.components()
        self.timer.tick(handler(self.tick), given, outputs, **QUIET)
        self.model.input(handler(self.chose), given, outputs, **QUIET)
        panel.level.input(handler(self.again), given, outputs, **QUIET)
        for choice in panel.columns.inputs:
            choice.input(handler(self.mapped), given, outputs, **QUIET)
        for control in (self.length, self.longer):
            control.input(handler(self.counted), given, outputs, trigger_mode="always_last", **QUIET)
        for pane in (panel.rows, panel.numbers, self.problems):
            pane.act(handler(self.acted), given, outputs, **QUIET)

    def components(self) -> list[Any]:
        """Everything that an event may change."""
        held = [one for part in (self, self.learning) for one in vars(part).values() if isinstance(one, Component)]
        return [*held, *self.learning.columns.components(), self.body, self.left, self.settings]

    def open(self, session: Session, dataset: Dataset, model_id: str = "", row: str = "") -> Updates:
        """The page as the address names it: with a model, else the one of the newest run, else the smallest."""
        ready = [model for model in models.list_models(session) if model.status == "ready"]
        ready.sort(key=lambda model: facts(model).parameters or 0)
        used = [run.model_id for run in runs.list_runs(session, dataset=dataset.id, limit=1)]
        wanted = next((name for name in (model_id, *used) if name in {model.id for model in ready}), "")
        chosen = next((model for model in ready if model.id == wanted), ready[0] if ready else None)
        given = {
            self.id: dataset.id,
            self.model: chosen.id if chosen else None,
            self.length: "",
            self.longer: LONGER[0],
            self.learning.level: "",
            self.learning.row: row or "1",
        }
        choices = model_views.choices(ready)
        return self.show(session, given) | {
            self.body: gr.update(visible=True),
            self.id: dataset.id,
            self.model: gr.update(choices=choices, value=chosen.id if chosen else None, visible=bool(choices)),
        }

    def show(self, session: Session, given: Given) -> Updates:
        """Everything, from the database as it is now."""
        subject = self.subject(session, given)
        dataset = subject.dataset
        if dataset is None:
            return {self.timer: gr.Timer(active=False)}
        declared = bool(subject.way.declared)
        looked, shown = learning.look(session, subject, self.studio), possible(dataset, subject.model, subject.way)
        survey = looked.first.survey if looked.first is not None else None
        return {
            self.top: str(views.top(dataset, subject.model, looked.way if shown else subject.way, survey)),
            self.problems: "" if declared else str(views.problems(dataset)),
            self.raw: str(views.as_in_file(dataset)),
            self.settings: gr.update(visible=shown),
            self.left: gr.update(visible=shown or (bool(views.problems_of(dataset)) and not declared)),
            **self.learning.show(subject, looked),
            self.mark: self.marked(dataset, looked),
            self.timer: gr.Timer(value=looked.pace, active=looked.waits or dataset.status in BUSY),
        }

    def subject(self, session: Session, given: Given) -> learning.Subject:
        """What is looked at."""
        dataset = session.get(Dataset, given[self.id])
        model = session.get(Model, given[self.model]) if given[self.model] else None
        bridge = bool(model and facts(model).bridge)
        most, row = str(given[self.length] or "").strip(), str(given[self.learning.row] or "1")
        return learning.Subject(
            dataset,
            model,
            Way(level=given[self.learning.level] or "", bridge=bridge, declared=self.learning.columns.read(given)),
            int(row) if row.isdecimal() else 1,
            int(most) if most.isdecimal() and int(most) else None,
            given[self.longer] == "drop",
        )

    def marked(self, dataset: Dataset, looked: learning.Looked) -> str:
        """Changes whenever there is more to see."""
        return f"{dataset.status} {looked.mark}"

    def tick(self, given: Given) -> Updates:
        """While something is being made: show it once it is there."""
        with self.studio.session() as session:
            subject = self.subject(session, given)
            looked = learning.look(session, subject)
            if subject.dataset is not None and self.marked(subject.dataset, looked) == given[self.mark]:
                return {self.timer: gr.Timer(value=looked.pace) if looked.waits else gr.skip()}
            return self.show(session, given)

    def again(self, given: Given) -> Updates:
        """Another level."""
        with self.studio.session() as session:
            return self.show(session, given)

    def mapped(self, given: Given) -> Updates:
        """What the columns hold, as far as it is chosen."""
        with self.studio.session() as session:
            subject, columns = self.subject(session, given), self.learning.columns
            asked = columns.show(subject.dataset, subject.way.declared, columns.kind_in(given))
            return self.show(session, given) | asked

    def chose(self, given: Given) -> Updates:
        """Another model: as in the data, until a level is chosen."""
        with self.studio.session() as session:
            return self.show(session, {**given, self.learning.level: ""})

    def counted(self, given: Given) -> Updates:
        """Another maximum length: other numbers, the same rows."""
        with self.studio.session() as session:
            subject = self.subject(session, given)
            return self.learning.count(subject, learning.look(session, subject))

    def acted(self, given: Given, event: gr.EventData) -> Updates:
        """A row to turn to, a level, or what was said to a bridge."""
        action, value = str(event._data["action"]), str(event._data["id"])
        with self.studio.session() as session:
            subject = learning.acted(session, self.subject(session, given), action, value)
            session.flush()
            now = {self.learning.row: str(subject.row), self.learning.level: subject.way.level}
            return self.show(session, {**given, **now})
