"""Talking to a result, and going on from it: the adapter of one run answers, and is where another starts."""

import json

import pytest
import torch
from safetensors.torch import load_file

from engine import events
from engine.build import build
from engine.chat import Partner, Talk
from engine.events import Finished, Step
from engine.train import train


@pytest.fixture
def trained(make_run, unproven):
    run = make_run("earlier", training={"max_steps": 4})
    assert train(run.path) == 0
    return run


def test_a_result_answers_in_whole_characters(trained):
    partner = Partner(trained.adapter, trained.read_spec().model, None)
    said = []
    truncated = partner.answer([{"role": "user", "content": "sun?"}], Talk(max_new_tokens=6), said.append)
    again = []
    partner.answer([{"role": "user", "content": "sun?"}], Talk(max_new_tokens=6), again.append)
    assert said == again
    assert isinstance(truncated, bool)


def test_a_run_goes_on_from_an_earlier_adapter_and_refers_to_it(trained, make_run, tmp_path):
    later = make_run("later", adapter_from=str(trained.adapter), training={"max_steps": 4})
    built = build(later.read_spec())
    saved = load_file(trained.adapter / "adapter_model.safetensors")
    for name, value in built.parameters().items():
        key = "base_model.model." + name.replace(".default.", ".")
        assert torch.equal(value, saved[key]), name
    before = {name: value.clone() for name, value in built.parameters().items()}
    with torch.no_grad():
        next(iter(built.parameters().values())).add_(1.0)
    with built.reference_model():
        assert all(torch.equal(value, before[name]) for name, value in built.parameters().items())
    assert not torch.equal(next(iter(built.parameters().values())), next(iter(before.values())))
    assert train(later.path) == 0
    losses = [
        [event.loss for _, event in events.read(run.events) if isinstance(event, Step)] for run in (trained, later)
    ]
    assert losses[1][0] < losses[0][0]
    assert json.loads((later.adapter / "atelier.json").read_text())["adapter_from"] == "adapter"


def test_an_adapter_of_another_rank_is_refused(trained, make_run):
    later = make_run("later", adapter_from=str(trained.adapter), lora={"r": 4})
    assert train(later.path) == 1
    (finished,) = [event for _, event in events.read(later.events) if isinstance(event, Finished)]
    assert finished.code == "adapter_does_not_fit"
    assert "r 16 (here 4)" in finished.message
