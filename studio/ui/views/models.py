"""Base models as cards, and as the choices of the Train page."""

from collections.abc import Sequence

from studio.db.tables import Model
from studio.facts import Facts
from studio.models import facts
from studio.ui import figures
from studio.ui.chrome import empty, meter
from studio.ui.html import Child, Html, el, link
from studio.ui.status import BUSY, badge
from studio.ui.texts import text


def usable(model: Model) -> bool:
    """Whether a run can start from it, now or once it is prepared."""
    return model.status != "unusable" and facts(model).trainable


def choices(found: Sequence[Model]) -> list[tuple[str, str]]:
    """What the Train page offers: ready ones first, small ones first."""
    able = [model for model in found if usable(model)]
    return [
        choice(model) for model in sorted(able, key=lambda model: (model.status in BUSY, facts(model).parameters or 0))
    ]


def choice(model: Model) -> tuple[str, str]:
    """Label and id for the Train page."""
    known = facts(model)
    parts = [figures.parameters(known.parameters), place(model, known)]
    if model.status in BUSY:
        parts = [progress(model)]
    return text("models.choice", name=model.name, facts=" · ".join(part for part in parts if part)), model.id


def place(model: Model, known: Facts) -> str:
    """Where its weights are."""
    if model.source == "starter":
        return text("source.starter")
    return text("models.cached") if known.cached else text("models.not_cached")


def progress(model: Model) -> str:
    """Such as: converting 40 %."""
    word = text(f"status.{model.status}")
    return word if model.progress is None else f"{word} {text('models.progress', percent=round(100 * model.progress))}"


def cards(found: Sequence[Model]) -> Html:
    """All models."""
    if not found:
        return empty(text("models.empty"), text("models.empty_help"))
    return el("div", [card(model) for model in found], cls="grid")


def card(model: Model) -> Html:
    """One model: what it is, where it is, whether it can be trained."""
    known = facts(model)
    able = usable(model)
    body: list[Child] = []
    if model.status in BUSY:
        body.append(el("div", meter(model.progress), el("span", progress(model), cls="quiet small")))
    if not able:
        body.append(
            el("div", el("b", text("models.why_not") + ": "), model.error or known.why_not, cls="note bad small")
        )
    return el(
        "article",
        el(
            "div",
            el("h2", model.name),
            badge(model.status if able or model.status == "unusable" else "unusable"),
            cls="tile-head",
        ),
        el(
            "div",
            [el("b", figures.parameters(known.parameters)) if known.parameters else None, *facts_of(known)],
            cls="facts-line",
        ),
        body,
        el("div", [el("span", place(model, known)), licence(known)], cls="facts-line"),
        el("div", foot(model, able), cls="tile-foot"),
        cls="tile",
    )


def facts_of(known: Facts) -> list[Child]:
    """Architecture, context, size and template."""
    words = [
        known.architecture,
        text("models.context", n=figures.count(known.context_length)) if known.context_length else "",
        figures.size(known.bytes) if known.bytes else "",
        known.dtype,
        text("models.template")
        if known.has_chat_template
        else text("models.no_template")
        if known.architecture
        else "",
    ]
    return [el("span", word) for word in words if word]


def licence(known: Facts) -> Child:
    """The licence, where the model names one."""
    return el("span", text("models.licence", name=known.licence)) if known.licence else None


def foot(model: Model, able: bool) -> list[Child]:
    """What can be done with it."""
    return [link(text("models.train"), "/", model=model.id)] if able and model.status == "ready" else []
