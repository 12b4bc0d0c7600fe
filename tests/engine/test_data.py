"""Data preparation: the split, cutting, counts, and refusals that name the real cause."""

import copy
import datetime
import hashlib
import json

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from engine.data import held_out, prepare
from engine.events import Phase, Warned
from engine.failure import Failure
from engine.spec import RunSpec

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer():
    """One token per byte."""
    vocabulary = {letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    made = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>")
    made.chat_template = CHATML
    return made


@pytest.fixture
def run(tmp_path, tokenizer):
    """Prepares rows under spec settings; returns the result and what was said."""

    def go(rows, *, sha256="", sample_prompts=3, **data):
        path = tmp_path / "data.jsonl"
        path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
        saving = {"sample_prompts": sample_prompts}
        spec = RunSpec(model="m", data={"dataset": str(path), "sha256": sha256, **data}, saving=saving)
        said = []
        prepared = prepare(spec, tokenizer, [tokenizer.eos_token_id], said.append)
        return prepared, said

    return go


def row(asked="hello", answer="world"):
    return {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]}


def test_rows_become_train_and_eval_samples_that_share_no_row(run):
    prepared, said = run([row(f"question {n}") for n in range(50)], eval_fraction=0.2)
    assert (prepared.counts.train_rows, prepared.counts.eval_rows) == (40, 10)
    assert sorted([*prepared.train.rows, *prepared.eval.rows]) == list(range(1, 51))
    assert prepared.counts.trained_tokens == 40 * len("world!")
    assert all(not prepared.train.trained[start] for start in prepared.train.offsets[:-1])
    assert isinstance(said[0], Phase)
    assert not [event for event in said if isinstance(event, Warned)]


def test_sample_prompts_are_held_out_and_end_where_the_answer_begins(run, tokenizer):
    prepared, _ = run([row(f"question {n}", f"answer {n}") for n in range(50)])
    assert len(prepared.prompts) == 3
    for prompt in prepared.prompts:
        assert prompt.row in prepared.eval.rows
        assert prompt.expected == prompt.messages[-1]["content"].replace("question", "answer")
        assert tokenizer.decode(prompt.ids).endswith("<|im_start|>assistant\n")


def test_the_split_is_by_seed_and_never_takes_all_rows():
    assert held_out(100, 0.1, 1) == held_out(100, 0.1, 1) != held_out(100, 0.1, 2)
    assert [len(held_out(rows, 0.5, 0)) for rows in (0, 1, 2, 3, 10)] == [0, 0, 1, 2, 5]
    assert held_out(100, 0.0, 1) == frozenset()
    assert len(held_out(3, 0.01, 0)) == 1


def test_long_rows_are_cut_at_the_end_and_counted(run):
    prepared, said = run([row(answer="x" * 200), row(), row()], eval_fraction=0, max_length=64)
    assert prepared.counts.truncated_rows == 1
    assert prepared.train.lengths.max() == 64
    assert any(event.code == "truncated_rows" for event in said if isinstance(event, Warned))


def test_longer_rows_are_left_out_when_that_is_chosen(run):
    rows = [row(answer="x" * 200), row(), row()]
    prepared, said = run(rows, eval_fraction=0, max_length=64, truncation_mode="drop")
    assert (prepared.counts.dropped_rows, prepared.counts.truncated_rows, prepared.counts.train_rows) == (1, 0, 2)
    assert [event.code for event in said if isinstance(event, Warned)] == ["dropped_rows"]
    with pytest.raises(Failure, match="longer than 64 tokens, and left out"):
        run(rows[:1], eval_fraction=0, max_length=64, truncation_mode="drop")


def test_without_a_maximum_length_it_is_what_99_of_100_rows_need(run):
    rows = [row(answer="x" * 100) for _ in range(99)] + [row(answer="x" * 5000)]
    prepared, _ = run(rows, eval_fraction=0.1)
    assert (prepared.max_length, prepared.counts.truncated_rows) == (128, 1)
    assert max(prepared.train.lengths.max(), prepared.eval.lengths.max()) == 128
    dropped, _ = run(rows, eval_fraction=0.1, truncation_mode="drop")
    assert (dropped.max_length, dropped.counts.dropped_rows, dropped.counts.train_rows) == (128, 1, 89)


def test_the_chosen_length_is_never_above_what_the_model_was_made_for(tmp_path, tokenizer):
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(json.dumps(row(answer="x" * 300)) for _ in range(9)))
    spec = RunSpec(model="m", data={"dataset": str(path)})
    prepared = prepare(spec, tokenizer, [tokenizer.eos_token_id], lambda event: None, context=128)
    assert (prepared.max_length, prepared.counts.truncated_rows) == (128, 9)


def test_P01_rows_whose_prompt_fills_the_window_are_dropped_and_counted(run):
    prepared, said = run([row("q" * 100), row(), row()], eval_fraction=0, max_length=64)
    assert prepared.counts.nothing_to_learn_rows == 1
    assert prepared.counts.train_rows == 2
    assert any(event.code == "nothing_to_learn_rows" for event in said if isinstance(event, Warned))


def test_P01_the_run_is_refused_with_the_real_cause_when_every_row_is_like_that(run):
    with pytest.raises(Failure, match="prompt alone fills the maximum length of 32") as caught:
        run([row("q" * 40)] * 4, max_length=32)
    assert caught.value.code == "nothing_to_learn"
    needed = len("^user\n^\n^assistant\n") + 40
    assert f"has {needed} tokens" in caught.value.advice[0]
    assert run([row("q" * 40)] * 4, max_length=needed + 1)[0].counts.train_rows > 0


def test_T01_a_run_in_which_no_token_would_be_trained_is_refused(run, tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer, "chat_template", CHATML.replace("{{ m.content }}", "{{ '' }}"))
    with pytest.raises(Failure, match="does not show the text"):
        run([row()] * 4, max_bad_fraction=1.0)


def test_too_many_bad_rows_refuse_the_run_with_the_first_reason(run):
    with pytest.raises(Failure, match="2 of 10 rows cannot be used") as caught:
        run([row()] * 8 + ["{", "{"])
    assert caught.value.code == "too_many_bad_rows"
    assert "row 9" in caught.value.message


def test_a_tolerated_share_of_bad_rows_is_said_and_trained_without(run):
    prepared, said = run([row()] * 99 + ["{"], max_bad_fraction=0.01)
    assert prepared.counts.bad_rows == 1
    assert [event.code for event in said if isinstance(event, Warned)] == ["bad_rows"]


def test_D10_no_usable_row_refuses_the_run_before_training(run):
    with pytest.raises(Failure, match="0 of 2 rows usable"):
        run([{"conversations": []}, {"instruction": "x", "output": {}}], max_bad_fraction=1.0)


def test_turns_that_cannot_be_rendered_count_against_the_run(run):
    with_reasoning = row()
    with_reasoning["messages"][1]["reasoning_content"] = "because"
    with pytest.raises(Failure, match="does not show the reasoning"):
        run([row(), with_reasoning])
    prepared, said = run([row()] * 3 + [with_reasoning], max_bad_fraction=0.5)
    assert prepared.counts.refused_rows == 1
    assert any(event.code == "reasoning_not_rendered" for event in said if isinstance(event, Warned))


def test_preference_rows_are_not_for_supervised_training(run):
    with pytest.raises(Failure, match="preference rows"):
        run([{"prompt": "a", "chosen": "b", "rejected": "c"}])


def test_a_changed_or_missing_file_refuses_the_run(run, tmp_path, tokenizer):
    with pytest.raises(Failure, match="has changed"):
        run([row()] * 3, sha256="0" * 64)
    right = hashlib.sha256((tmp_path / "data.jsonl").read_bytes()).hexdigest()
    assert run([row()] * 3, sha256=right)[0].counts.rows == 3
    spec = RunSpec(model="m", data={"dataset": str(tmp_path / "gone.jsonl")})
    with pytest.raises(Failure, match="gone"):
        prepare(spec, tokenizer, [tokenizer.eos_token_id], lambda event: None)


def test_text_rows_train_every_token_but_the_first(run):
    prepared, _ = run([{"text": "hello"}] * 4, eval_fraction=0)
    assert prepared.counts.trained_tokens == 4 * len("hello")
    assert prepared.train.lengths.tolist() == [len("hello") + 1] * 4
    assert prepared.prompts == []
    assert len(prepared.eval) == 0


def test_a_template_that_asks_for_the_date_gives_the_same_tokens_on_every_day_of_a_run(tmp_path, tokenizer):
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join([json.dumps(row())] * 2))
    dated = copy.deepcopy(tokenizer)
    dated.chat_template = "{{ strftime_now('%d %B %Y') }}" + CHATML
    spec = RunSpec(model="m", data={"dataset": str(path), "eval_fraction": 0})
    day = datetime.date(2024, 2, 29)
    prepared = prepare(spec, dated, [dated.eos_token_id], lambda event: None, frozen_date=day)
    assert dated.decode(prepared.train.ids).startswith("29 February 2024")


def test_last_turn_only_when_asked(tmp_path, tokenizer):
    path = tmp_path / "data.jsonl"
    turns = row()["messages"] + row("again", "more")["messages"]
    path.write_text("\n".join([json.dumps({"messages": turns})] * 2))
    data = {"dataset": str(path), "eval_fraction": 0}
    spec = RunSpec(model="m", data=data, method={"type": "sft", "train_on": "last_turn"})
    prepared = prepare(spec, tokenizer, [tokenizer.eos_token_id], lambda event: None)
    first = prepared.train.ids[: prepared.train.offsets[1]][prepared.train.trained[: prepared.train.offsets[1]]]
    assert tokenizer.decode(first) == "more<|im_end|>"
    assert np.array_equal(prepared.train.rows, [1, 2])


def test_several_processes_prepare_the_same_bytes_as_one(run, monkeypatch):
    texts = ["hello", " spaced ", "<|im_end|>", "é漢🙂", "a\nb", "x" * 300]
    rows = [row(f"{texts[n % 6]} {n}", f"{texts[(n + 1) % 6]}") for n in range(300)]
    made = []
    for helpers in (1, 2, 3):
        monkeypatch.setattr("engine.data.helpers_for", lambda rows, helpers=helpers: helpers)
        prepared, said = run(rows, max_length=64)
        samples = [part for side in (prepared.train, prepared.eval) for part in (side.ids, side.trained, side.rows)]
        warned = [(event.code, event.message) for event in said if isinstance(event, Warned)]
        made.append(([part.tobytes() for part in samples], prepared.counts, warned, prepared.prompts[0].ids.tolist()))
    assert made[0] == made[1] == made[2]
