"""The official client, from an upload to a finished job, against a live server with a worker beside it."""

import io
import time
import zipfile

import httpx
import openai
import pytest

from studio.db.tables import RunEvent

FINAL = {"succeeded", "failed", "cancelled"}
CHAT = b'{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}\n' * 20


@pytest.fixture
def ai(live):
    with openai.OpenAI(base_url=f"{live}/v1", api_key="none needed", max_retries=0) as client:
        yield client


def upload(ai, content=CHAT, name="rows.jsonl"):
    return ai.files.create(file=(name, content), purpose="fine-tune")


def finished(ai, job_id, patience=30.0):
    until = time.monotonic() + patience
    while (job := ai.fine_tuning.jobs.retrieve(job_id)).status not in FINAL:
        assert time.monotonic() < until, job
        time.sleep(0.05)
    return job


def test_a_script_goes_from_an_upload_to_an_adapter(ai, live, model, working):
    file = upload(ai)
    job = ai.fine_tuning.jobs.create(
        model=model,
        training_file=file.id,
        suffix="my helper",
        seed=7,
        metadata={"team": "red"},
        method={
            "type": "supervised",
            "supervised": {"hyperparameters": {"n_epochs": 2, "batch_size": 6, "learning_rate_multiplier": 1.8}},
        },
    )
    assert job.object == "fine_tuning.job"
    assert job.status in {"validating_files", "queued", "running"}
    assert (job.training_file, job.seed, job.suffix, job.metadata) == (file.id, 7, "my helper", {"team": "red"})

    job = finished(ai, job.id)
    assert job.status == "succeeded"
    assert job.error is None
    assert job.finished_at >= job.created_at
    assert job.estimated_finish is None
    assert job.trained_tokens == 2  # five a pass, half a pass
    used = job.hyperparameters
    assert (used.n_epochs, used.batch_size, used.learning_rate_multiplier) == (2, 6, 1.8)
    assert job.method.supervised.hyperparameters.model_dump() == used.model_dump()

    metrics = ai.files.content(job.result_files[0]).text.splitlines()
    assert metrics[0] == "step,train_loss,valid_loss,learning_rate,grad_norm,tokens_per_second"
    assert metrics[5] == "5,2.95,2.5,0.0001,1.0,1000.0"
    assert ai.files.retrieve(job.result_files[0]).purpose == "fine-tune-results"

    tuned = ai.models.retrieve(job.fine_tuned_model)
    assert tuned.id == job.id
    answer = httpx.get(f"{live}/v1/adapters/{job.id}")
    assert answer.headers["content-disposition"] == f'attachment; filename="my-helper-{job.id[4:10]}.zip"'
    names = zipfile.ZipFile(io.BytesIO(answer.content)).namelist()
    assert f"{job.id}-adapter/adapter_config.json" in names


def test_events_are_read_page_by_page(ai, model, working):
    job = finished(ai, ai.fine_tuning.jobs.create(model=model, training_file=upload(ai).id).id)
    events = list(ai.fine_tuning.jobs.list_events(job.id, limit=2))
    assert len(events) == 9
    assert events[0].message == "The job has succeeded"
    assert events[-1].message == "Loading model: fake"
    metrics = [event for event in events if event.type == "metrics"]
    assert [event.data["step"] for event in metrics] == [5, 5, 4, 3, 2, 1]
    assert metrics[0].message == "Step 5: validation loss=2.5000"
    assert len({event.id for event in events}) == len(events)


def test_checkpoints_are_told_with_the_losses_before_them(ai, studio, model, working):
    job = finished(ai, ai.fine_tuning.jobs.create(model=model, training_file=upload(ai).id).id)
    with studio.session() as session:
        for number, what in enumerate(("checkpoint", "adapter", "checkpoint")):
            data = {"kind": "saved", "step": 3 + number, "what": what, "path": "p", "bytes": 1}
            session.add(
                RunEvent(run_id=job.id, offset=10**6 + number, kind="saved", step=3 + number, time=1.0, data=data)
            )
    found = list(ai.fine_tuning.jobs.checkpoints.list(job.id, limit=1))
    assert [checkpoint.step_number for checkpoint in found] == [5, 3]
    assert found[1].metrics.train_loss == 2.97
    assert found[1].fine_tuning_job_id == job.id


def test_files_are_listed_read_and_removed(ai, working):
    files = [upload(ai, name=f"rows {number}.jsonl") for number in range(3)]
    done = ai.files.wait_for_processing(files[0].id, poll_interval=0.05)
    assert done.status == "processed"
    assert ai.files.content(files[0].id).read() == CHAT
    assert [file.id for file in ai.files.list(limit=2)] == [file.id for file in reversed(files)]
    assert [file.id for file in ai.files.list(limit=2, order="asc")] == [file.id for file in files]
    assert ai.files.delete(files[0].id).deleted
    with pytest.raises(openai.NotFoundError):
        ai.files.retrieve(files[0].id)
    assert len(list(ai.files.list())) == 2


def test_a_file_without_usable_rows_is_an_error_with_a_reason(ai, model, working):
    file = upload(ai, b'{"nothing": 1}\n')
    file = ai.files.wait_for_processing(file.id, poll_interval=0.05)
    assert file.status == "error"
    assert "row 1" in file.status_details
    with pytest.raises(openai.BadRequestError) as refused:
        ai.fine_tuning.jobs.create(model=model, training_file=file.id)
    assert refused.value.param == "training_file"


def test_a_running_job_is_paused_resumed_and_cancelled(ai, model, working):
    job = ai.fine_tuning.jobs.create(model=model, training_file=upload(ai).id, suffix="long")
    reach(ai, job.id, "running")
    ai.fine_tuning.jobs.pause(job.id)
    reach(ai, job.id, "paused")
    ai.fine_tuning.jobs.resume(job.id)
    reach(ai, job.id, "running")
    ai.fine_tuning.jobs.cancel(job.id)
    reach(ai, job.id, "cancelled")
    assert ai.fine_tuning.jobs.cancel(job.id).status == "cancelled"
    with pytest.raises(openai.ConflictError):
        ai.fine_tuning.jobs.resume(job.id)


def reach(ai, job_id, status, patience=30.0):
    until = time.monotonic() + patience
    while (job := ai.fine_tuning.jobs.retrieve(job_id)).status != status:
        assert time.monotonic() < until, job
        time.sleep(0.05)


def test_a_failed_job_says_why(ai, model, working):
    job = ai.fine_tuning.jobs.create(model=model, training_file=upload(ai).id, suffix="refuse")
    job = finished(ai, job.id)
    assert job.status == "failed"
    assert (job.error.code, job.error.message) == ("no_rows", "0 of 9 rows can be used. Mend the rows.")
    assert job.fine_tuned_model is None
    assert job.result_files == []
    assert ai.fine_tuning.jobs.list_events(job.id).data[0].level == "error"


def test_jobs_are_listed_newest_first_page_by_page(ai, model):
    file = upload(ai)
    made = [ai.fine_tuning.jobs.create(model=model, training_file=file.id).id for _ in range(5)]
    first = ai.fine_tuning.jobs.list(limit=2)
    assert first.has_more
    assert [job.id for job in ai.fine_tuning.jobs.list(limit=2)] == made[::-1]
    assert not ai.fine_tuning.jobs.list(after=made[0]).data


def test_the_password_is_the_api_key(tmp_path, live_with_password):
    with openai.OpenAI(base_url=f"{live_with_password}/v1", api_key="wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError) as refused:
            client.models.list()
        assert refused.value.code == "invalid_api_key"
    with openai.OpenAI(base_url=f"{live_with_password}/v1", api_key="open sesame", max_retries=0) as client:
        assert client.models.list().data == []
