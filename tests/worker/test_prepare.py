"""Datasets checked, models described and converted, downloads that cannot be: each ends with a word for a person."""

import io
import time

import huggingface_hub
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import constants

from studio import datasets, models, runs, starter
from studio.db.tables import Dataset, Model
from studio.defaults import suggest
from studio.errors import Invalid
from studio.queue import send_prepare
from tests.conftest import ROWS
from tests.services import wait_until
from worker import fetch, prepare


def add(studio, content, filename="rows.jsonl"):
    with studio.session() as session:
        return datasets.add(session, studio.storage, studio.settings, stream=io.BytesIO(content), filename=filename).id


def stored(studio, table, key):
    with studio.session() as session:
        return session.get_one(table, key)


def test_a_good_dataset_becomes_ready_with_its_report(bench):
    dataset_id = add(bench.studio, ROWS + b'{"broken": \n')
    prepare.check_dataset(bench, dataset_id)
    dataset = stored(bench.studio, Dataset, dataset_id)
    assert (dataset.status, dataset.kind, dataset.rows, dataset.usable) == ("ready", "chat", 21, 20)
    report = datasets.report(dataset)
    assert report.problems[0].row == 21
    assert report.preview


@pytest.mark.parametrize(
    "content", [b'{"a": 1}\n{"b": "\x00"}\n', b'{"messages": []}\n', b'{"text": NaN, "x": "\\ud800"}\n']
)
def test_D10_a_dataset_without_a_usable_row_says_why(bench, content):
    dataset_id = (
        add(bench.studio, content)
        if b"\x00" not in content
        else add(bench.studio, content.replace(b"\x00", b"\\u0000"))
    )
    prepare.check_dataset(bench, dataset_id)
    dataset = stored(bench.studio, Dataset, dataset_id)
    assert dataset.status == "unusable"
    assert "0 of" in dataset.error


def test_a_dataset_whose_file_is_gone_becomes_unusable(bench):
    dataset_id = add(bench.studio, ROWS)
    bench.studio.storage.dataset_file(stored(bench.studio, Dataset, dataset_id)).unlink()
    prepare.check_dataset(bench, dataset_id)
    assert "gone" in stored(bench.studio, Dataset, dataset_id).error


def test_a_model_is_described_by_the_engine(bench, model_folder):
    with bench.studio.session() as session:
        model_id = models.add_folder(session, model_folder()).id
    prepare.check_model(bench, model_id)
    model = stored(bench.studio, Model, model_id)
    assert (model.status, model.error) == ("ready", "")
    assert models.facts(model).parameters == 15


def test_a_model_that_does_not_write_text_stays_refused_when_the_engine_can_load_it(bench, model_folder):
    with bench.studio.session() as session:
        model_id = models.add_folder(session, model_folder(architecture="BertForMaskedLM")).id
    prepare.check_model(bench, model_id)
    model = stored(bench.studio, Model, model_id)
    assert model.status == "unusable"
    assert "does not write text" in model.error


def test_a_model_that_the_engine_cannot_read_says_its_last_words(bench, model_folder):
    folder = model_folder()
    (folder / "broken").touch()
    with bench.studio.session() as session:
        model_id = models.add_folder(session, folder).id
    prepare.check_model(bench, model_id)
    model = stored(bench.studio, Model, model_id)
    assert model.status == "unusable"
    assert "broken on purpose" in model.error
    assert not models.facts(model).trainable


def test_the_starter_content_is_registered_once_and_converted_with_progress(bench, monkeypatch):
    studio = bench.studio
    monkeypatch.setattr(starter, "gguf_file", lambda: studio.storage.data_dir)  # as if it were installed
    starter.ensure(studio)
    starter.ensure(studio)
    model = stored(studio, Model, starter.MODEL_ID)
    assert (model.status, model.progress) == ("converting", 0.0)
    seen = []
    real = prepare._progress
    monkeypatch.setattr(prepare, "_progress", lambda b, key, share: (seen.append(share), real(b, key, share)))
    prepare.convert_starter(bench, starter.MODEL_ID)
    assert seen == [0.0, 0.25, 0.5, 0.75, 1.0]
    model = stored(studio, Model, starter.MODEL_ID)
    assert (model.status, model.progress) == ("ready", None)
    starter.ensure(studio)
    assert stored(studio, Model, starter.MODEL_ID).status == "ready"
    with studio.session() as session:
        shipped = [row for row in datasets.list_datasets(session) if row.source == "starter"]
        assert len({row.filename for row in shipped}) == len(shipped)


def test_the_rows_of_a_task_are_made_by_the_engine_and_checked(bench):
    with bench.studio.session() as session:
        dataset_id = datasets.add_tasks(session, " chain_sum ", 12).id
    prepare.fetch_dataset(bench, dataset_id)
    dataset = stored(bench.studio, Dataset, dataset_id)
    assert (dataset.status, dataset.kind, dataset.usable) == ("ready", "prompt", 12)
    assert (dataset.name, dataset.filename, dataset.source) == ("chain_sum", "chain_sum.jsonl", "tasks")
    assert list(bench.studio.storage.incoming.iterdir()) == []
    method = suggest(dataset, Model(id="m", facts={})).method
    assert (method.type, method.rewards) == ("grpo", {"reasoning_task": 1.0})


@pytest.mark.parametrize(("task", "reason"), [("no_such_task", "Choose another."), ("crash", "MemoryError: too many")])
def test_tasks_that_cannot_be_made_say_why(bench, task, reason):
    with bench.studio.session() as session:
        dataset_id = datasets.add_tasks(session, task).id
    prepare.fetch_dataset(bench, dataset_id)
    dataset = stored(bench.studio, Dataset, dataset_id)
    assert dataset.status == "unusable"
    assert reason in dataset.error


@pytest.mark.parametrize(("task", "rows"), [("../etc", 5), ("", 5), ("chain_sum", 0), ("chain_sum", 10**6)])
def test_what_is_no_task_is_refused_at_once(bench, task, rows):
    with bench.studio.session() as session, pytest.raises(Invalid):
        datasets.add_tasks(session, task, rows)


def test_downloads_say_at_once_that_there_is_no_hub(bench, monkeypatch):
    studio = bench.studio
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with studio.session() as session:
        model_id = models.add_hub(session, "org/name").id
        dataset_id = datasets.add_from_hub(session, "org/rows").id
    began = time.monotonic()
    prepare.fetch_model(bench, model_id)
    prepare.fetch_dataset(bench, dataset_id)
    assert time.monotonic() - began < 5
    for row in (stored(studio, Model, model_id), stored(studio, Dataset, dataset_id)):
        assert row.status == "unusable"
        assert "cannot be reached" in row.error
        assert "HF_HUB_OFFLINE" in row.error


def test_a_hub_that_does_not_answer_ends_the_download_with_a_sentence(bench, monkeypatch):
    studio = bench.studio
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with studio.session() as session:
        model_id = models.add_hub(session, "org/name").id
        dataset_id = datasets.add_from_hub(session, "org/rows").id
    prepare.fetch_model(bench, model_id)
    prepare.fetch_dataset(bench, dataset_id)
    for row in (stored(studio, Model, model_id), stored(studio, Dataset, dataset_id)):
        assert (row.status, "cannot be reached" in row.error) == ("unusable", True)


def test_U08_only_needed_files_are_fetched_and_counted():
    files = [
        ("model-00001-of-00002.safetensors", 100),
        ("model-00002-of-00002.safetensors", 90),
        ("model.safetensors.index.json", 3),
        ("consolidated.safetensors", 190),
        ("pytorch_model.bin", 190),
        ("onnx/model.onnx", 500),
        ("tokenizer.json", 5),
        ("config.json", 1),
        ("model-q4.gguf", 60),
        ("banner.png", 7),
    ]
    names = [name for name, _size in fetch.needed_files(files)]
    assert names == [
        "config.json",
        "model.safetensors.index.json",
        "tokenizer.json",
        "model-00002-of-00002.safetensors",
        "model-00001-of-00002.safetensors",
    ]
    assert fetch.needed_files([("model.safetensors", 1), ("adapter_model.safetensors", 1)]) == [
        ("model.safetensors", 1)
    ]
    assert fetch.needed_files([("weights.safetensors", 1)]) == [("weights.safetensors", 1)]
    shares = []
    bar = fetch._bar(shares.append, 50, 100)(total=50, unit="B", name="x")
    bar.update(25)
    bar.update(25)
    assert shares == [0.75, 1.0]


def test_a_split_is_chosen_from_what_the_dataset_has(tmp_path):
    names = ["default/train/0000.parquet", "default/train/0001.parquet", "default/test/0000.parquet", "README.md"]
    assert fetch.choose_converted(names, "", "train") == names[:2]
    with pytest.raises(Invalid, match="default/test, default/train"):
        fetch.choose_converted(names, "", "validation")
    with pytest.raises(Invalid, match="several subsets"):
        fetch.choose_converted(["a/train/0.parquet", "b/train/0.parquet"], "", "train")
    assert fetch.choose_own(["data/train.jsonl", "data/test.jsonl"], "train") == ["data/train.jsonl"]
    with pytest.raises(Invalid, match="No single file"):
        fetch.choose_own(["a.csv", "b.csv"], "train")
    for number in range(2):
        pq.write_table(pa.table({"text": [f"{number}"]}), tmp_path / f"{number}.parquet")
    joined = fetch._joined([tmp_path / "0.parquet", tmp_path / "1.parquet"], tmp_path / "joined.parquet")
    assert pq.read_table(joined).to_pylist() == [{"text": "0"}, {"text": "1"}]


def test_a_fetched_file_becomes_the_dataset(bench, tmp_path, monkeypatch):
    studio = bench.studio
    pq.write_table(pa.table({"text": ["eins", "zwei"]}), tmp_path / "0.parquet")
    monkeypatch.setattr(fetch, "_choose", lambda *_: ("c0ffee", ["0.parquet"]))
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_args, **_more: str(tmp_path / "0.parquet"))
    with studio.session() as session:
        dataset_id = datasets.add_from_hub(session, "org/rows").id
    prepare.fetch_dataset(bench, dataset_id)
    dataset = stored(studio, Dataset, dataset_id)
    assert (dataset.status, dataset.rows, dataset.filename) == ("ready", 2, "rows-train.parquet")
    assert dataset.origin["revision"] == "c0ffee"


def test_a_worker_prepares_what_was_sent_and_what_was_not(both, start_worker, model_folder, new_run, status_is):
    """The whole path: inputs still unchecked, a run that waits for them, both workers."""
    sent, lost = add(both, ROWS), add(both, ROWS)
    with both.session() as session:
        model_id = models.add_folder(session, model_folder("waits")).id
        spec = runs.RunSpec(model=model_id, data={"dataset": lost}, name="steps 2")
        run_id = runs.create(session, spec, wait_for_inputs=True).id
    send_prepare(both.celery, "check_dataset", sent)
    start_worker(both.settings, "prepare")
    start_worker(both.settings, "runs")
    wait_until(lambda: stored(both, Dataset, sent).status == "ready", "the sent one to be checked")
    assert status_is(run_id, "succeeded").status == "succeeded"
    assert stored(both, Dataset, lost).status == "ready"
