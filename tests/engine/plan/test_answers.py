"""Sampling in the plan: the cache is that of a real model to the byte, and only where answers are sampled."""

import pytest
import torch
from torch.utils._pytree import tree_leaves

from engine.build import build
from engine.generate import generating
from engine.plan import Machine, Planner, Rows, answers, parse, plan
from engine.plan.twin import make, read_config
from engine.spec import RunSpec
from tests.engine.conftest import TinyModel

ANSWERS, TOKENS = 6, 41
SAMPLED = "answers are sampled"


def spec_of(model: str = "m", **sections: dict[str, object]) -> RunSpec:
    method = {"type": "grpo", "num_generations": 8, "max_completion_length": 100, **sections.pop("method", {})}
    training = {"dtype": "float32", "device": "cpu", **sections.pop("training", {})}
    data = {"dataset": "d", "max_length": 40, "eval_fraction": 0.0, **sections.pop("data", {})}
    return RunSpec.model_validate({"model": model, "data": data, "method": method, "training": training})


@pytest.mark.parametrize("family", ["llama", "gpt_oss", "gemma3_text"])
def test_the_cache_of_a_real_model_is_planned_to_the_byte(tiny_model: TinyModel, family: str) -> None:
    spec = spec_of(str(tiny_model(family)))
    built = build(spec)
    with torch.no_grad(), generating(built):
        cache = built.model(torch.zeros(1, TOKENS - 1, dtype=torch.long), use_cache=True).past_key_values
        cache.batch_repeat_interleave(ANSWERS)
        one_more = torch.zeros(ANSWERS, 1, dtype=torch.long)
        built.model(one_more, position_ids=one_more + TOKENS - 1, cache=cache, use_cache=True)
    real = sum(one.nbytes for one in tree_leaves([vars(layer) for layer in cache.layers]) if hasattr(one, "nbytes"))
    planned = answers.measure(make(read_config(spec.model), torch.float32, spec), ANSWERS, TOKENS, kind="cpu")
    assert planned.cache == real
    assert planned.working > 0
    assert planned.choice == ANSWERS * 264 * answers.CHOICE


@pytest.mark.parametrize(
    ("prompts", "held", "batches", "expected"),
    [(1, 0, 1, 8), (4, 0, 1, 32), (100, 0, 1, 64), (1, 100, 1, 64), (1, 4, 1, 16), (1, 4, 4, 8)],
)
def test_as_many_answers_grow_together_as_a_run_lets_grow(prompts: int, held: int, batches: int, expected: int) -> None:
    spec = spec_of(training={"gradient_accumulation_steps": prompts}, data={"eval_fraction": 0.1})
    assert answers.at_once(spec, Rows(held * 10, (), 0, 0), batches) == expected


def test_a_plan_holds_the_answers_where_they_are_the_most(tiny_model: TinyModel) -> None:
    folder = str(tiny_model("llama"))
    planner, machine = Planner(read_config(folder)), Machine(*parse("cpu:8GB"))
    method = {"num_generations": 2, "max_completion_length": 400}
    wide = spec_of(folder, method=method, training={"gradient_accumulation_steps": 32})
    recomputed = wide.model_copy(update={"training": wide.training.model_copy(update={"gradient_checkpointing": True})})
    found = plan(recomputed, machine, planner=planner)
    assert found.chosen.needs.moment == SAMPLED
    assert found.chosen.needs.cache == 64 * 440 * 2 * 2 * 2 * 8 * 4  # texts, tokens, layers, kinds, heads, width, bytes
    assert found.told()["parts"]["cache"] == found.chosen.needs.cache
    assert found.tokens_per_step == 32 * (40 + 2 * 400)
    longer = wide.method.model_copy(update={"max_completion_length": 800})
    assert plan(wide.model_copy(update={"method": longer}), machine, planner=planner).chosen.needs.total > (
        plan(wide, machine, planner=planner).chosen.needs.total
    )
    imitating = RunSpec.model_validate({"model": folder, "data": {"dataset": "d", "max_length": 40}})
    assert plan(imitating, machine, planner=planner).chosen.needs.cache == 0
