"""What will be learned is asked for page by page, with the levels and the bridge that the model has."""

from collections.abc import Callable
from typing import Any

import pytest

from engine.spec import RunSpec
from studio import previews
from studio.context import Studio
from studio.db.tables import Dataset, Model, Preview
from studio.defaults import suggest
from studio.previews import Key, Way
from studio.queue import PREPARE
from studio.ui.pages import learning
from studio.ui.views import learning as views


@pytest.fixture
def key(studio: Studio, ready: Callable[[Studio], RunSpec]) -> Key:
    spec = ready(studio)
    return Key(spec.data.dataset, spec.model)


def sent(studio: Studio) -> int:
    """Messages that wait for a worker."""
    with (
        studio.celery.connection_for_read() as connection,
        connection.SimpleQueue(studio.celery.amqp.queues[PREPARE]) as queue,
    ):
        return int(queue.qsize())


def look(studio: Studio, key: Key, **more: Any) -> learning.Looked:
    with studio.session() as session:
        subject = learning.Subject(session.get(Dataset, key.dataset_id), session.get(Model, key.model_id), **more)
        return learning.look(session, subject, studio)


def finish(studio: Studio, key: Key, rows: list[int], **survey: Any) -> None:
    """What a worker would store."""
    with studio.session() as session:
        made = previews.get(session, key)
        assert made is not None
        made.status, made.survey = "ready", survey or None
        made.rows = [{"row": number, "samples": [], "raw": {}, "problems": []} for number in rows]


def test_the_preview_is_asked_for_once_and_sent_after_the_commit(studio: Studio, key: Key) -> None:
    first, second = look(studio, key), look(studio, key)
    assert first.waits
    assert first.mark == second.mark == "{} 1 waiting False {} 1 waiting False"
    assert sent(studio) == 1
    assert first.pace == learning.SOON_SECONDS


def test_rows_of_no_known_kind_have_none(studio: Studio, key: Key) -> None:
    with studio.session() as session:
        session.get_one(Dataset, key.dataset_id).kind = ""
    assert look(studio, key) == learning.Looked()
    assert sent(studio) == 0


LEVELS = [
    {"name": "default", "thinks": True},
    {"name": "low", "thinks": True, "prompt_text": "Reasoning:  low\n"},
    {"name": "off", "thinks": False, "prompt_text": ""},
]


def test_levels_are_offered_with_what_they_do_once_they_are_known(studio: Studio, key: Key) -> None:
    low = Way(level="low")
    assert look(studio, key, way=low).way.level == ""
    finish(studio, key, [1], levels=LEVELS)
    looked = look(studio, key, way=low)
    assert looked.first is not None
    assert (looked.first.way, looked.first.status) == ('{"level":"low"}', "waiting")
    assert sent(studio) == 2
    shown = learning.level_choice(looked)
    assert (shown["value"], [value for _, value in shown["choices"]]) == ("low", ["", "low", "off"])
    words = [name for name, _ in shown["choices"]]
    assert words[1:] == ["low · reasons before it answers, the prompt says “Reasoning: low”", "off · answers at once"]


def test_rows_beyond_the_first_are_a_page_of_their_own(studio: Studio, key: Key) -> None:
    with studio.session() as session:
        session.get_one(Dataset, key.dataset_id).rows = 50
    looked = look(studio, key, row=25)
    assert looked.page is not None
    assert (looked.page.row, sent(studio)) == (21, 2)
    finish(studio, key._replace(row=21), [21, 22])  # they were long: the page ends before row 25
    looked = look(studio, key, row=25)
    assert looked.page is not None
    assert (looked.page.row, sent(studio)) == (25, 3)


def test_turning_stays_within_the_file_and_a_bridge_is_agreed_to_once(studio: Studio, key: Key) -> None:
    with studio.session() as session:
        dataset, model = session.get_one(Dataset, key.dataset_id), session.get_one(Model, key.model_id)
        subject = learning.Subject(dataset, model)
        assert learning.acted(session, subject, "row", "9999999").row == dataset.rows
        assert learning.acted(session, subject, "row", "1; drop").row == 1
        assert learning.acted(session, subject, "level", "low").way.level == "low"
        assert learning.acted(session, subject, "bridge", "").way.bridge
    with studio.session() as session:
        dataset, model = session.get_one(Dataset, key.dataset_id), session.get_one(Model, key.model_id)
        assert suggest(dataset, model).data.bridge


def test_a_bridge_is_offered_with_its_text_and_a_level_asked_for_where_no_row_tells(key: Key) -> None:
    remark = {"code": "level_by_default", "rows": 12, "message": "How much?"}
    survey = {"bridge": {"opens": "<think>\n", "closes": "\n</think>\n\n"}, "warnings": [remark], "levels": LEVELS}
    first = Preview(way="{}", row=1, status="ready", survey=survey)
    asked = views.asks(first, Way(), LEVELS[1:])
    assert "&lt;think&gt;" in asked
    assert 'data-action="bridge"' in asked
    assert "In 12 rows nothing tells" in asked
    assert asked.count('data-action="level"') == 2
    told = views.asks(first, Way(bridge=True, level="low"), LEVELS[1:])
    assert 'data-action="unbridge"' in told
    assert "nothing tells" not in told
