"""Will it fit: every state of the panel, and the one button that makes it fit."""

from collections.abc import Callable
from typing import Any

import pytest

from engine.spec import RunSpec
from studio.context import Studio
from studio.db.tables import Dataset, Model, Plan, Worker, now
from studio.queue import RUNS
from studio.ui.pages import train_fit
from studio.ui.views import fit, train
from tests.fake_engine import planned
from tests.studio.ui.test_tokens import text_of


def told(size: int = 1) -> dict[str, Any]:
    training = {"per_device_train_batch_size": size}
    return planned({"spec": {"training": training}, "devices": [{}], "tokens_per_second": None})


def plan(status: str = "ready", size: int = 1, **values: Any) -> Plan:
    return Plan(id="p", status=status, told=told(size) | values if status == "ready" else None, error="no such kernel")


@pytest.mark.parametrize(
    ("shown", "wanted", "said"),
    [
        (None, False, "Memory and time appear here"),
        (None, True, "No worker is running"),
        (plan("waiting"), True, "Working out memory and time"),
        (plan("failed"), True, "no such kernel"),
        (plan(), True, "1 device · about 3 min · 9 steps"),
        (plan(devices=8), True, "8 devices"),
        (plan(size=1000), True, "It does not fit: 2.0 GiB too much."),
        (plan(size=1000), True, "One at a time."),
        (plan(size=1000, changes=None), True, "Choose a smaller model"),
        (plan(seconds=None, steps=None), True, "1 device"),
    ],
)
def test_every_state_of_the_panel_has_words(shown: Plan | None, wanted: bool, said: str) -> None:
    assert said in text_of(fit.panel(shown, wanted=wanted))


def test_the_bar_is_to_scale_and_named() -> None:
    bar = str(fit.bar(told()))
    assert "width:18.75%" in bar  # 3 of 16 GiB
    assert 'aria-label="4.0 GiB of 16.0 GiB on each device"' in bar
    assert "free" in text_of(fit.legend(told()))
    over = str(fit.bar(told(1000)))
    assert "left:50.00%" in over


def test_the_button_names_the_change_and_is_there_only_when_it_helps() -> None:
    assert fit.remedy(None) == ""
    assert fit.remedy(plan()) == ""
    assert fit.remedy(plan(size=1000)) == "Make it fit: Batch size 1"


def test_the_change_goes_into_the_form() -> None:
    values = {"training.per_device_train_batch_size": 1000, "lora.r": 8}
    assert train_fit.repaired(plan(size=1000), values) == values | {"training.per_device_train_batch_size": 1}
    assert train_fit.repaired(None, values) == values


def test_start_says_how_long_it_takes_once_that_is_known() -> None:
    ready = {"dataset": Dataset(status="ready", kind="chat"), "model": Model(status="ready")}
    spec = RunSpec.model_validate({"model": "m", "data": {"dataset": "d"}})
    assert train.start(train.Chosen(**ready, spec=spec)) == ("Start", True)
    assert train.start(train.Chosen(**ready, spec=spec, plan=plan())) == ("Start · about 3 min on 1 device", True)
    here = plan()
    here.devices = [{"kind": "cpu"}]
    assert train.start(train.Chosen(**ready, spec=spec, plan=here)) == ("Start · about 3 min on this CPU", True)
    known = train.Chosen(**ready, spec=spec, plan=plan(seconds=None))
    assert train.start(known) == ("Start · 9 steps", True)


def test_the_page_asks_for_the_plan_once_and_waits_for_the_rows(
    studio: Studio, ready: Callable[[Studio], RunSpec]
) -> None:
    spec = ready(studio)
    device = {"name": "cpu", "kind": "cpu", "label": "CPU", "total_bytes": 8 << 30, "used_bytes": 0}
    with studio.session() as session:
        session.add(Worker(id="w", host="h", queue=RUNS, seen_at=now(), devices=[device]))
    with studio.session() as session:
        chosen = train.Chosen(session.get(Dataset, spec.data.dataset), session.get(Model, spec.model), spec)
        assert train_fit.found(session, studio, chosen) is None
        first = train_fit.plan_of(session, studio, chosen)
        assert first is not None
        assert train_fit.waits(first)
        assert train_fit.mark(first).endswith("waiting")
        assert train_fit.found(session, studio, chosen) is first
        assert train_fit.plan_of(session, studio, train.Chosen(chosen.dataset, None, spec)) is None
