"""Peaks of real runs of the starter model on a CPU (`python -m bench.plan`), reproduced by the plan within 10 %."""

from functools import cache
from pathlib import Path

import pytest

from engine.plan import Machine, Planner, Rows, parse, plan
from engine.plan.twin import read_config
from engine.spec import RunSpec

MIB = 2**20
TOLERANCE = 0.10
# (precision, recompute, tokens of the largest step, peak of the process in MiB)
MEASURED = (
    ("float32", False, 256, 1441),
    ("float32", False, 474, 1761),
    ("float32", False, 1024, 2453),
    ("float32", False, 2048, 3468),
    ("float32", True, 474, 1294),
    ("float32", True, 1024, 1362),
    ("float32", True, 2048, 1395),
)
# (prompts of a step, answers to each, tokens of an answer, of a prompt, prompts held out, peak in MiB), in bfloat16
QUESTIONS = 200
SAMPLED = (
    (8, 8, 8, 50, 0, 1079),
    (2, 4, 8, 50, 0, 1009),
    (4, 16, 32, 190, 0, 1435),
    (2, 4, 32, 190, 16, 1446),
    (16, 4, 32, 50, 16, 1159),
)


@cache
def planner(folder: Path) -> Planner:
    return Planner(read_config(str(folder)))


@pytest.mark.parametrize(("dtype", "recompute", "tokens", "peak"), MEASURED)
def test_a_measured_peak_is_reproduced(starter: Path, dtype: str, recompute: bool, tokens: int, peak: int) -> None:
    training = {"dtype": dtype, "gradient_checkpointing": recompute, "device": "cpu"}
    spec = RunSpec.model_validate(
        {"model": str(starter), "data": {"dataset": "d", "max_length": tokens}, "training": training}
    )
    planned = plan(spec, Machine(*parse("cpu:24GB")), planner=planner(starter)).chosen.needs.total
    assert planned / MIB == pytest.approx(peak, rel=TOLERANCE)


@pytest.mark.parametrize(("prompts", "answers", "tokens", "prompt", "held_out", "peak"), SAMPLED)
def test_a_measured_peak_of_sampling_is_reproduced(
    starter: Path, prompts: int, answers: int, tokens: int, prompt: int, held_out: int, peak: int
) -> None:
    spec = RunSpec.model_validate(
        {
            "model": str(starter),
            "data": {"dataset": "d", "max_length": 1024, "eval_fraction": held_out / QUESTIONS},
            "method": {"type": "grpo", "num_generations": answers, "max_completion_length": tokens},
            "training": {"dtype": "bfloat16", "device": "cpu", "gradient_accumulation_steps": prompts},
        }
    )
    rows = Rows(QUESTIONS, [(prompt, QUESTIONS)], QUESTIONS * prompt, prompt)
    planned = plan(spec, Machine(*parse("cpu:24GB")), rows, planner=planner(starter)).chosen.needs.total
    assert planned / MIB == pytest.approx(peak, rel=TOLERANCE)
