"""The Train page asks for the preview of what is chosen, and offers the levels that the model has."""

from collections.abc import Callable

import pytest

from engine.spec import RunSpec
from studio import previews
from studio.context import Studio
from studio.db.tables import Dataset, Model, Preview
from studio.queue import PREPARE
from studio.ui.pages import train_learning as learning
from studio.ui.views.train import Chosen

Key = tuple[str, str]


@pytest.fixture
def key(studio: Studio, ready: Callable[[Studio], RunSpec]) -> Key:
    spec = ready(studio)
    return spec.data.dataset, spec.model


def sent(studio: Studio) -> int:
    """Messages that wait for a worker."""
    with (
        studio.celery.connection_for_read() as connection,
        connection.SimpleQueue(studio.celery.amqp.queues[PREPARE]) as queue,
    ):
        return int(queue.qsize())


def look(studio: Studio, key: Key, level: str = "") -> Preview | None:
    with studio.session() as session:
        chosen = Chosen(session.get(Dataset, key[0]), session.get(Model, key[1]))
        return learning.preview_of(session, studio, chosen, {learning.LEVEL: level})


def test_the_preview_is_asked_for_once_and_sent_after_the_commit(studio: Studio, key: Key) -> None:
    first, second = look(studio, key), look(studio, key)
    assert first is not None
    assert second is not None
    assert (first.status, second.level) == ("waiting", "")
    assert sent(studio) == 1
    assert learning.pace(first) == learning.SOON_SECONDS


def test_rows_that_are_no_chats_or_texts_have_none(studio: Studio, key: Key) -> None:
    with studio.session() as session:
        session.get_one(Dataset, key[0]).kind = "preference"
    assert look(studio, key) is None
    assert sent(studio) == 0


def test_levels_are_offered_once_they_are_known(studio: Studio, key: Key) -> None:
    look(studio, key)
    unknown = look(studio, key, "low")
    assert unknown is not None
    assert unknown.level == ""
    with studio.session() as session:
        made = previews.get(session, *key)
        assert made is not None
        made.status, made.survey = "ready", {"levels": [{"name": "default"}, {"name": "low"}, {"name": "high"}]}
    low = look(studio, key, "low")
    assert low is not None
    assert (low.level, low.status) == ("low", "waiting")
    assert sent(studio) == 2
    with studio.session() as session:
        chosen = Chosen(session.get(Dataset, key[0]), session.get(Model, key[1]))
        shown = learning.level_choice(session, chosen, {learning.LEVEL: "low"})
        assert (shown["value"], [value for _, value in shown["choices"]]) == ("low", ["", "low", "high"])
        assert learning.level_choice(session, chosen, {})["visible"] is False
