"""A sampling server: it is given every version of the adapter, its answers are scored here, and its faults are told.

The server here is a small real one that speaks vLLM's documented JSON and samples with stock PEFT.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from engine.events import Finished, Step
from engine.failure import Failure
from engine.rewards import grader
from engine.sampling import Draw
from engine.sampling_server import VARIABLE, Server
from engine.spec import RunSpec
from engine.train import train
from tests.engine.runs import said


class Sampler(ThreadingHTTPServer):
    """Adapters by name over one base model; `asked`: every body that came, by path."""

    def __init__(self, base):
        super().__init__(("127.0.0.1", 0), Handler)
        self.base, self.adapters, self.asked, self.off = base, {}, {}, 0.0
        self.lock = threading.Lock()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    @torch.no_grad()
    def complete(self, asked):
        model, ids = self.adapters[asked["model"]], list(asked["prompt"])
        noise = torch.Generator().manual_seed(asked["seed"])
        found, told, stopped = [], [], False
        while len(found) < asked["max_tokens"] and not stopped:
            logprobs = (model(torch.tensor([ids])).logits[0, -1] / asked["temperature"]).log_softmax(-1)
            token = int(torch.multinomial(logprobs.exp(), 1, generator=noise))
            ids.append(token)
            found.append(token)
            told.append(float(logprobs[token]) + self.off)
            stopped = token in asked["stop_token_ids"]
        reason = "stop" if stopped else "length"
        return {"choices": [{"token_ids": found, "logprobs": {"token_logprobs": told}, "finish_reason": reason}]}


class Handler(BaseHTTPRequestHandler):
    """The routes that are documented."""

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.answer(200, {})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        with server.lock:
            server.asked.setdefault(self.path, []).append(asked)
            if self.path == "/v1/load_lora_adapter":
                if server.base is None:
                    self.answer(400, {"error": {"message": "LoRA is not enabled."}})
                    return
                base = AutoModelForCausalLM.from_pretrained(server.base, dtype=torch.float32)
                server.adapters[asked["lora_name"]] = PeftModel.from_pretrained(base, asked["lora_path"]).eval()
                self.answer(200, {})
            elif self.path == "/v1/unload_lora_adapter":
                del server.adapters[asked["lora_name"]]
                self.answer(200, {})
            else:
                self.answer(200, server.complete(asked))

    def answer(self, status, told):
        body = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def sampler(tiny_model, monkeypatch):
    server = Sampler(tiny_model())
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv(VARIABLE, server.url)
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def make_questions(make_run, tmp_path, monkeypatch):
    monkeypatch.setitem(grader.PLAIN, "letters", lambda case, _: sum("a" <= c <= "z" for c in case.answer) / 6)
    path = tmp_path / "questions.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": f"{word}?", "answer": word}) for word in ("sun", "rain", "owl")))
    method = {"type": "grpo", "rewards": {"letters": 1.0}, "num_generations": 4, "max_completion_length": 6}

    def make():
        training = {"max_steps": 4, "per_device_train_batch_size": 2}
        return make_run(
            data={"dataset": str(path), "eval_fraction": 0.0},
            training=training,
            method=method | {"temperature": 0.8, "use_vllm": True, "num_iterations": 2},
            saving={"sample_prompts": 0},
        )

    return make


def test_the_server_gets_each_version_of_the_adapter_and_ratios_are_of_the_engines_own(
    make_questions, sampler, unproven
):
    run = make_questions()
    (run.sampler / "atelier-0a1b2c3d-3").mkdir(parents=True)  # of a start that was killed
    assert train(run.path) == 0
    steps = said(run, Step)
    assert len(steps) == 4
    assert max(step.metrics["sampling/logp_difference"] for step in steps) < 1e-4
    assert [abs(step.metrics["ratio"] - 1) < 1e-4 for step in steps[::2]] == [True, True]  # drawn from these weights
    loaded = [asked["lora_name"] for asked in sampler.asked["/v1/load_lora_adapter"]]
    assert [name.rpartition("-")[2] for name in loaded] == ["0", "2"]  # two steps learn from the same answers
    assert {asked["model"] for asked in sampler.asked["/v1/completions"]} == set(loaded)
    assert len({asked["seed"] for asked in sampler.asked["/v1/completions"]}) == len(sampler.asked["/v1/completions"])
    assert sampler.adapters == {}
    assert list(run.sampler.iterdir()) == []


def test_a_server_that_has_other_weights_ends_the_run(make_questions, sampler):
    sampler.off = -2.0
    run = make_questions()
    assert train(run.path) == 1
    assert said(run, Finished)[-1].code == "sampling_server_differs"


def test_a_server_that_takes_no_adapters_says_so_in_the_run(make_questions, sampler):
    sampler.base = None
    run = make_questions()
    assert train(run.path) == 1
    assert "LoRA is not enabled" in said(run, Finished)[-1].message


def test_without_a_server_the_run_says_who_has_to_do_what(make_questions, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    run = make_questions()
    assert train(run.path) == 1
    end = said(run, Finished)[-1]
    assert end.code == "no_sampling_server"
    assert VARIABLE in end.message
    monkeypatch.setenv(VARIABLE, "http://127.0.0.1:9")  # nothing listens there
    assert train(run.path) == 1
    assert said(run, Finished)[-1].code == "sampling_server_lost"


@pytest.mark.parametrize("address", ["http://[half", "http://host:port", "127.0.0.1:8000"])
def test_an_address_that_is_none_is_told_by_the_name_of_its_variable(address, monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, address)
    with pytest.raises(Failure, match=VARIABLE):
        Server.reached(tmp_path)


def test_an_answer_without_its_reason_to_end_is_not_taken_for_one(sampler, tmp_path, monkeypatch):
    told = {"choices": [{"token_ids": [1], "logprobs": {"token_logprobs": [-1.0]}}]}
    monkeypatch.setattr(sampler, "complete", lambda _: told)
    with pytest.raises(Failure, match="does not tell the tokens"):
        Server.reached(tmp_path).sample([[1]], [[0]], Draw(temperature=1.0), [2], 1)


@pytest.mark.parametrize("more", [{"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}, {"thinking_budget": 9}])
def test_what_a_server_would_not_tell_is_refused(more):
    told = {"model": "m", "data": {"dataset": "d"}, "method": {"type": "grpo", "use_vllm": True, **more}}
    with pytest.raises(ValueError, match="use_vllm needs top_p 1"):
        RunSpec.model_validate(told)
