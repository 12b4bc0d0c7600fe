"""The preview that belongs to what is chosen on the Train page, and its reasoning level."""

from datetime import timedelta
from typing import Any

import gradio as gr
from sqlalchemy.orm import Session

from studio import previews
from studio.context import Studio
from studio.db import when_over
from studio.db.tables import Preview, now
from studio.queue import send_prepare
from studio.ui.form import Values
from studio.ui.pages.train_cards import POLL_SECONDS
from studio.ui.texts import text
from studio.ui.views.train import Chosen

LEVEL = "data.reasoning_level"  # the setting that tells the chat template
SOON, SOON_SECONDS = timedelta(seconds=10), 0.2


def preview_of(session: Session, studio: Studio, chosen: Chosen, values: Values) -> Preview | None:
    """The preview under a level that this model is known to have, else as in the data; asked for where it is new."""
    dataset, model = chosen.dataset, chosen.model
    if dataset is None or model is None or not previews.possible(dataset, model):
        return None
    key = (dataset.id, model.id, level_of(session, chosen, values))
    preview, new = previews.ask(session, *key)
    if new:
        when_over(session, committed=lambda: _send(studio, key))
    return preview


def _send(studio: Studio, key: tuple[str, str, str]) -> None:
    send_prepare(studio.celery, "preview", *key)


def found(session: Session, chosen: Chosen, values: Values) -> Preview | None:
    """The same preview as far as it is there."""
    if chosen.dataset is None or chosen.model is None or not previews.possible(chosen.dataset, chosen.model):
        return None
    return previews.get(session, chosen.dataset.id, chosen.model.id, level_of(session, chosen, values))


def level_of(session: Session, chosen: Chosen, values: Values) -> str:
    """The level that is set, where this model has it; else as in the data."""
    told = str(values.get(LEVEL) or "")
    return told if told and told in known(session, chosen) else ""


def known(session: Session, chosen: Chosen) -> list[str]:
    """The levels that the model was found to have, besides its default."""
    if chosen.dataset is None or chosen.model is None:
        return []
    first = previews.get(session, chosen.dataset.id, chosen.model.id)
    return previews.levels(first.survey if first else None)


def level_choice(session: Session, chosen: Chosen, values: Values) -> Any:
    """The levels to choose from; hidden where there is no choice or no such setting."""
    names = known(session, chosen)
    if not names or LEVEL not in values:
        return gr.update(visible=False)
    told = level_of(session, chosen, values)
    return gr.update(visible=True, value=told, choices=[(text("learn.level_data"), ""), *((one, one) for one in names)])


def waits(preview: Preview | None) -> bool:
    """Whether it is being made."""
    return preview is not None and preview.status == "waiting"


def pace(preview: Preview | None) -> float:
    """Seconds from one look to the next: often while a preview is about to come, seldom once it takes its time."""
    soon = waits(preview) and preview is not None and now() - preview.asked_at < SOON
    return SOON_SECONDS if soon else POLL_SECONDS


def mark(preview: Preview | None) -> str:
    """Changes whenever there is more of it to see."""
    return f"{preview.level} {preview.status} {preview.rows is not None}" if preview is not None else ""
