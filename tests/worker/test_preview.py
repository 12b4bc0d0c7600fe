"""Previews on both databases: made once, sent again when lost, gone with what they are of."""

from datetime import timedelta

import pytest
from sqlalchemy import func, select

from studio import datasets, models, previews
from studio.db.tables import Dataset, Model, Preview, now
from studio.previews import Key, Way
from tests.services import wait_until
from worker import preview
from worker.keeper import preparations

TOKENS = [("prompt", "user", False, "hi"), ("cue", "template", False, "\n"), ("answer", "assistant", True, "yo")]


@pytest.fixture
def asked(both, ready):
    """A waiting preview's key."""
    spec = ready(both)
    key = Key(spec.data.dataset, spec.model)
    with both.session() as session:
        assert previews.ask(session, key)[1]
    return key


def way(key, **settings):
    """The same rows, rendered another way."""
    return key._replace(way=Way(**settings).key)


def stored(studio, key):
    with studio.session() as session:
        return previews.get(session, key)


def tokens(count):
    return [
        {"id": n, "text": text, "role": role, "turn": 1, "kind": kind, "trained": trained}
        for n in range(count)
        for kind, role, trained, text in TOKENS
    ]


def test_a_preview_is_asked_for_once_whoever_asks(both, asked):
    with both.session() as one:
        assert [previews.ask(one, asked)[1] for _ in range(2)] == [False, False]
    with both.session() as session:
        assert previews.ask(session, way(asked, level="low"))[1]
        assert session.scalar(select(func.count()).select_from(Preview)) == 2


def test_a_failed_preview_is_tried_again_after_a_while(both, asked):
    for age, again in ((1, False), (60, True)):
        with both.session() as session:
            row = session.get_one(Preview, tuple(asked))
            row.status, row.error, row.asked_at = "failed", "why", now() - timedelta(seconds=age)
        with both.session() as session:
            assert previews.ask(session, asked)[1] == again
    assert (stored(both, asked).status, stored(both, asked).error) == ("waiting", "")


def test_a_worker_makes_the_preview_with_the_engine(bench, asked):
    preview.once(bench, asked)
    made = stored(bench.studio, asked)
    assert (made.status, made.error) == ("ready", "")
    assert [one["kind"] for one in made.rows[0]["samples"][0]["spans"]] == ["prompt", "answer"]
    assert previews.kept(made.survey, 512) == previews.Kept(20, 40, 100, 0, 0, 0, 5)
    bench.inspector.ask = None  # it is not asked again
    preview.once(bench, asked)


def test_what_the_engine_refuses_is_the_previews_error(bench, asked):
    with bench.studio.session() as session:
        assert previews.ask(session, way(asked, level="never"))[1]
    preview.once(bench, way(asked, level="never"))
    failed = stored(bench.studio, way(asked, level="never"))
    assert (failed.status, failed.error) == ("failed", "This model has no level “never”. Its levels are: low.")


def test_a_preview_of_what_cannot_be_used_any_more_fails_at_once(bench, asked):
    with bench.studio.session() as session:
        session.get_one(Dataset, asked[0]).status = "unusable"
    preview.once(bench, asked)
    assert stored(bench.studio, asked).status == "failed"


def test_a_lost_message_is_sent_again(both, asked, start_worker):
    with both.session() as session:
        assert preparations(session) == {asked.name: ("preview", (*asked[:3], "1"))}
    start_worker(both.settings, "prepare")
    wait_until(lambda: stored(both, asked).status == "ready", "the preview", 30)


def test_previews_go_with_their_dataset_or_model(both, asked, model_folder):
    with both.session() as session:
        models.add_folder(session, session.get_one(Model, asked[1]).path)
    assert stored(both, asked) is None
    with both.session() as session:
        previews.ask(session, asked)
    with both.session() as session:
        datasets.delete(session, both.storage, asked[0])
    assert stored(both, asked) is None


def test_spans_hold_tokens_of_one_kind_and_long_samples_lose_their_middle():
    row = {"row": 1, "samples": [{"turn": 1, "side": "", "tokens": tokens(1)}], "warnings": [], "refusals": []}
    [short] = preview.compact([row])
    assert [(one["kind"], one["ids"], one["texts"]) for one in short["samples"][0]["spans"]] == [
        ("prompt", [0], ["hi"]),
        ("cue", [0], ["\n"]),
        ("answer", [0], ["yo"]),
    ]
    [long] = preview.compact([row | {"samples": [{"turn": 1, "side": "", "tokens": tokens(1000)}]}])
    spans = long["samples"][0]["spans"]
    assert [one["left_out"] for one in spans if "left_out" in one] == [3000 - preview.HEAD - preview.TAIL]
    assert sum(len(one.get("ids", ())) for one in spans) == preview.HEAD + preview.TAIL


def test_so_many_rows_are_kept_as_a_page_can_hold():
    row = {"row": 1, "samples": [{"turn": 1, "side": "", "tokens": tokens(400)}], "warnings": [], "refusals": []}
    assert len(preview.compact([row] * 20)) == preview.MOST_TOKENS // 1200
