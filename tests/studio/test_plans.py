"""Plans: asked for once for the same settings and devices, again when they failed, forgotten when nobody asks."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy import func, select

from engine.spec import RunSpec
from studio import plans, runs
from studio.context import Studio
from studio.db.tables import Plan, RunEvent, now

CPU = {"name": "cpu", "kind": "cpu", "label": "CPU, 2 threads", "total_bytes": 8 << 30, "used_bytes": 0}
GPU = {"name": "cuda:0", "kind": "cuda", "label": "NVIDIA H100 80GB HBM3", "total_bytes": 80 << 30, "used_bytes": 0}
Ready = Callable[[Studio], RunSpec]


def changed(spec: RunSpec, section: str, **values: object) -> RunSpec:
    return spec.model_copy(update={section: getattr(spec, section).model_copy(update=values)})


def test_the_same_run_has_the_same_plan_whoever_asks(both: Studio, ready: Ready) -> None:
    spec = ready(both)
    with both.session() as session:
        first, new = plans.ask(session, spec, [CPU])
        again, asked = plans.ask(session, spec.model_copy(update={"name": "another"}), [CPU])
        assert first is again
        assert (new, asked) == (True, False)
    with both.session() as session:
        assert session.scalar(select(func.count()).select_from(Plan)) == 1


@pytest.mark.parametrize(
    ("section", "values", "same"),
    [
        ("data", {"max_length": 64}, False),
        ("lora", {"r": 4}, False),
        ("training", {"gradient_checkpointing": True}, False),
        ("layout", {"shard": 2}, False),
        ("layout", {"hosts": 2}, True),
        ("optimizer", {"optim": "adamw_bf16"}, False),
        ("optimizer", {"learning_rate": 0.5}, True),
        ("training", {"seed": 7}, True),
        ("data", {"sha256": "x"}, True),
    ],
)
def test_only_what_changes_memory_or_time_makes_another_plan(
    studio: Studio, ready: Ready, section: str, values: dict[str, object], same: bool
) -> None:
    spec = ready(studio)
    assert (plans.key_of(spec, [CPU]) == plans.key_of(changed(spec, section, **values), [CPU])) is same
    assert plans.key_of(spec, [CPU]) != plans.key_of(spec, [GPU])


def test_the_devices_are_those_that_the_run_would_take(studio: Studio, ready: Ready) -> None:
    spec = ready(studio)
    assert plans.devices_for(spec, [CPU]) == [CPU]
    assert plans.devices_for(spec, [GPU, GPU, CPU]) == [GPU]
    assert plans.devices_for(changed(spec, "training", device="cpu"), [GPU, CPU]) == [CPU]
    assert plans.devices_for(changed(spec, "layout", shard=2), [GPU, GPU, CPU]) == [GPU, GPU]
    with studio.session() as session:
        assert plans.ask(session, spec, []) == (None, False)


def test_a_run_that_leaves_its_layout_open_takes_as_many_devices_as_planned(studio: Studio, ready: Ready) -> None:
    spec, two = ready(studio), [GPU, GPU | {"name": "cuda:1"}]
    assert plans.devices_for(spec, [*two, CPU]) == two
    with studio.session() as session:
        assert plans.devices_needed(session, changed(spec, "layout", tensor=2), two) == 2
        assert plans.devices_needed(session, spec, two) == 1  # nobody knows yet
        plan, _ = plans.ask(session, spec, two)
        assert plan is not None
        plan.status, plan.told = "ready", {"devices": 2}
    with studio.session() as session:
        assert plans.devices_needed(session, spec, two) == 2


def test_a_failed_plan_is_tried_again_after_a_while(studio: Studio, ready: Ready) -> None:
    spec = ready(studio)
    for age, again in ((1, False), (60, True)):
        with studio.session() as session:
            plan, _ = plans.ask(session, spec, [CPU])
            assert plan is not None
            plan.status, plan.asked_at = "failed", now() - timedelta(seconds=age)
        with studio.session() as session:
            assert plans.ask(session, spec, [CPU])[1] is again


def test_old_plans_go_when_a_new_one_comes(studio: Studio, ready: Ready) -> None:
    spec = ready(studio)
    with studio.session() as session:
        plan, _ = plans.ask(session, spec, [CPU])
        assert plan is not None
        plan.asked_at = now() - plans.KEPT - timedelta(hours=1)
    with studio.session() as session:
        plans.ask(session, changed(spec, "lora", r=2), [CPU])
    with studio.session() as session:
        assert plans.found(session, spec, [CPU]) is None


def test_earlier_runs_alike_tell_how_fast_it_will_be(studio: Studio, ready: Ready) -> None:
    spec = ready(studio)
    with studio.session() as session:
        assert plans.speed(session, spec) is None
        run = runs.create(session, spec)
        run.step = 4
        for step, speed in enumerate((1.0, 100.0, 300.0, 200.0), start=1):  # the first step warms up
            data = {"kind": "step", "step": step, "tokens_per_second": speed}
            session.add(RunEvent(run_id=run.id, offset=step, kind="step", step=step, time=0.0, data=data))
    with studio.session() as session:
        assert plans.speed(session, spec) == 200.0
        assert plans.speed(session, changed(spec, "training", gradient_checkpointing=True)) is None
