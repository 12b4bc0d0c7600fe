"""Peaks of real runs of the starter model on a CPU (`python -m bench.plan`), reproduced by the plan within 10 %."""

from functools import cache
from pathlib import Path

import pytest

from engine.plan import Machine, Planner, parse, plan
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
