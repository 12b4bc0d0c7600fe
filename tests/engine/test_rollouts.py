"""Rollouts: exact ratios under every way of drawing, published losses, and runs that learn and resume exactly."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import LogitsProcessorList, MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from engine import rollouts
from engine.build import build, load_tokenizer, stop_ids
from engine.data import prepare
from engine.events import Eval, Rollout, Step, Warned
from engine.losses import policy
from engine.prompts import Completion, Prompt, Reader
from engine.reading import reader_for
from engine.render.renderer import Renderer
from engine.rewards import Grade, grader
from engine.rollouts import Answer, Group, advantages
from engine.sampling import Draw, Sampled, Thinking, kept, sample
from engine.spec import GRPO
from engine.train import train
from engine.trainer import Trainer
from tests.engine.models import CHATML, byte_tokenizer
from tests.engine.render.conftest import ORPHAN_CUE, THINKING
from tests.engine.runs import ask_at, everything, on_rows, said

OPENED = ORPHAN_CUE.replace("{{ m.content }}", "{{ m.content.split('</think>')[-1] }}")  # as DeepSeek's
DRAWS = [
    Draw(),
    Draw(temperature=0.7),
    Draw(top_k=20),
    Draw(top_p=0.9),
    Draw(min_p=0.1),
    Draw(temperature=0.7, top_k=40, top_p=0.8, min_p=0.02),
]


@pytest.fixture(scope="module")
def question_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "questions.jsonl"
    rows = [{"prompt": f"{word}?", "answer": word[0]} for word in ("sun", "rain", "owl", "tea", "salt", "bread", "ink")]
    path.write_text("\n".join(json.dumps(row) for row in rows * 2))
    return path


@pytest.fixture
def make_questions(make_run, question_file):
    mine = {"type": "grpo", "rewards": {"letters": 1.0}, "num_generations": 4, "max_completion_length": 6}
    return on_rows(make_run, question_file, steps=6, batch=2, **mine)


@pytest.fixture(autouse=True)
def letters(monkeypatch):
    """A reward that a random model meets sometimes: the share of lower-case letters."""
    monkeypatch.setitem(grader.PLAIN, "letters", lambda case, _: sum("a" <= c <= "z" for c in case.answer) / 6)


def trainer_of(run):
    spec = run.read_spec()
    tokenizer = load_tokenizer(spec)
    stops = stop_ids(spec, tokenizer)
    trainer = Trainer(build(spec), spec.optimizer, stops)
    for name, value in trainer.built.parameters().items():
        if "lora_B" in name:
            torch.nn.init.normal_(value, std=0.1)
    return spec, trainer, prepare(spec, tokenizer, stops, lambda event: None).train


def grouped(prompts, sampled, advantage=0.0):
    return [
        Group(Prompt(row, list(ids), [], "", {}), [Answer(one, "", Grade(0.0, {}), advantage) for one in group])
        for row, (ids, group) in enumerate(zip(prompts, sampled, strict=True))
    ]


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt_oss"])
@pytest.mark.parametrize("draw", DRAWS, ids=str)
def test_with_equal_weights_every_ratio_is_one_however_tokens_are_drawn(make_questions, family, draw):
    _, trainer, _ = trainer_of(make_questions(family=family))
    prompts = [[5, 6, 7], [8, 9, 10, 11, 12, 13, 14]]
    sampled = trainer.sample_groups(prompts, [[1, 2, 3], [4, 5, 6]], draw, 12)
    batch = rollouts.gather(grouped(prompts, sampled), draw.temperature, mask_truncated=False)
    found = trainer.logprobs(batch).numpy()
    assert np.abs(np.exp(found - batch.drawn.logprobs_N) - 1).max() < 1e-4
    if not draw.truncates:
        return
    mass = np.concatenate([one.mass for group in sampled for one in group])
    assert mass.max() <= 1e-6
    assert mass.min() < -0.01
    naive = replace(batch, drawn=replace(batch.drawn, kept=None))
    off = np.exp(trainer.logprobs(naive).numpy() - batch.drawn.logprobs_N)
    np.testing.assert_allclose(off, np.exp(mass), atol=1e-3)  # what is lost without the kept set is its mass


def test_an_answer_depends_on_its_seed_and_not_on_its_company(make_questions):
    _, trainer, _ = trainer_of(make_questions())
    prompts = [[5, 6, 7], [8, 9, 10, 11, 12]]
    together = trainer.sample_groups(prompts, [[1, 2], [3, 4]], Draw(), 16)
    alone = trainer.sample_groups(prompts[:1], [[2]], Draw(), 16)
    assert together[0][1].ids == alone[0][0].ids
    assert together[0][0].ids != together[0][1].ids


def test_an_answer_ends_with_its_stop_token_or_is_called_truncated(make_questions):
    _, trainer, _ = trainer_of(make_questions())
    built = trainer.built
    stops = list(range(0, 264, 4))
    answers = sample(built, [[5, 6, 7]], [list(range(24))], Draw(), stops, 5)[0]
    assert {one.truncated for one in answers} == {True, False}
    for one in answers:
        assert not any(token in stops for token in one.ids[:-1])
        assert one.truncated == (one.ids[-1] not in stops)
        assert len(one.ids) == len(one.logprobs) == len(one.kept) <= 5


def test_what_is_kept_is_what_transformers_keeps():
    torch.manual_seed(0)
    scores = torch.randn(8, 300).mul(3).log_softmax(-1)
    draw = Draw(top_k=50, top_p=0.8, min_p=0.05)
    theirs = LogitsProcessorList([TopKLogitsWarper(50), TopPLogitsWarper(0.8), MinPLogitsWarper(0.05)])(None, scores)
    assert torch.equal(kept(scores, draw), theirs.isfinite())


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_advantages_compare_within_the_group_and_leave_out_what_is_missing(scale):
    rewards = np.array([[0.0, 1.0, 1.0, 0.0], [2.0, 2.0, 2.0, 2.0], [1.0, np.nan, 3.0, np.nan]], dtype=np.float32)
    found = advantages(rewards, scale)
    assert (found[1] == 0).all()
    assert found[2, 1] == found[2, 3] == 0
    np.testing.assert_allclose(found.sum(1), 0, atol=1e-6)
    expected = {"group": 0.5 / (np.std(rewards[0], ddof=1) + 1e-4), "none": 0.5}
    if scale in expected:
        assert found[0, 1] == pytest.approx(expected[scale], rel=1e-5)


def plain_policy(logps, old, adv, settings):
    """The published losses on padded rows, written out one answer after another."""
    total = sum(len(row) for row in logps)
    losses = []
    for row, before, advantage in zip(logps, old, adv, strict=True):
        log_ratio = row - before
        if settings.importance_sampling_level == "sequence":
            log_ratio = log_ratio.mean().expand_as(row)
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1 - settings.epsilon, 1 + settings.epsilon_high)
        token = -torch.min(ratio * advantage, clipped * advantage)
        weight = {
            "grpo": 1 / (len(row) * len(logps)),
            "dapo": 1 / total,
            "dr_grpo": 1 / (len(logps) * settings.max_completion_length),
        }[settings.loss_type]
        losses.append((token * weight).sum())
    return sum(losses)


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo"])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_the_loss_and_its_gradient_are_the_published_ones(loss_type, level):
    torch.manual_seed(0)
    settings = GRPO(loss_type=loss_type, importance_sampling_level=level, max_completion_length=9)
    lengths = [3, 5, 1, 4]
    old = [torch.randn(length) - 2 for length in lengths]
    adv = [0.5, -1.0, 2.0, -0.3]
    answers = [
        Answer(Sampled(ids=[7] * len(row), logprobs=row.tolist(), kept=[None] * len(row)), "", Grade(0, {}), one)
        for row, one in zip(old, adv, strict=True)
    ]
    groups = [Group(Prompt(1, [1, 2], [], "", {}), answers[:2]), Group(Prompt(2, [3], [], "", {}), answers[2:])]
    batch = rollouts.gather(groups, 1.0, mask_truncated=False)
    now = (torch.cat(old) + 0.4 * torch.randn(sum(lengths))).requires_grad_()
    loss, metrics = policy(now, batch, settings, answers=4, tokens=13)
    loss.backward()
    ours, now.grad = now.grad.clone(), None
    expected = plain_policy(now.split(lengths), old, adv, settings)
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), abs=1e-6)
    torch.testing.assert_close(ours, now.grad, atol=1e-6, rtol=1e-5)
    assert 0 < metrics["clip_ratio"] < 1


def test_a_kl_term_pulls_towards_the_reference():
    answer = Answer(Sampled(ids=[7, 7], logprobs=[-1.0, -1.0], kept=[None, None]), "", Grade(0, {}), 0.0)
    batch = rollouts.gather([Group(Prompt(1, [1], [], "", {}), [answer])], 1.0, mask_truncated=False)
    batch = replace(batch, drawn=replace(batch.drawn, reference_N=np.array([-2.0, -1.0], dtype=np.float32)))
    now = torch.tensor([-1.0, -1.0], requires_grad=True)
    loss, metrics = policy(now, batch, GRPO(beta=0.1), answers=1, tokens=2)
    loss.backward()
    assert now.grad[0] > 0 == now.grad[1]
    assert metrics["kl"] > 0


def test_a_run_is_rewarded_more_and_a_resumed_one_ends_bit_for_bit_the_same(make_questions, unproven, monkeypatch):
    method = {"top_p": 0.9, "beta": 0.05, "scale_rewards": "none"}
    saving = {"sample_prompts": 0, "eval_steps": 8, "save_steps": 8}
    settings = {"training": {"max_steps": 8}, "data": {"eval_fraction": 0.2}, "method": method, "saving": saving}
    straight, paused = make_questions("straight", **settings), make_questions("paused", **settings)
    assert train(straight.path) == 0
    ask_at(monkeypatch, paused, 5, "pause")
    assert train(paused.path) == 0
    assert train(paused.path) == 0
    steps = said(straight, Step)
    assert [step.metrics["reward"] for step in said(paused, Step)] == [step.metrics["reward"] for step in steps]
    saved = "adapter_model.safetensors"
    assert (paused.adapter / saved).read_bytes() == (straight.adapter / saved).read_bytes()
    assert steps[0].metrics["ratio"] == pytest.approx(1.0, abs=1e-4)
    assert {"reward_std", "entropy", "completions/clipped_ratio", "rewards/letters", "kl"} <= set(steps[0].metrics)
    assert np.mean([step.metrics["reward"] for step in steps[-3:]]) > np.mean([s.metrics["reward"] for s in steps[:3]])
    assert said(straight, Eval)[-1].loss == -said(straight, Eval)[-1].metrics["reward"]
    shown = said(straight, Rollout)
    assert len(shown[0].answers) == 4
    assert sum(one.advantage for one in shown[0].answers) == pytest.approx(0, abs=1e-4)


def test_groups_without_signal_change_nothing_and_a_failing_reward_ends_nothing(make_questions, unproven, monkeypatch):

    def broken(case, _):
        raise ZeroDivisionError("by zero")

    monkeypatch.setitem(grader.PLAIN, "broken", broken)
    run = make_questions(method={"rewards": {"broken": 1.0}}, training={"max_steps": 2})
    assert train(run.path) == 0
    steps = said(run, Step)
    assert [step.grad_norm for step in steps] == [0.0, 0.0]
    assert steps[0].metrics["frac_reward_zero_std"] == 1.0
    assert steps[0].metrics["rewards/missing"] == 1.0
    (warning,) = [event for event in said(run, Warned) if event.code == "reward_failed"]
    assert "by zero" in warning.message


def test_several_steps_learn_from_the_same_answers(make_questions, unproven):
    run = make_questions(method={"num_iterations": 3}, data={"eval_fraction": 0.0})
    assert train(run.path) == 0
    steps = said(run, Step)
    assert len({step.metrics["reward"] for step in steps[:3]}) == 1
    assert steps[1].metrics["logps/difference"] > steps[0].metrics["logps/difference"]
    assert steps[2].metrics["reward"] != steps[3].metrics["reward"]


class Letters:
    """A tokenizer whose tokens are texts."""

    all_special_tokens = ("<end>",)

    def decode(self, ids, **_):
        return "".join(ids)


def test_reasoning_is_read_apart_from_the_answer():
    reader = Reader(Letters(), "<think>", "</think>", "<think>\n")
    assert reader.read(["?"], ["<think>", "a b", "</think>", "\n\n4", "<end>"]) == Completion("4", "a b", 3)
    assert reader.read(["?"], ["<think>", "a b"]) == Completion("", None, 2)
    assert reader.read(["?"], ["4", "<end>"]) == Completion("4", "", 0)
    assert reader.read(["?", "<think>", "\n"], ["a", "</thi", "nk>", "4"]) == Completion("4", "a", 3)
    assert reader.read(["?", "<think>", "\n"], ["a b"]) == Completion("", None, 1)
    assert Reader(Letters()).read(["?"], ["4", "<end>"]) == Completion("4", "", None)


@pytest.mark.parametrize(
    ("template", "cue"), [(THINKING, ""), (OPENED, "<think>\n"), (CHATML, "")], ids=["rows", "prompt", "none"]
)
def test_the_template_tells_how_a_thought_is_opened_and_closed(template, cue):
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    reader = reader_for(Renderer(tokenizer, [tokenizer.eos_token_id]))
    if template == CHATML:
        assert reader == Reader(tokenizer)
        return
    assert (reader.opening, reader.closing, reader.cue) == ("<think>", "</think>", cue)
    assert tokenizer.decode(reader.closes) == "\n</think>\n\n"


def closing_after(budget):
    """Thoughts that never end by themselves are closed by three tokens, the first of which may be there already."""
    return Draw(thinking=Thinking(budget, (260, 40, 41), lambda prompt, ids: 40 not in ids and prompt != [9]))


def test_an_open_thought_is_closed_after_its_budget_and_what_was_put_there_is_not_learned(make_questions):
    _, trainer, _ = trainer_of(make_questions())
    prompts = [[5, 6, 7], [9]]
    sampled = trainer.sample_groups(prompts, [[1, 2, 3], [4, 5, 6]], closing_after(4), 12)
    free = trainer.sample_groups(prompts, [[1, 2, 3], [4, 5, 6]], Draw(), 12)
    assert [one.ids for one in sampled[1]] == [one.ids for one in free[1]]  # it had no thought to close
    closed = [one for one in sampled[0] if one.forced]
    assert closed
    for one, without in zip(sampled[0], free[0], strict=True):
        if one.forced:
            assert one.ids[:4] == without.ids[:4]
            assert one.ids[4:7] == [260, 40, 41]
            assert len(one.logprobs) == len(one.kept) == len(one.ids) - 3
    batch = rollouts.gather(grouped(prompts, sampled), 1.0, mask_truncated=False)
    assert len(batch.ids_T) - batch.trained_tokens == 4 + 3 * len(closed)
    ratio = np.exp(trainer.logprobs(batch).numpy() - batch.drawn.logprobs_N)
    assert np.abs(ratio - 1).max() < 1e-4


def test_a_closing_that_was_begun_is_gone_on_with():
    answer = Sampled(ids=[1, 2, 260])
    closing_after(3).thinking.end([5], answer)
    assert answer.forced == range(3, 5)
    cut = Sampled(ids=[1], truncated=False)
    closing_after(3).thinking.end([5], cut)
    assert not cut.forced


def test_a_run_limits_reasoning_and_tells_its_length(make_questions, unproven, tiny_model, tmp_path):
    model = shutil.copytree(tiny_model("llama"), tmp_path / "thinks")
    (model / "chat_template.jinja").write_text(OPENED)
    method = {"thinking_budget": 3, "max_completion_length": 20}
    run = make_questions(method=method, model=str(model), training={"max_steps": 1}, data={"eval_fraction": 0.0})
    assert train(run.path) == 0
    (step,) = said(run, Step)
    told = step.metrics
    parts = told["completions/mean_reasoning_length"] + told["completions/mean_answer_length"]
    assert parts == pytest.approx(told["completions/mean_length"])
    assert 3 <= told["completions/mean_reasoning_length"] <= 3 + len("\n</think>\n\n")
    assert told["ratio"] == pytest.approx(1.0, abs=1e-4)
    assert {one.reasoning_tokens for one in said(run, Rollout)[0].answers} <= set(range(16))


def test_a_budget_without_reasoning_is_refused(make_questions):
    run = make_questions(method={"thinking_budget": 3})
    assert train(run.path) == 1
    assert everything(run)[-1].code == "no_reasoning"
    with pytest.raises(ValueError, match="thinking_budget must be below"):
        GRPO(thinking_budget=64, max_completion_length=64)
