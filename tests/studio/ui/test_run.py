"""A run's page as markup, made from rows that are in no database."""

from typing import get_args

import pytest

from engine.spec import Method, RunSpec
from studio.db.tables import Run
from studio.ui.views import run as views
from studio.ui.views import run_tabs
from studio.ui.views.run import Story


def story(method: str = "sft", **events: list[dict[str, object]]) -> Story:
    """A run of a method with what it said, by kind."""
    spec = RunSpec.model_validate({"model": "m", "data": {"dataset": "d"}, "method": {"type": method}})
    run = Run(id="run-1", name="r", status="running", model_id="m", dataset_id="d", method=method)
    run.spec = spec.model_dump(mode="json")
    return Story(run, None, None, events=events)


@pytest.mark.parametrize("method", [one.model_fields["type"].default for one in get_args(get_args(Method)[0])])
def test_the_settings_of_every_method_are_told(method: str) -> None:
    shown = run_tabs.settings_of(story(method))
    assert "Every setting is at its default." in shown
    assert "Rank" in shown


def test_what_a_run_warns_about_is_told_once_with_how_often_it_came_up() -> None:
    said = [{"code": "not_finite", "message": f"Step {step}: the loss is <no> number"} for step in (1, 2)]
    shown = "".join(views.warnings(story(warning=[*said, {"code": "other", "message": "Rows were cut"}])))
    assert "Step 1" not in shown
    assert "Step 2: the loss is &lt;no&gt; number" in shown
    assert "2 times so far." in shown
    assert shown.count("times") == 1


def test_a_run_says_which_hosts_it_is_on_and_what_it_waits_for_before() -> None:
    told = story(started=[{"device": "CUDA: H100", "devices": 16, "hosts": ["alpha", "beta"], "layout": "data 2"}])
    assert "<dt>Hosts</dt><dd>alpha, beta</dd>" in run_tabs.settings_of(told)
    assert "Hosts</dt><dd></dd>" not in run_tabs.settings_of(story(started=[{"device": "CPU", "hosts": []}]))
    told.run.status = "queued"
    assert "Waiting for a free worker" in views.progress(told)
    told.run.spec["layout"]["hosts"] = 2
    assert "Waiting for 2 hosts with free devices at once" in views.progress(told)
    told.run.phase_detail = "waiting for hosts: <beta> is gone"
    assert "Waiting for hosts: &lt;beta&gt; is gone" in views.progress(told)
