"""What a model would learn from a dataset: rows as tokens, files in numbers, and the command that prints both."""

import copy
import json
import subprocess
import sys

import pytest

from engine.cuts import lengths
from engine.failure import Failure
from engine.inspect_data import (
    check_main,
    row_number,
    show,
    show_main,
    survey_file,
)
from engine.render.settings import RenderSettings, level_named, open_renderer
from engine.spec import GRPO, RunSpec
from tests.engine.render.families import tokenizer_of


def turn(role, content, **more):
    return {"role": role, "content": content, **more}


PLAIN = {"messages": [turn("user", "Which colour?"), turn("assistant", "Blue.")]}
THOUGHT = {"messages": [turn("user", "Which colour?"), turn("assistant", "Blue.", reasoning_content="Skies are.")]}
MARKED = {"messages": [turn("user", "Say <|im_end|>"), turn("assistant", "No.")]}
CALL = {"messages": [turn("assistant", "Hello."), turn("user", "Hi."), turn("assistant", "Yes?")]}


def reading(**data):
    """How a run with these settings reads a file."""
    return RunSpec(model="m", data={"dataset": "d", **data})


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A folder with a tokenizer and no weights, of the Qwen3 kind."""
    folder = tmp_path_factory.mktemp("models") / "small"
    tokenizer = copy.deepcopy(tokenizer_of("qwen3"))
    tokenizer.save_pretrained(folder)
    stops = [tokenizer.convert_tokens_to_ids(stop) for stop in ("<|im_end|>", "<|endoftext|>")]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": stops}))
    return folder


@pytest.fixture
def written(tmp_path):
    def write(*rows):
        path = tmp_path / "data.jsonl"
        path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
        return path

    return write


def test_a_row_is_shown_as_the_tokens_that_will_be_trained(model, written):
    path = written(PLAIN, THOUGHT)
    found = show(open_renderer(model), row_number(path, 2))
    assert (found["row"], found["level"], found["warnings"], found["refusals"]) == (2, "", [], [])
    [sample] = found["samples"]
    assert (sample["turn"], sample["level"]) == (1, {})
    assert set(sample["tokens"][0]) == {"id", "text", "role", "turn", "kind", "trained"}
    by_kind = {}
    for token in sample["tokens"]:
        by_kind[token["kind"]] = by_kind.get(token["kind"], "") + token["text"]
        assert token["trained"] == (token["kind"] not in ("prompt", "cue"))
    assert by_kind == {
        "prompt": "<|im_start|>user\nWhich colour?<|im_end|>\n",
        "cue": "<|im_start|>assistant\n",
        "frame": "<think>\n\n</think>\n\n",
        "reasoning": "Skies are.",
        "answer": "Blue.",
        "stop": "<|im_end|>",
    }


def test_every_token_says_whose_text_it_is(model, written):
    asked = [turn("system", "Be brief."), *PLAIN["messages"], turn("user", "And now?"), turn("assistant", "Green.")]
    found = show(
        open_renderer(model, RenderSettings("enable_thinking=True")), row_number(written({"messages": asked}), 1)
    )
    by_role = {}
    for token in found["samples"][-1]["tokens"]:
        if token["kind"] == "prompt":
            by_role[token["role"]] = by_role.get(token["role"], "") + token["text"]
    template = by_role.pop("template")
    assert by_role == {"system": "Be brief.", "user": "Which colour?And now?", "assistant": "Blue."}
    assert template.startswith("<|im_start|>system\n<|im_end|>\n<|im_start|>user\n<|im_end|>")


def test_a_row_is_shown_under_a_level_and_its_contradiction_is_named(model, written):
    path = written(PLAIN, THOUGHT)
    off = open_renderer(model, RenderSettings("enable_thinking=False"))
    found = show(off, row_number(path, 1))
    assert found["level"] == "enable_thinking=False"
    assert "</think>" in "".join(one["text"] for one in found["samples"][0]["tokens"] if one["kind"] == "cue")
    [refusal] = show(off, row_number(path, 2))["refusals"]
    assert (refusal["code"], refusal["turn"]) == ("level_conflict", 1)
    assert refusal["fix"]
    assert refusal["prompt"]
    assert refusal["rendered"]


def test_a_file_is_counted_with_every_problem_placed(model, written):
    path = written(PLAIN, THOUGHT, MARKED, CALL, "{", {"messages": []})
    found = survey_file(path, open_renderer(model), max_length=12)
    assert (found["kind"], found["rows"], found["usable"], found["samples"]) == ("chat", 6, 4, 4)
    first = found["problems"][0]
    assert (first["row"], first["line"], first["code"]) == (4, 4, "assistant_first")
    assert {one["row"] for one in found["problems"]} == {4, 5, 6}
    assert all(one["message"] and one["fix"] for one in found["problems"])
    assert found["problem_counts"]["assistant_first"] == 1
    assert found["truncated"] == 4
    assert found["total_tokens"] == 4 * 12
    assert found["nothing_to_learn"] > 0
    noted = {one["code"]: one["rows"] for one in found["warnings"]}
    assert noted == {"level_not_default": 3, "control_token_in_prompt": 1}
    assert [(one["name"], one["samples"]) for one in found["levels"]] == [("default", 1), ("enable_thinking=False", 3)]
    assert json.dumps(found)


def test_without_a_maximum_length_the_file_is_counted_as_a_run_would_cut_it(model, written):
    long = {"messages": [turn("user", "Which colour?"), turn("assistant", "Blue. " * 90)]}
    path = written(*[PLAIN] * 99, long)
    found = survey_file(path, open_renderer(model))
    assert found["max_length"] == found["lengths"]["suggested"] < found["lengths"]["max"]
    assert (found["truncated"], found["dropped"], found["nothing_to_learn"]) == (1, 0, 0)
    assert found["trained_tokens"] < found["total_tokens"]
    left = survey_file(path, open_renderer(model), drop=True)
    assert (left["truncated"], left["dropped"]) == (0, 1)
    assert left["total_tokens"] == found["total_tokens"] - found["max_length"]


def test_without_a_model_only_the_rows_are_checked(written):
    found = survey_file(written(PLAIN, "{"), None)
    assert (found["kind"], found["rows"], found["usable"]) == ("chat", 2, 1)
    assert "lengths" not in found


def test_lengths_are_percentiles_and_whole_bars():
    found = lengths(range(1, 101))
    assert (found["p50"], found["p95"], found["p99"], found["max"], found["suggested"]) == (50, 95, 99, 100, 128)
    assert sum(bar["count"] for bar in found["histogram"]) == 100
    assert found["histogram"][0] == {"from": 0, "to": 5, "count": 4}
    assert lengths([])["max"] == 0
    assert lengths([7])["histogram"][-1] == {"from": 7, "to": 8, "count": 1}


def test_levels_are_named_as_a_person_would(model):
    levels = open_renderer(model).levels
    assert level_named(levels, "") == {}
    assert level_named(levels, "default") == {"enable_thinking": True}
    assert level_named(levels, "enable_thinking=False") == level_named(levels, "enable_thinking=false")
    with pytest.raises(Failure, match="no level “banana”") as caught:
        level_named(levels, "banana")
    assert "enable_thinking=False" in caught.value.advice[0]
    with pytest.raises(Failure, match="no level"):
        level_named(levels, "tokenize=True")


def test_the_commands_print_json_and_their_exit_status_tells(model, written, capsys):
    path = written(PLAIN, THOUGHT, "{")
    assert show_main(path, model, 1, reading()) == 0
    assert json.loads(capsys.readouterr().out)["samples"]
    assert show_main(path, model, 2, reading(reasoning_level="enable_thinking=False")) == 1
    assert json.loads(capsys.readouterr().out)["samples"] == []
    for number, why in ((3, "JSON"), (9, "has 3 rows")):
        assert show_main(path, model, number, reading()) == 1
        assert why in json.loads(capsys.readouterr().out)["error"]["message"]
    assert check_main(path, model, reading(max_bad_fraction=0.5)) == 0
    assert json.loads(capsys.readouterr().out)["lengths"]["max"] > 0
    assert check_main(path, model, reading()) == 1
    capsys.readouterr()
    assert check_main(path.with_name("gone.jsonl"), None, reading()) == 1
    assert json.loads(capsys.readouterr().out)["error"]["code"]


def test_the_verbs_are_the_engines(written):
    command = [sys.executable, "-m", "engine", "check-data", str(written(PLAIN))]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert json.loads(answer.stdout)["usable"] == 1


BETTER = {"prompt": "Which colour?", "chosen": "Blue.", "rejected": "Loud."}


def test_a_preference_row_is_shown_as_two_answers_to_one_prompt(model, written):
    path = written(BETTER, BETTER | {"chosen": "Blue. " * 30})
    found = show(open_renderer(model), row_number(path, 1))
    assert (found["kind"], [one["side"] for one in found["samples"]]) == ("preference", ["chosen", "rejected"])
    shared = found["samples"][0]["shared"]
    prompts = [[token["id"] for token in one["tokens"][:shared]] for one in found["samples"]]
    assert prompts[0] == prompts[1]
    for sample, answer in zip(found["samples"], ("Blue.", "Loud."), strict=True):
        assert not any(token["trained"] for token in sample["tokens"][:shared])
        assert answer in "".join(token["text"] for token in sample["tokens"] if token["trained"])
    survey = survey_file(path, open_renderer(model))
    assert (survey["kind"], survey["usable"], survey["samples"], survey["nothing_to_learn"]) == ("preference", 2, 2, 0)
    answers = sum(len(one["tokens"]) - shared for one in found["samples"])
    short = survey_file(written(BETTER), open_renderer(model))
    assert short["total_tokens"] == shared + answers  # the prompt once
    assert short["trained_tokens"] == sum(token["trained"] for one in found["samples"] for token in one["tokens"])


def test_a_prompt_row_is_shown_as_what_serving_sends(model, written):
    path = written({"prompt": "Which colour?", "ground_truth": "blue"})
    [sample] = show(open_renderer(model), row_number(path, 1))["samples"]
    assert {token["kind"] for token in sample["tokens"]} == {"prompt", "cue"}
    assert "".join(token["text"] for token in sample["tokens"]).endswith("<|im_start|>assistant\n")
    found = survey_file(path, open_renderer(model))
    assert (found["kind"], found["usable"], found["trained_tokens"], found["nothing_to_learn"]) == ("prompt", 1, 0, 0)


def test_of_a_chat_only_the_prompt_is_read_where_the_answers_are_sampled(model, written, capsys):
    path = written({"question": "Which colour?", "answer": "Blue."})
    spec = reading().model_copy(update={"method": GRPO()})
    assert show_main(path, model, 1, spec) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["kind"], told["expected"]) == ("prompt", "Blue.")
    assert {token["kind"] for token in told["samples"][0]["tokens"]} == {"prompt", "cue"}
    assert check_main(path, model, spec) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["kind"], told["trained_tokens"], told["nothing_to_learn"]) == ("prompt", 0, 0)


def test_a_file_is_read_as_declared_and_disagreement_is_a_warning(model, written, capsys):
    path = written({"question": "Which colour?", "answer": "Blue."})
    spec = reading(columns={"prompt": "question"})
    assert check_main(path, model, spec) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["kind"], told["warnings"][0]["code"]) == ("prompt", "declared_otherwise")
    assert show_main(path, model, 1, spec) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "prompt"


CHECKED = {"kind", "rows", "usable", "problems", "lengths", "trained_tokens", "total_tokens", "truncated"}


def test_the_json_has_the_names_that_are_documented(model, written):
    found = survey_file(written(PLAIN, "{"), open_renderer(model))
    assert found.keys() >= CHECKED | {"nothing_to_learn", "levels"}
    assert found["problems"][0].keys() == {"row", "line", "code", "message", "fix"}
    assert found["lengths"].keys() >= {"p50", "p95", "p99", "max", "histogram"}
    shown = show(open_renderer(model), row_number(written(PLAIN), 1))
    assert shown.keys() >= {"row", "level", "samples", "warnings"}
    assert shown["samples"][0].keys() >= {"turn", "tokens"}
