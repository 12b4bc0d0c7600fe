"""Our own routes: runs with their spec, metrics, downloads; health, figures, docs, and errors in one shape."""

import io
import json
import time
import zipfile
from types import SimpleNamespace

import pytest
from sqlalchemy import text

from studio import packs, room
from studio.db.tables import Run, RunEvent


@pytest.fixture
def run_id(client, model, file_id):
    answer = client.post(
        "/v1/runs", json={"model": model, "data": {"dataset": file_id}, "name": "<b>first</b>", "lora": {"r": 4}}
    )
    assert answer.status_code == 200, answer.text
    return answer.json()["id"]


def test_a_run_takes_a_full_spec_and_tells_it(client, run_id):
    run = client.get(f"/v1/runs/{run_id}").json()
    assert (run["status"], run["name"], run["spec"]["lora"]["r"]) == ("queued", "<b>first</b>", 4)
    assert run["spec"]["data"]["sha256"]


def test_every_fault_of_a_spec_is_named_with_its_field(client):
    answer = client.post(
        "/v1/runs", json={"data": {"dataset": "x", "nope": 1}, "lora": {"r": 0}, "training": {"max_steps": 0}}
    )
    error = answer.json()["error"]
    assert answer.status_code == 400
    for field in ("model:", "data.nope:", "lora.r:", "training.max_steps:"):
        assert field in error["message"]


def test_a_run_that_failed_is_retried_with_other_settings(client, studio, run_id):
    assert client.post(f"/v1/runs/{run_id}/retry").status_code == 409
    change = {"settings": {"lora.r": 2}, "effect": "half the adapter"}
    with studio.session() as session:
        run = session.get_one(Run, run_id)
        run.status, run.error = "failed", {"code": "out_of_memory", "message": "Full.", "changes": [change]}
    answer = client.post(f"/v1/runs/{run_id}/retry").json()
    assert answer["status"] == "queued"
    assert answer["spec"]["lora"]["r"] == 2


def test_runs_are_filtered_and_paged(client, model, file_id, run_id):
    other = client.post("/v1/runs", json={"model": model, "data": {"dataset": file_id}, "name": "second"}).json()["id"]
    ids = [run["id"] for run in client.get("/v1/runs").json()["data"]]
    assert ids == [other, run_id]
    page = client.get("/v1/runs", params={"limit": 1}).json()
    assert (page["has_more"], page["last_id"]) == (True, other)
    assert client.get("/v1/runs", params={"limit": 1, "after": other}).json()["data"][0]["id"] == run_id
    assert [run["id"] for run in client.get("/v1/runs", params={"text": "SEC"}).json()["data"]] == [other]
    assert client.get("/v1/runs", params={"status": "running"}).json()["data"] == []
    assert client.get("/v1/runs", params={"status": "asleep"}).json()["error"]["param"] == "status.0"


def test_metrics_of_ten_thousand_steps_come_fast_and_in_parts(client, studio, run_id):
    steps = [
        {"run_id": run_id, "offset": 100 * n, "kind": "step", "step": n, "time": 1.0 * n, "data": step(n)}
        for n in range(1, 10_001)
    ]
    with studio.session() as session:
        session.execute(RunEvent.__table__.insert(), steps)
        packs.pack(session, run_id)
    began = time.perf_counter()
    points = client.get(f"/v1/runs/{run_id}/metrics").json()
    assert time.perf_counter() - began < 1.0  # 0.2 s on a quiet machine; the bound here only catches a change of order
    assert len(points["step"]) == len(points["loss"]) == 10_000
    assert points["loss"][4] is None
    rest = client.get(f"/v1/runs/{run_id}/metrics", params={"after": 999_000}).json()
    assert rest["step"] == list(range(9_991, 10_001))
    part = client.get(f"/v1/runs/{run_id}/curve", params={"key": "loss", "start": 100, "end": 200}).json()
    assert (part["points"], part["x"][0], len(part["y"])) == (103, 99, 103)
    unknown = client.get(f"/v1/runs/{run_id}/curve", params={"key": "password"})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "not_found")
    nowhere = client.get(f"/v1/runs/{run_id}/curve", params={"key": "loss", "start": "nan"})
    assert nowhere.status_code == 400
    assert client.get(f"/v1/runs/{run_id}/metrics", params={"after": -1}).json()["error"]["param"] == "after"


def step(n):
    loss = None if n == 5 else 1.0 / n
    return {"kind": "step", "step": n, "epoch": n / 100, "loss": loss, "learning_rate": 1e-4, "memory": [], "time": 1.0}


def test_diagnostics_are_a_zip_without_secrets(client, studio, run_id):
    folder = studio.storage.run_dir(run_id)
    folder.path.mkdir(parents=True)
    folder.log.write_text("token=hf_abcdefghijkl\n")
    answer = client.get(f"/v1/runs/{run_id}/diagnostics")
    assert answer.headers["content-disposition"] == f'attachment; filename="{run_id}-diagnostics.zip"'
    archive = zipfile.ZipFile(io.BytesIO(answer.content))
    assert json.loads(archive.read(f"{run_id}-diagnostics/spec.json"))["lora"]["r"] == 4
    assert b"hf_abc" not in archive.read(f"{run_id}-diagnostics/log.txt")


def test_a_run_without_an_adapter_has_none_to_download(client, run_id):
    answer = client.get(f"/v1/adapters/{run_id}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "no_adapter")


def test_models_are_base_models_and_results(client, studio, model, run_id):
    with studio.session() as session:
        session.get_one(Run, run_id).status = "succeeded"
    listed = client.get("/v1/models").json()
    assert [(entry["id"], entry["object"]) for entry in listed["data"]] == [(model, "model"), (run_id, "model")]
    assert client.get(f"/v1/models/{run_id}").json()["parent"] == model
    assert client.get("/v1/models/some/where").status_code == 404


def test_healthz_answers_and_tells_of_a_lost_database(client, studio, settings):
    assert client.get("/healthz").json() == {"status": "ok", "database": "ok", "queue": "ok"}
    studio.engine.dispose()
    folder = settings.data_dir
    folder.rename(folder.with_name("moved"))
    answer = client.get("/healthz")
    assert (answer.status_code, answer.json()) == (503, {"status": "down"})
    folder.with_name("moved").rename(folder)


def test_figures_for_prometheus(client, run_id):
    told = client.get("/metrics").text
    assert 'atelier_runs{status="queued"} 1.0' in told
    assert "atelier_queue_length 1.0" in told
    assert 'atelier_workers{queue="runs"} 0.0' in told


def test_docs_are_complete_without_the_internet(client):
    page = client.get("/docs")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for word in (
        "/v1/fine_tuning/jobs",
        "/v1/adapters/{run_id}",
        "hyperparameters.n_epochs",
        "optimizer.learning_rate",
        "required",
    ):
        assert word in page.text
    for word in ("<script", "cdn", " src=", "@import", "url("):
        assert word not in page.text


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "PUT"])
def test_an_unknown_route_of_the_api_is_a_json_error(client, method):
    answer = client.request(method, "/v1/nothing/here")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_url")


@pytest.mark.parametrize(
    ("method", "path"), [("PUT", "/v1/files"), ("PATCH", "/v1/runs/run-1"), ("POST", "/v1/models")]
)
def test_a_method_that_a_route_does_not_have_is_named(client, method, path):
    answer = client.request(method, path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (405, "method_not_allowed")
    assert "GET" in answer.headers["Allow"]


def test_a_browser_that_is_lost_gets_a_page_and_a_program_json(client):
    page = client.get("/nope", headers={"Accept": "text/html"})
    assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert 'href="/runs"' in page.text
    assert client.get("/nope").headers["content-type"] == "application/json"


def test_broken_json_is_a_json_error(client):
    answer = client.post("/v1/runs", content=b"{", headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")


def test_a_large_body_is_refused_where_no_file_is_expected(client):
    answer = client.post("/v1/runs", content=b" " * 2**25, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")


def test_a_database_out_of_reach_is_a_503_without_details(client, studio):
    with studio.session() as session:
        session.execute(text("ALTER TABLE runs RENAME TO gone"))
    answer = client.get("/v1/runs")
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "server_error")
    assert "SELECT" not in answer.text


@pytest.mark.parametrize(("body", "words"), [("{bad", "not valid JSON"), ("[]", "must be a JSON object")])
def test_a_body_that_is_no_object_is_told_in_words(client, body, words):
    error = client.post("/v1/runs", content=body, headers={"content-type": "application/json"}).json()["error"]
    assert words in error["message"]
    assert error["param"] is None


def test_a_run_that_the_disk_has_no_room_for_is_refused_with_what_to_do(client, model, file_id, monkeypatch):
    monkeypatch.setattr(room.shutil, "disk_usage", lambda _: SimpleNamespace(free=2**20))
    answer = client.post("/v1/runs", json={"model": model, "data": {"dataset": file_id}})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "disk_full"
    assert client.get("/v1/runs").json()["data"] == []
