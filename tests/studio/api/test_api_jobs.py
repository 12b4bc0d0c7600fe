"""What a job may ask for, how it becomes a spec, and what is refused with which field."""

import pytest

from engine.spec import Data, RunSpec
from studio.api.openai_jobs import JobRequest, spec_of, split_batch, used_method

PLAIN = RunSpec(model="m", data=Data(dataset="file-1"))


def asked(**values):
    return spec_of(JobRequest(model="m", training_file="file-1", **values), PLAIN)


def test_auto_takes_what_the_studio_suggests():
    spec = asked(hyperparameters={"n_epochs": "auto", "batch_size": "auto", "learning_rate_multiplier": "auto"})
    assert spec == PLAIN


def test_hyperparameters_land_in_their_settings():
    spec = asked(
        hyperparameters={"n_epochs": 4, "batch_size": 6, "learning_rate_multiplier": 0.5}, seed=9, suffix="a/b"
    )
    assert spec.training.num_train_epochs == 4
    assert spec.training.per_device_train_batch_size * spec.training.gradient_accumulation_steps == 6
    assert spec.optimizer.learning_rate == pytest.approx(1e-4)
    assert (spec.training.seed, spec.name) == (9, "a/b")


def test_the_method_wins_over_the_older_place():
    method = {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 2}}}
    assert asked(hyperparameters={"n_epochs": 9}, method=method).training.num_train_epochs == 2


def test_a_preference_job_has_its_own_settings_and_tells_them():
    method = {"type": "dpo", "dpo": {"hyperparameters": {"n_epochs": 2, "beta": 0.3}}}
    spec = asked(method=method)
    assert (spec.method.type, spec.method.beta, spec.training.num_train_epochs) == ("dpo", 0.3, 2)
    assert used_method(spec).dpo.hyperparameters.beta == 0.3


@pytest.mark.parametrize(
    ("batch", "fits", "expected"), [(6, 4, (3, 2)), (8, 4, (4, 2)), (7, 4, (1, 7)), (2, 4, (2, 1)), (1, 1, (1, 1))]
)
def test_a_batch_is_split_into_what_fits_and_what_is_accumulated(batch, fits, expected):
    assert tuple(split_batch(batch, fits).values()) == expected


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"validation_file": "file-2"}, "validation_file"),
        ({"method": {"type": "reinforcement"}}, "method.type"),
        ({"method": {"type": "dpo", "dpo": {"hyperparameters": {"beta": 0}}}}, "method.dpo.hyperparameters.beta"),
        ({"integrations": [{"type": "wandb"}]}, "integrations"),
        ({"hyperparameters": {"n_epochs": 0}}, "hyperparameters.n_epochs"),
        ({"hyperparameters": {"n_epochs": "many"}}, "hyperparameters.n_epochs"),
        ({"hyperparameters": {"lr": 1}}, "hyperparameters.lr"),
        ({"seed": -1}, "seed"),
        ({"suffix": "x" * 65}, "suffix"),
        ({"metadata": {"a": "x" * 513}}, "metadata.a"),
        ({"surprise": 1}, "surprise"),
        ({"training_file": "file-0000000000000000"}, "training_file"),
        ({"model": "../../etc"}, "model"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(client, model, file_id, change, param):
    answer = client.post("/v1/fine_tuning/jobs", json={"model": model, "training_file": file_id} | change)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert set(error) == {"message", "type", "param", "code"}


def test_a_job_waits_for_a_file_that_is_not_read_through(client, model, file_id):
    job = client.post("/v1/fine_tuning/jobs", json={"model": model, "training_file": file_id}).json()
    assert job["status"] == "validating_files"


def test_a_job_of_a_checked_file_is_queued_with_settings_that_fit_it(client, model, checked_file_id):
    job = client.post("/v1/fine_tuning/jobs", json={"model": model, "training_file": checked_file_id}).json()
    assert job["status"] == "queued"
    assert job["hyperparameters"]["n_epochs"] == 5  # twenty rows are seen more often
    spec = client.get(f"/v1/runs/{job['id']}").json()["spec"]
    assert spec["data"]["max_length"] == 512


def test_a_queued_job_is_cancelled_at_once_and_twice(client, model, file_id):
    job = client.post("/v1/fine_tuning/jobs", json={"model": model, "training_file": file_id}).json()
    for _ in range(2):
        answer = client.post(f"/v1/fine_tuning/jobs/{job['id']}/cancel")
        assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")


@pytest.mark.parametrize("after", ["run-1.5", "nonsense", "x.9999999999999999999999", "x."])
def test_a_strange_cursor_of_events_is_refused(client, model, file_id, after):
    job = client.post("/v1/fine_tuning/jobs", json={"model": model, "training_file": file_id}).json()
    answer = client.get(f"/v1/fine_tuning/jobs/{job['id']}/events", params={"after": after})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "after")


@pytest.mark.parametrize("path", ["", "/events", "/checkpoints"])
def test_an_unknown_job_is_not_found(client, path):
    answer = client.get(f"/v1/fine_tuning/jobs/run-0000000000000000{path}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
