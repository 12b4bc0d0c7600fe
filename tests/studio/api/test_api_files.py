"""Uploads: what is stored, what is refused, and that nothing stays behind."""

import pytest
from starlette.testclient import TestClient

from studio.app import build_api
from studio.db.migrate import upgrade
from studio.settings import Settings

ADDRESS = "http://127.0.0.1:7860"
ROW = b'{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'


@pytest.fixture
def small(tmp_path):
    """A studio that takes 1 MiB and no more."""
    settings = Settings(data_dir=tmp_path / "small", max_upload_mib=1)
    upgrade(settings)
    with TestClient(build_api(settings), base_url=ADDRESS) as client:
        yield client


def post(client, content, name="rows.jsonl", purpose="fine-tune"):
    return client.post("/v1/files", files={"file": (name, content)}, data={"purpose": purpose})


@pytest.mark.parametrize(
    "name", ["../../etc/passwd.jsonl", "a/b\\c.jsonl", "🦊.jsonl", "x" * 400 + ".jsonl", "<script>.jsonl"]
)
def test_a_name_is_a_label_and_never_a_path(client, studio, name):
    file = post(client, ROW, name).json()
    assert file["id"].startswith("file-")
    assert len(file["filename"]) <= 300
    assert "/" not in file["filename"]
    stored = [path.relative_to(studio.storage.data_dir).parts[:2] for path in studio.storage.data_dir.rglob("data.*")]
    assert stored == [("datasets", file["id"])]
    assert client.get(f"/v1/files/{file['id']}/content").headers["content-disposition"].startswith("attachment")


def test_the_same_name_twice_is_two_files(client):
    assert post(client, ROW).json()["id"] != post(client, ROW).json()["id"]


@pytest.mark.parametrize(
    ("content", "name", "word"),
    [
        (b"", "rows.jsonl", "empty"),
        (b"\x00\x01\x02" * 99, "rows.jsonl", "rows.jsonl"),
        (b"PK\x03\x04zip", "rows.csv", "zip"),
    ],
)
def test_a_file_that_is_no_data_is_refused_with_a_reason(client, studio, content, name, word):
    answer = post(client, content, name)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "file")
    assert word in answer.json()["error"]["message"]
    assert not list((studio.storage.data_dir / "datasets").iterdir())
    assert not list(studio.storage.incoming.iterdir())


def test_other_purposes_are_refused(client):
    answer = post(client, ROW, purpose="batch")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "purpose")


def test_a_missing_file_names_the_field(client):
    answer = client.post("/v1/files", data={"purpose": "fine-tune"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "file")


def test_a_file_above_the_limit_is_refused_while_it_is_stored(small):
    answer = post(small, ROW * 13_000)  # 1.1 MiB: less than limit and form together
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")


def test_an_upload_that_announces_too_much_is_refused_unread(small):
    answer = post(small, b"x" * 3 * 2**20)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")


def test_an_upload_that_hides_its_size_is_cut_off(small):
    def body():
        yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'
        for _ in range(64):
            yield b"x" * 2**16
        yield b"\r\n--x--\r\n"

    answer = small.post("/v1/files", content=body(), headers={"Content-Type": "multipart/form-data; boundary=x"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")


def test_a_file_that_a_waiting_run_needs_stays(client, model, file_id):
    client.post("/v1/fine_tuning/jobs", json={"model": model, "training_file": file_id})
    answer = client.delete(f"/v1/files/{file_id}")
    assert (answer.status_code, answer.json()["error"]["type"]) == (409, "invalid_request_error")
    assert client.get(f"/v1/files/{file_id}").status_code == 200


@pytest.mark.parametrize(
    "file_id", ["file-0000000000000000", "..%2f..%2fatelier.sqlite", "results-run-0000000000000000"]
)
def test_an_unknown_file_is_not_found(client, file_id):
    for path in (f"/v1/files/{file_id}", f"/v1/files/{file_id}/content"):
        assert client.get(path).status_code == 404
