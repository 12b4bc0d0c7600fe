"""What every page has: the top bar with its live facts, headings, panes, and errors that a person can read."""

import functools
import logging
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import gradio as gr
from gradio.components import Component
from gradio.components.navbar import Navbar
from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from studio import workers
from studio.context import Studio
from studio.db.tables import Run
from studio.errors import StudioError
from studio.runs import ACTIVE
from studio.ui import figures
from studio.ui.html import Child, Html, el, link, many
from studio.ui.texts import text

PAGES = (("train", "/"), ("runs", "/runs"), ("compare", "/compare"), ("datasets", "/datasets"), ("models", "/models"))
BAR_SECONDS = 5.0
QUIET: dict[str, Any] = {"queue": False, "api_visibility": "private", "show_progress": "hidden"}
log = logging.getLogger(__name__)
P = ParamSpec("P")
R = TypeVar("R")


def handler(act: Callable[P, R]) -> Callable[P, R]:
    """A page's handler: what the studio refuses becomes a message, what nobody expected is logged and kept short."""

    @functools.wraps(act)
    def safe(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return act(*args, **kwargs)
        except StudioError as error:
            raise gr.Error(said(error), title=text("error.title"), print_exception=False) from error
        except SQLAlchemyError as error:
            log.exception("the database failed under a page")
            raise gr.Error(text("error.unexpected"), title=text("error.title"), print_exception=False) from error

    return safe


def said(error: StudioError) -> str:
    """Message and advice as text that is safe in Gradio's toast, which shows markup."""
    return str(el("span", " ".join(part for part in (error.message, error.advice) if part)))


def devices(session: Session, studio: Studio) -> list[dict[str, Any]]:
    """Devices of the living workers: name, kind, total_bytes, used_bytes."""
    return workers.devices(session, max(studio.settings.lease_seconds, 2 * BAR_SECONDS))


def bar(session: Session, studio: Studio, page: str) -> Html:
    """The top bar as it stands now."""
    return static_bar(page, queue_chip(session), device_chip(session, studio))


def static_bar(page: str, *facts: Child) -> Html:
    """The bar with its links; the facts follow when the page asks for them."""
    pages = [
        el("a", text(f"nav.{name}"), href=path, aria_current="page" if name == page else None) for name, path in PAGES
    ]
    return el(
        "header",
        el("a", brand(), text("app"), cls="brand", href="/"),
        el("nav", pages, aria_label=text("nav")),
        el("div", facts, cls="facts"),
        cls="bar",
        data_title=text("title", page=text(f"nav.{page}") if page else text("run.title")),
    )


def brand() -> Html:
    """The mark: three strokes that fall, like a loss."""
    strokes = [el("path", d=line) for line in ("M4 4v16", "M10 9v11", "M16 15v5")]
    return el(
        "svg",
        strokes,
        viewBox="0 0 20 24",
        fill="none",
        stroke="currentColor",
        stroke_width="3.4",
        stroke_linecap="round",
        aria_hidden="true",
    )


def queue_chip(session: Session) -> Html:
    """2 running · 1 queued."""
    rows = session.execute(select(Run.status, func.count().label("n")).group_by(Run.status))
    counts: dict[str, int] = {row.status: row.n for row in rows}
    running, queued = sum(counts.get(status, 0) for status in ACTIVE), counts.get("queued", 0)
    parts = [text("bar.running", n=running)] if running else []
    parts += [text("bar.queued", n=queued)] if queued else []
    return link(" · ".join(parts) or text("bar.idle"), "/runs", cls="chip on" if parts else "chip")


def device_chip(session: Session, studio: Studio) -> Html:
    """The device and how much of its memory is in use."""
    found = devices(session, studio)
    if not found:
        return el("span", text("bar.no_worker"), cls="chip device", title=text("bar.no_worker_help"))
    used, total = (sum(device[key] for device in found) for key in ("used_bytes", "total_bytes"))
    name = found[0]["name"] if len(found) == 1 else text("bar.devices", n=len(found))
    words = text("bar.memory", used=figures.size(used), total=figures.size(total))
    return el("span", name, meter(used / total if total else 0.0), words, cls="chip device")


def meter(share: float | None, cls: str = "") -> Html:
    """A thin bar; decoration beside the words that say the same. None: how far is not known."""
    kind = "meter unknown" if share is None else "meter"
    width = None if share is None else f"width:{100 * min(max(share, 0.0), 1.0):.1f}%"
    return el("span", el("i", style=width), cls=f"{kind} {cls}".strip(), aria_hidden="true")


def heading(title: Child, lead: Child = "", actions: Child = None) -> Html:
    """Title, one line on what the page is for, and actions on the right."""
    return el(
        "div",
        el("div", el("h1", title), el("p", lead) if lead else None),
        el("div", actions, cls="actions") if actions else None,
        cls="page-head",
    )


def empty(title: str, help_: str, action: Child = None, cls: str = "empty") -> Html:
    """An empty state: what this place is for, and one thing to do."""
    return el("div", el("h2", title), el("p", help_), action, cls=cls)


def note(kind: str, title: Child, *children: Child) -> Html:
    """A coloured box: good, bad, warn, busy. A title that is plain text is set strong."""
    strong = el("b", title) if isinstance(title, str) and not isinstance(title, Html) else title
    return el("div", strong, [many(" ", child) for child in children if child], cls=f"note {kind}", role="status")


def open_choice(component: Component) -> None:
    """Take any value that the browser sends; the handler looks it up in the database.

    Gradio compares it with the choices that the server remembers for this tab, and forgets them when it restarts.
    """
    component.preprocess = lambda payload: payload  # type: ignore[method-assign]


def sheet(value: str = "", *, classes: tuple[str, ...] = (), **options: Any) -> gr.HTML:
    """Markup of ours on the page, in our own styles."""
    options.setdefault("js_on_load", None)
    return gr.HTML(value, apply_default_css=False, elem_classes=["sheet", *classes], **options)


def pane(value: str = "", **options: Any) -> gr.HTML:
    """Markup whose [data-action] buttons reach the page's handler as the event `act`."""
    return sheet(value, js_on_load='const name = "act"; window.atelierPane(element, trigger, watch)', **options)


def top(demo: gr.Blocks, studio: Studio, page: str) -> gr.HTML:
    """The page's top bar, kept up to date by its own slow timer."""
    Navbar(visible=False)
    component = sheet(static_bar(page), js_on_load="window.atelierBar(element, props, watch)", elem_id="top")
    timer = gr.Timer(BAR_SECONDS)

    def now_(last: str) -> Any:
        with studio.session() as session:
            fresh = str(bar(session, studio, page))
        return gr.skip() if fresh == last else fresh

    timer.tick(handler(now_), component, component, **QUIET)
    demo.load(handler(now_), component, component, **QUIET)
    return component
