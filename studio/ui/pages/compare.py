"""Compare: the runs that the address names, overlaid."""

from collections.abc import Iterable
from typing import Any

import gradio as gr
from sqlalchemy.orm import Session

from studio import curves, runs
from studio.context import Studio
from studio.curves import AXES, Axis, Curves
from studio.db.tables import Run
from studio.ui import charts, chrome
from studio.ui.chrome import QUIET, handler
from studio.ui.html import el
from studio.ui.pages.runs import named
from studio.ui.texts import label, text
from studio.ui.views import compare as views

LIVE = (*runs.ACTIVE, "queued")
POLL_SECONDS = 3.0
MOST = 12  # runs on one chart
LISTED = 200
ADDRESS = "(runs) => { history.replaceState(null, '', '/compare' + (runs.length ? `?runs=${runs.join()}` : '')); }"


class Compare:
    """The page."""

    def __init__(self, demo: gr.Blocks, studio: Studio) -> None:
        self.studio = studio
        chrome.top(demo, studio, "compare")
        chrome.sheet(chrome.heading(text("compare.title"), text("compare.lead")))
        self.chosen = gr.Dropdown(
            choices=[],
            value=[],
            multiselect=True,
            max_choices=MOST,
            label=label("compare.runs"),
            info=label("compare.runs_hint"),
            elem_id="chosen",
        )
        chrome.open_choice(self.chosen)
        self.missing = chrome.sheet(visible=False)
        self.empty = chrome.sheet(
            chrome.empty(
                text("compare.empty"),
                text("compare.empty_help"),
                el("a", text("run.all"), cls="action first", href="/runs"),
            )
        )
        with gr.Column(visible=False) as self.body:
            with gr.Row(elem_classes=["filters"]):
                axis = gr.Radio(
                    choices=[(text(f"axis.{one}"), one) for one in AXES],
                    value="step",
                    label=label("compare.axis"),
                    min_width=220,
                    elem_id="axis",
                )
                smoothing = gr.Slider(
                    0, 0.99, value=0, step=0.01, label=label("compare.smoothing"), min_width=220, elem_id="smoothing"
                )
            self.charts = charts.board()
            chrome.sheet(el("h2", text("compare.figures"), style="padding-top:8px"))
            self.figures = chrome.sheet()
            chrome.sheet(el("h2", text("compare.settings"), style="padding-top:8px"))
            self.settings = chrome.sheet()
        self.seen = gr.Textbox("", visible=False)
        self.timer = gr.Timer(POLL_SECONDS, active=False)
        given = [self.chosen, axis, smoothing]
        outputs = [self.missing, self.empty, self.body, self.charts, self.figures, self.settings, self.seen, self.timer]
        demo.load(handler(self.load), given, [self.chosen, *outputs], **QUIET)
        self.chosen.input(handler(self.show), given, outputs, **QUIET).then(
            None, self.chosen, None, js=ADDRESS, **QUIET
        )
        for control in (axis, smoothing):
            control.input(handler(self.draw), given, self.charts, trigger_mode="always_last", **QUIET)
        news = [self.charts, self.figures, self.seen, self.timer]
        self.timer.tick(handler(self.tick), [*given, self.seen], news, **QUIET)

    def load(self, _chosen: list[str], axis: Axis, smoothing: float, request: gr.Request) -> Any:
        """The runs of the address; ids that are not there are named."""
        wanted = list(dict.fromkeys(one for one in request.query_params.get("runs", "").split(",") if one))[:MOST]
        with self.studio.session() as session:
            listed = runs.list_runs(session, limit=LISTED)
            known = [one for one in wanted if session.get(Run, one)]
            extra = [session.get_one(Run, one) for one in known if one not in {run.id for run in listed}]
            choices = [
                (f"{run.name} · {text(f'status.{run.status}')} · {run.id[-4:]}", run.id) for run in [*listed, *extra]
            ]
            lost = [one for one in wanted if one not in known]
            said = gr.update(
                value=chrome.note("warn", text("compare.missing", ids=", ".join(lost))), visible=bool(lost)
            )
            return gr.update(choices=choices, value=known), said, *self._parts(session, known, axis, smoothing)

    def show(self, chosen: list[str], axis: Axis, smoothing: float) -> Any:
        """Other runs were chosen."""
        with self.studio.session() as session:
            return gr.update(visible=False), *self._parts(session, chosen, axis, smoothing)

    def draw(self, chosen: list[str], axis: Axis, smoothing: float) -> Any:
        """Another curve, axis or smoothing."""
        with self.studio.session() as session:
            return charts.sent(views.board(told(session, chosen), axis, smoothing))

    def _parts(self, session: Session, chosen: list[str], axis: Axis, smoothing: float) -> tuple[Any, ...]:
        found = told(session, chosen)
        if not found:
            nothing = [gr.skip()] * 3
            return gr.update(visible=True), gr.update(visible=False), *nothing, "", gr.Timer(active=False)
        return (
            gr.update(visible=False),
            gr.update(visible=True),
            charts.sent(views.board(found, axis, smoothing)),
            str(views.figure_table(found)),
            str(views.differences(found, named(session))),
            mark(run for run, _ in found),
            gr.Timer(active=any(run.status in LIVE for run, _ in found)),
        )

    def tick(self, chosen: list[str], axis: Axis, smoothing: float, seen: str) -> Any:
        """What the runs that go on have measured since."""
        with self.studio.session() as session:
            stand = [run for run in (session.get(Run, run_id) for run_id in chosen[:MOST]) if run is not None]
            if mark(stand) == seen:
                return gr.skip(), gr.skip(), gr.skip(), gr.skip()
            _, _, drawn, figures, _, now, timer = self._parts(session, chosen, axis, smoothing)
            return drawn, figures, now, timer


def mark(stand: Iterable[Run]) -> str:
    """Changes whenever one of the runs has said more."""
    return " ".join(f"{run.id} {run.status} {run.events_offset}" for run in stand)


def told(session: Session, chosen: list[str]) -> list[tuple[Run, Curves]]:
    """The runs that exist, each with what it measured."""
    found = [session.get(Run, run_id) for run_id in chosen[:MOST]]
    return [(run, curves.read(session, run.id)) for run in found if run is not None]
