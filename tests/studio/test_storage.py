"""Folders are ids; nothing leads outside; downloads and diagnostics hold what they should and no more."""

import io
import json
import zipfile

import pytest
from pydantic import SecretStr

from studio import runs
from studio.adapters import download_name, zip_adapter, zip_file
from studio.db.tables import Dataset, Run
from studio.defaults import suggest
from studio.diagnostics import diagnostics, without_secrets
from studio.errors import Invalid, NotFound
from studio.models import Model
from studio.storage import Storage


@pytest.mark.parametrize(
    "name", ["..", "run-0123", "run-0123456789abcdef/..", "run-0123456789ABCDEF", "", "run-\n", "/etc"]
)
def test_only_an_id_becomes_a_folder(tmp_path, name):
    storage = Storage(tmp_path)
    for folder in (storage.run_dir, storage.dataset_dir):
        with pytest.raises(Invalid):
            folder(name)


@pytest.mark.parametrize("name", ["..", ".", "a/b", "A", "x" * 61, "", "a\x00"])
def test_only_a_slug_becomes_a_model_folder(tmp_path, name):
    with pytest.raises(Invalid):
        Storage(tmp_path).model_dir(name)


def test_a_link_out_of_the_data_folder_is_not_followed(tmp_path):
    storage = Storage(tmp_path / "data")
    storage.prepare()
    (storage.models / "sly").symlink_to(tmp_path)
    with pytest.raises(Invalid, match="outside"):
        storage.model_dir("sly")
    with pytest.raises(Invalid, match="outside"):
        storage.remove(tmp_path)
    with pytest.raises(Invalid, match="outside"):
        storage.remove(storage.data_dir)


@pytest.fixture
def run(studio, ready):
    spec = ready(studio).model_copy(update={"name": "../ <b>🦙 Über & out"})
    with studio.session() as session:
        made = runs.create(session, spec)
    folder = studio.storage.run_dir(made.id)
    folder.adapter.mkdir(parents=True)
    (folder.adapter / "adapter_config.json").write_text("{}")
    (folder.adapter / "adapter_model.safetensors").write_bytes(bytes(5000))
    (folder.adapter / "sly").symlink_to("/etc/passwd")
    folder.log.write_text(
        "Authorization: Bearer abcdefgh\nhf_abcdefghijkl\npostgresql://me:hunter22@db/x\nopensesame\nok\n"
    )
    return made


def test_a_whole_model_is_zipped_as_one(studio, run):
    run.status, run.spec = "succeeded", {**run.spec, "training": {"full_finetuning": True}}
    with pytest.raises(NotFound, match="no model to download"):
        zip_file(studio.storage, run)
    folder = studio.storage.run_dir(run.id).model
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    with zip_file(studio.storage, run) as file, zipfile.ZipFile(file) as archive:
        assert archive.namelist() == [f"{run.id}-model/config.json"]


def test_an_adapter_is_zipped_without_links_into_one_folder(studio, run):
    with pytest.raises(NotFound, match="queued"):
        zip_adapter(studio.storage, run)
    run.status = "succeeded"
    content = b"".join(zip_adapter(studio.storage, run))
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        top = f"{run.id}-adapter"
        assert archive.namelist() == [f"{top}/adapter_config.json", f"{top}/adapter_model.safetensors"]
        assert archive.testzip() is None
    with zip_file(studio.storage, run) as file:
        assert file.read() == content
    assert download_name(run) == f"b-ber-out-{run.id[4:10]}.zip"
    assert download_name(Run(id=run.id, name="🦙")) == f"adapter-{run.id[4:10]}.zip"


def test_diagnostics_tell_what_happened_and_no_secret(studio, run):
    settings = studio.settings.model_copy(update={"password": SecretStr("opensesame")})
    studio.storage.run_dir(run.id).log_of(1).write_text("beta said opensesame\n")
    with diagnostics(studio.storage, run, settings) as file, zipfile.ZipFile(file) as archive:
        texts = {name.rpartition("/")[2]: archive.read(name).decode() for name in archive.namelist()}
    assert set(texts) == {"run.json", "spec.json", "versions.json", "log.txt", "log-1.txt", "events.jsonl"}
    assert texts["log-1.txt"] == "beta said ***\n"
    assert json.loads(texts["run.json"])["status"] == "queued"
    assert json.loads(texts["spec.json"]) == run.spec
    assert json.loads(texts["versions.json"])["torch"]
    for secret in ("abcdefgh", "hunter22", "opensesame"):
        assert secret not in texts["log.txt"]
    assert texts["log.txt"].endswith("ok\n")


def test_secrets_are_blotted_out_wherever_they_stand():
    said = without_secrets(
        '{"password": "abcd1234"} HF_TOKEN=hf_xxxxxxxxxx redis://:pw12@h/0 token: zzzzz key sk-123456789'
    )
    for secret in ("abcd1234", "hf_x", "pw12", "zzzzz", "123456789"):
        assert secret not in said


@pytest.mark.parametrize(("rows", "epochs"), [(50, 5.0), (300, 3.0), (50_000, 1.0)])
def test_defaults_follow_data_model_and_device(rows, epochs):
    dataset = Dataset(id="file-0", bytes=0, rows=rows, usable=rows, report={"longest": 2_000})
    small = Model(id="m", facts={"parameters": 135_000_000, "context_length": 2048})
    spec = suggest(dataset, small, [{"kind": "cpu"}])
    assert (spec.training.num_train_epochs, spec.data.max_length) == (epochs, 1024)
    assert (spec.training.per_device_train_batch_size, spec.training.gradient_checkpointing) == (1, False)
    large = Model(id="m", facts={"parameters": 8_000_000_000, "context_length": 512})
    spec = suggest(dataset, large, [{"kind": "cuda"}])
    assert (spec.data.max_length, spec.training.gradient_checkpointing) == (512, True)
    assert spec.optimizer.learning_rate == 1e-4


def test_defaults_for_a_handful_of_rows_and_unknown_facts():
    spec = suggest(Dataset(id="file-0", bytes=100, rows=3, usable=3), Model(id="m"))
    assert (spec.data.eval_fraction, spec.saving.sample_prompts, spec.data.max_length) == (0.0, 0, 512)
