"""Run: one run from its row and its events. A timer sends only what changed, until the run is final."""

import zlib
from typing import Any

import gradio as gr
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from studio import curves, queue, runs
from studio.context import Studio
from studio.db.tables import Dataset, Model, Run, RunEvent
from studio.errors import NotFound
from studio.room import admitted
from studio.ui import charts, chrome
from studio.ui.chrome import QUIET, handler
from studio.ui.html import el, url
from studio.ui.texts import label, text
from studio.ui.views import run as views
from studio.ui.views import run_charts, run_tabs

POLL_SECONDS = 1.5
TOLD = ("started", "sample", "rollout", "saved", "warning")
Updates = dict[Any, Any]


class RunPage:
    """The page; `seen` holds a checksum of every part that the tab already shows."""

    def __init__(self, demo: gr.Blocks, studio: Studio) -> None:
        self.studio = studio
        chrome.top(demo, studio, "")
        self.seen = gr.JSON({}, visible=False)
        self.head = chrome.pane(el("p", text("loading"), cls="empty plain"))
        with gr.Column(visible=False) as self.body:
            self.figures = chrome.sheet()
            self.charts = charts.board()
            with gr.Tabs() as self.tabs:
                with gr.Tab(label("run.samples")):
                    self.samples = chrome.sheet()
                with gr.Tab(label("run.log"), id="log", render_children=True):
                    self.log = chrome.sheet(js_on_load="window.atelierFollow(element, props, watch)")
                with gr.Tab(label("run.settings")):
                    self.settings = chrome.sheet()
                with gr.Tab(label("run.files")):
                    self.files = chrome.sheet()
        self.timer = gr.Timer(POLL_SECONDS, active=False)
        self.go = gr.Textbox(visible=False)
        parts = [self.head, self.figures, self.charts, self.samples, self.log, self.settings, self.files]
        outputs = [*parts, self.tabs, self.body, self.timer, self.seen, self.go]
        demo.load(handler(self.load), None, outputs, **QUIET)
        self.timer.tick(handler(self.tick), self.seen, outputs, **QUIET)
        self.head.act(handler(self.act), self.seen, outputs, **QUIET)
        self.go.change(None, self.go, None, js="(url) => { if (url) window.location.href = url; }", **QUIET)

    def load(self, request: gr.Request) -> Updates:
        """The run that the address names."""
        with self.studio.session() as session:
            return self._show(session, request.query_params.get("id", ""), {})

    def tick(self, seen: dict[str, Any], request: gr.Request) -> Updates:
        """What changed since."""
        with self.studio.session() as session:
            return self._show(session, request.query_params.get("id", ""), seen)

    def act(self, seen: dict[str, Any], request: gr.Request, event: gr.EventData) -> Updates:
        """Pause, resume, cancel, retry, delete."""
        run_id, action = request.query_params.get("id", ""), event._data["action"]
        with self.studio.session() as session:
            if action == "delete":
                runs.delete(session, self.studio.storage, run_id)
            elif action == "retry":
                new_id = admitted(session, self.studio.storage, runs.retry(session, run_id)).id
            elif action in ("pause", "resume", "cancel"):
                {"pause": runs.pause, "resume": runs.resume, "cancel": runs.cancel}[action](session, run_id)
        if action == "delete":
            return {self.go: "/runs"}
        with self.studio.session() as session:
            if action == "retry":
                queue.send_run(self.studio.celery, session, runs.get(session, new_id))
                return {self.go: url("/run", id=new_id)}
            if action == "resume":
                queue.send_run(self.studio.celery, session, runs.get(session, run_id))
            return self._show(session, run_id, seen)

    def _show(self, session: Session, run_id: str, seen: dict[str, Any]) -> Updates:
        """Updates of the parts that are not as `seen`; a run without news costs one row and one count."""
        try:
            run = runs.get(session, run_id)
        except NotFound:
            return {self.head: unknown(run_id), self.body: gr.update(visible=False), self.timer: gr.Timer(active=False)}
        fresh: dict[str, tuple[Any, Any]] = {}
        news = f"{run.events_offset} {run.status}"
        story = tell(session, run, events=seen.get("news") != news)
        if seen.get("news") != news:
            told = curves.read(session, run.id)
            drawn = run_charts.all_of(charts.Source(run.id, told), run.planned_memory)
            fresh["charts"] = self.charts, charts.sent({"charts": drawn})
            said = el("div", views.figure_line(story, told), views.warnings(story), cls="stack-8")
            fresh["figures"] = self.figures, str(said)
            fresh["samples"] = self.samples, str(views.samples(story))
            fresh["settings"] = self.settings, str(run_tabs.settings_of(story))
            fresh["files"] = self.files, str(run_tabs.files(story))
        fresh["head"] = self.head, str(views.head(story))
        fresh["log"] = self.log, str(views.log(run))
        marks = {name: zlib.crc32(repr(value).encode()) for name, (_, value) in fresh.items()}
        updates: Updates = {
            component: value for name, (component, value) in fresh.items() if seen.get(name) != marks[name]
        }
        if not seen:
            updates[self.body] = gr.update(visible=True)
            updates[self.tabs] = gr.Tabs(selected="log") if run.status == "failed" else gr.skip()
        final = run.status in runs.FINAL
        if seen.get("final") != final:
            updates[self.timer] = gr.Timer(active=not final)
        if updates or seen.get("news") != news:
            updates[self.seen] = {**seen, **marks, "news": news, "final": final}
        return updates or {self.go: gr.skip()}


def tell(session: Session, run: Run, *, events: bool) -> views.Story:
    """The run with its names, its place in the queue, and what it said beside its steps."""
    ahead = 0
    if run.status == "queued" and run.queued_at:
        waiting = select(func.count()).where(Run.status == "queued", Run.queued_at < run.queued_at)
        ahead = session.scalar(waiting) or 0
    told: dict[str, list[Any]] = {}
    if events:
        query = (
            select(RunEvent.kind, RunEvent.data)
            .where(RunEvent.run_id == run.id, RunEvent.kind.in_(TOLD))
            .order_by(RunEvent.kind, RunEvent.offset)  # as the index has them: steps are not touched
        )
        for kind, data in session.execute(query):
            told.setdefault(kind, []).append(data)
    return views.Story(run, session.get(Dataset, run.dataset_id), session.get(Model, run.model_id), ahead, told)


def unknown(run_id: str) -> str:
    """What to do when the address names no run."""
    title, help_ = ("run.unknown", "run.unknown_help") if run_id else ("run.none", "run.none_help")
    buttons = [
        el("a", text("run.all"), cls="action first", href="/runs"),
        el("a", text("run.new"), cls="action", href="/"),
    ]
    return str(
        el("div", chrome.empty(text(title), text(help_), el("div", buttons, cls="actions")), style="padding-top:40px")
    )
