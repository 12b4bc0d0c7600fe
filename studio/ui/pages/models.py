"""Models: what runs can start from; add a folder, look on the Hub."""

from typing import Any

import gradio as gr
from sqlalchemy.orm import Session

from studio import models, queue
from studio.context import Studio
from studio.errors import StudioError
from studio.queue import PrepareKind
from studio.ui import chrome, figures
from studio.ui.chrome import QUIET, handler
from studio.ui.html import el, many
from studio.ui.status import BUSY
from studio.ui.texts import label, text
from studio.ui.views import models as views

POLL_SECONDS = 1.5


class Models:
    """The page."""

    def __init__(self, demo: gr.Blocks, studio: Studio) -> None:
        self.studio = studio
        chrome.top(demo, studio, "models")
        chrome.sheet(chrome.heading(text("models.title"), text("models.lead")))
        with gr.Row(equal_height=True):
            with gr.Column(elem_classes=["card"], min_width=320):
                chrome.sheet(el("h2", text("models.add")))
                path = gr.Textbox(
                    label=label("models.path"), placeholder=label("models.path_hint"), max_lines=1, elem_id="path"
                )
                add = gr.Button(label("models.add_button"))
            with gr.Column(elem_classes=["card"], min_width=320):
                chrome.sheet(el("h2", text("models.search")))
                words = gr.Textbox(label=label("models.search_hint"), max_lines=1, elem_id="words")
                search = gr.Button(label("models.search_button"))
        self.said = chrome.sheet(visible=False)
        self.results = chrome.pane(visible=False)
        self.cards = chrome.sheet(el("p", text("loading"), cls="empty plain"))
        self.timer = gr.Timer(POLL_SECONDS, active=False)
        outputs = [self.cards, self.timer]
        demo.load(handler(self.load), self.cards, outputs, **QUIET)
        self.timer.tick(handler(self.show), self.cards, outputs, **QUIET)
        for event in (add.click, path.submit):
            event(handler(self.add), [path, self.cards], [self.said, *outputs], **QUIET)
        for event in (search.click, words.submit):
            event(handler(self.search), words, [self.said, self.results], **QUIET)
        self.results.act(handler(self.take), self.cards, [self.said, self.results, *outputs], **QUIET)

    def load(self, shown: str) -> Any:
        """Look into the data folder and the Hub's cache, then show everything that is known."""
        with self.studio.session() as session:
            new = [model.id for model in models.scan(session, self.studio.storage)]
        for model_id in new:
            queue.send_prepare(self.studio.celery, "check_model", model_id)
        return self.show(shown)

    def show(self, shown: str) -> Any:
        """The cards, when they are not what the tab already shows."""
        with self.studio.session() as session:
            return self._cards(session, shown)

    def _cards(self, session: Session, shown: str) -> tuple[Any, ...]:
        found = models.list_models(session)
        made = str(views.cards(found))
        return gr.skip() if made == shown else made, gr.Timer(active=any(one.status in BUSY for one in found))

    def _added(self, kind: PrepareKind, model_id: str, name: str, shown: str) -> tuple[Any, ...]:
        queue.send_prepare(self.studio.celery, kind, model_id)
        said = gr.update(value=chrome.note("good", text("models.added", name=name)), visible=True)
        return said, *self.show(shown)

    def add(self, path: str, shown: str) -> Any:
        """A folder of this machine."""
        try:
            with self.studio.session() as session:
                model = models.add_folder(session, path.strip())
                model_id, name = model.id, model.name
        except StudioError as error:
            return refused(error), gr.skip(), gr.skip()
        return self._added("check_model", model_id, name, shown)

    def search(self, words: str) -> Any:
        """Models of the Hub; offline it says so at once."""
        if not words.strip():
            return gr.update(visible=False), gr.update(visible=False)
        try:
            found = models.search_hub(words.strip())
        except StudioError as error:
            return refused(error), gr.update(visible=False)
        if not found:
            return gr.update(
                value=chrome.note("warn", text("models.no_results", words=words)), visible=True
            ), gr.update(visible=False)
        return gr.update(visible=False), gr.update(value=str(results(found)), visible=True)

    def take(self, shown: str, event: gr.EventData) -> Any:
        """Add one of the models that were found."""
        with self.studio.session() as session:
            model = models.add_hub(session, event._data["id"])
            model_id, name = model.id, model.name
        said, *cards = self._added("fetch_model", model_id, name, shown)
        return said, gr.update(visible=False), *cards


def refused(error: StudioError) -> Any:
    """Why it was not done."""
    return gr.update(value=chrome.note("bad", text("error.title"), error.message, error.advice), visible=True)


def results(found: list[models.Found]) -> str:
    """What the Hub has, each with a button that adds it."""
    rows = [
        el(
            "tr",
            el("td", one.id, cls="name"),
            el("td", text("models.downloads", n=figures.count(one.downloads)), cls="num"),
            el("td", one.licence),
            el(
                "td",
                el("button", text("models.add_button"), type="button", cls="action", data_action="add", data_id=one.id),
                cls="num",
            ),
        )
        for one in found
    ]
    return str(many(el("div", el("table", el("tbody", rows)), cls="table-wrap")))
