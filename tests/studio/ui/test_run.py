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
