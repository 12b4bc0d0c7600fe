"""Messages: whole or absent, one reader each, and a broker that is down costs a moment and loses nothing."""

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from kombu import Connection

from studio import runs
from studio.context import make_studio
from studio.db.tables import Run
from studio.queue import PREPARE, RUNS, make_celery, send_prepare, send_run


def received(celery, queue):
    """Every waiting message of a queue, as (task, arguments)."""
    found = []
    with celery.connection_for_read() as connection:
        consumer = connection.SimpleQueue(celery.amqp.queues[queue])
        while True:
            try:
                message = consumer.get(block=True, timeout=0.5)
            except consumer.Empty:
                return found
            message.ack()
            assert message.content_type == "application/json"
            found.append((message.headers["task"], json.loads(message.body)[0]))


def test_a_message_is_a_task_and_an_id_and_goes_to_its_queue(both, ready):
    spec = ready(both)
    with both.session() as session:
        run = runs.create(session, spec)
    with both.session() as session:
        stored = session.get_one(Run, run.id)
        assert send_run(both.celery, session, stored)
        assert stored.sent_at is not None
    assert send_prepare(both.celery, "check_dataset", "file-1")
    assert send_prepare(both.celery, "convert_starter")
    assert received(both.celery, RUNS) == [("atelier.train", [run.id])]
    assert received(both.celery, PREPARE) == [("atelier.check_dataset", ["file-1"]), ("atelier.convert_starter", [])]


@pytest.mark.parametrize("url", ["redis://127.0.0.1:9/0", ""])
def test_a_broker_that_is_down_is_told_within_seconds(settings, url):
    studio = make_studio(settings.model_copy(update={"broker_url": url}))
    if not url:
        settings.broker_dir.write_text("a file in the way of the queue's folder")
    began = time.monotonic()
    assert send_prepare(studio.celery, "check_dataset", "file-1") is False
    assert time.monotonic() - began < 3
    studio.close()


def test_a_celery_app_is_made_without_any_connection(settings):
    began = time.monotonic()
    app = make_celery(settings.model_copy(update={"broker_url": "redis://192.0.2.1:6379/0"}))
    assert time.monotonic() - began < 1
    assert list(app.conf.accept_content) == ["json"]
    assert app.conf.task_ignore_result


def test_of_many_readers_of_the_folder_each_message_has_one(studio):
    count = 60
    for number in range(count):
        assert send_prepare(studio.celery, "check_dataset", f"file-{number}")
    (studio.settings.broker_dir / "1_broken.prepare.msg").write_text("{half")
    (studio.settings.broker_dir / ".2_growing.prepare.msg").write_text("{half")
    with ThreadPoolExecutor(6) as pool:
        found = [entry for answer in pool.map(lambda _: received(studio.celery, PREPARE), range(6)) for entry in answer]
    assert sorted(arguments[0] for _task, arguments in found) == sorted(f"file-{number}" for number in range(count))


def test_the_folder_broker_counts_and_forgets(studio):
    for _ in range(3):
        send_prepare(studio.celery, "convert_starter")
    with studio.celery.connection_for_read() as connection:
        assert isinstance(connection, Connection)
        with connection.SimpleQueue(studio.celery.amqp.queues[PREPARE]) as queue:
            assert queue.qsize() == 3
            assert queue.clear() == 3
            assert queue.qsize() == 0
