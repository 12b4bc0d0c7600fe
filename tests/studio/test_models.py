"""Models: what a folder says of itself, and which folders no run can start from."""

import json
import time
from pathlib import Path

import pytest
from huggingface_hub import constants

from studio import models
from studio.db.tables import Model
from studio.errors import Invalid, NotFound, Unavailable
from studio.facts import read_facts


def test_facts_come_from_config_and_headers(model_folder):
    folder = model_folder(readme="---\ntags:\n- x\nlicense: apache-2.0\n---\n# Tiny\nlicense: wrong")
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    facts = read_facts(folder)
    assert (facts.architecture, facts.parameters, facts.dtype) == ("LlamaForCausalLM", 15, "BF16")
    assert (facts.context_length, facts.has_chat_template, facts.licence) == (2048, True, "apache-2.0")
    assert facts.bytes == (folder / "model.safetensors").stat().st_size
    assert facts.trainable


def test_sharded_weights_are_counted_by_the_index(model_folder):
    folder = model_folder()
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    content = (folder / "model-00001-of-00002.safetensors").read_bytes()
    (folder / "model-00002-of-00002.safetensors").write_bytes(content)
    (folder / "extra.safetensors").write_bytes(content)
    names = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    assert read_facts(folder).parameters == 30
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(Invalid, match="1 of 2 weight files are missing"):
        read_facts(folder)


def fill(folder: Path, *names: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_text("{}")
    return folder


@pytest.mark.parametrize(
    ("names", "code", "words"),
    [
        (["model-q4.gguf"], "model_is_gguf", "original model in safetensors format"),
        (["config.json", "model.gguf"], "model_is_gguf", "GGUF"),
        (["adapter_config.json", "adapter_model.safetensors"], "model_is_adapter", "base model"),
        (["model.safetensors"], "model_has_no_config", "no config.json"),
        ([], "model_has_no_config", "no config.json"),
        (["config.json", "tokenizer.json"], "model_has_no_weights", "no weights"),
        (["config.json", "pytorch_model.bin"], "model_is_pickled", "can run code"),
        (["config.json", "model.safetensors"], "model_has_no_tokenizer", "no tokenizer"),
    ],
)
def test_a_folder_that_no_run_can_start_from_is_refused_with_the_reason(studio, tmp_path, names, code, words):
    folder = fill(tmp_path / "model", *names)
    with studio.session() as session, pytest.raises(Invalid, match=words) as caught:
        models.add_folder(session, folder)
    assert caught.value.code == code


@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 8, b"\x10" + bytes(7) + b"{}", b"\x02\x00\x00\x00\x00\x00\x00\x00[]"]
)
def test_broken_weights_are_refused_not_tripped_over(model_folder, content):
    folder = model_folder()
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(Invalid, match="not a whole safetensors file"):
        read_facts(folder)


def test_cut_weights_and_a_broken_config_are_refused(model_folder):
    folder = model_folder()
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-1])
    with pytest.raises(Invalid, match="not a whole safetensors file"):
        read_facts(folder)
    (folder / "model.safetensors").write_bytes(whole)
    (folder / "config.json").write_text("{")
    with pytest.raises(Invalid, match=r"config\.json .* cannot be read"):
        read_facts(folder)


def test_a_model_that_writes_no_text_is_known_as_untrainable(model_folder):
    facts = read_facts(model_folder(architecture="BertForSequenceClassification"))
    assert not facts.trainable
    assert "BertForSequenceClassification" in facts.why_not


def test_a_folder_is_added_under_a_slug_and_once_only(both, model_folder):
    folder = model_folder("Mein Modell 🦙 (v2)")
    with both.session() as session:
        one = models.add_folder(session, folder)
        two = models.add_folder(session, f"{folder}/../{folder.name}")
        assert one.id == two.id == "mein-modell-v2"
        assert (one.name, one.status) == (folder.name, "checking")
        other = model_folder("sub/Mein Modell (v2)")
        assert models.add_folder(session, other).id.startswith("mein-modell-v2-")
    with both.session() as session:
        assert models.facts(models.get(session, one.id)).parameters == 15
        with pytest.raises(NotFound):
            models.get(session, "nope")


@pytest.mark.parametrize("path", ["/no/such/folder", "", "\x00", "~nobody-knows/x"])
def test_a_folder_that_is_not_there_is_told(studio, path):
    with studio.session() as session, pytest.raises(Invalid):
        models.add_folder(session, path)


def test_scan_finds_the_data_folder_and_the_hub_cache(both, model_folder, tmp_path, monkeypatch):
    model_folder("a").rename(both.storage.models / "mine")
    cache = tmp_path / "hub"
    repository = cache / "models--org--name"
    (repository / "snapshots").mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("c0ffee")
    model_folder("b").rename(repository / "snapshots" / "c0ffee")
    adapter = fill(both.storage.models / "adapter", "adapter_config.json")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    with both.session() as session:
        assert sorted(model.id for model in models.scan(session, both.storage)) == ["mine", "org/name"]
    with both.session() as session:
        assert models.scan(session, both.storage) == []
        found = {model.id: model for model in models.list_models(session)}
        assert (found["org/name"].revision, found["org/name"].source) == ("c0ffee", "hub")
        assert found["adapter"].status == "unusable"
        assert "adapter" in found["adapter"].error
        assert models.list_models(session)[-1].id == "adapter"
        found["mine"].status = "ready"
    (both.storage.models / "mine").rename(tmp_path / "away")
    with both.session() as session:
        models.scan(session, both.storage)
        assert "gone" in session.get_one(Model, "mine").error
    assert adapter.exists()


def test_the_hub_is_not_asked_when_offline_and_never_waited_for(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(Unavailable, match="HF_HUB_OFFLINE"):
        models.search_hub("llama")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    began = time.monotonic()
    with pytest.raises(Unavailable, match="cannot be reached"):
        models.search_hub("llama")
    assert time.monotonic() - began < 4


@pytest.mark.parametrize("hub_id", ["../..", "name", "a/b/c", "a/b c", "http://x/y", "a/..", ""])
def test_what_is_no_hub_id_is_refused(studio, hub_id):
    with studio.session() as session, pytest.raises(Invalid, match="not a model id"):
        models.add_hub(session, hub_id)


def test_a_hub_model_waits_to_be_fetched_and_may_be_forgotten(both):
    with both.session() as session:
        model = models.add_hub(session, "https://huggingface.co/org/name/")
        assert (model.id, model.status, model.progress) == ("org/name", "fetching", 0.0)
        assert not models.facts(model).cached
        assert models.add_hub(session, "org/name") is model
    with both.session() as session:
        models.delete(session, "org/name")
        assert models.list_models(session) == []
