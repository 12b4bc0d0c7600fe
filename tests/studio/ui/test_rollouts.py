"""Groups of sampled answers as markup: the best first, with what each was worth; settings of each method."""

import numpy as np

from engine.spec import METHODS, Data, RunSpec
from studio.curves import Curves
from studio.db.tables import Run
from studio.ui.views import compare, rollouts, run, run_tabs

ANSWERS = [
    {"text": "<b>7</b>", "reward": 0.0, "rewards": {"exact_match": 0.0}, "advantage": -0.9, "tokens": 3},
    {"text": "42", "reward": 1.5, "rewards": {"exact_match": 1.0, "finished": 0.5}, "advantage": 1.1, "tokens": 2},
    {"text": "", "reward": None, "rewards": {"exact_match": None}, "advantage": 0.0, "tokens": 64},
]
GROUP = {
    "step": 12,
    "prompt": [{"role": "user", "content": "What is 6 times 7?"}],
    "expected": "42",
    "answers": [one | {"truncated": one["text"] == ""} for one in ANSWERS],
}


def test_answers_stand_by_worth_and_are_shown_as_text() -> None:
    shown = str(rollouts.groups([GROUP]))
    assert "&lt;b&gt;7&lt;/b&gt;" in shown
    assert "mean reward 0.75" in shown
    assert shown.index("1.5") < shown.index("&lt;b&gt;7") < shown.index("cut off")
    assert "exact_match 1" in shown
    assert f"{rollouts.MINUS}0.9" in shown
    assert "+1.1" in shown


def test_only_the_newest_groups_are_shown_and_the_latest_are_open() -> None:
    told = [GROUP | {"step": step} for step in range(1, 40)]
    shown = str(rollouts.groups(told))
    assert shown.count("<summary") == rollouts.SHOWN
    assert shown.index("Step 39") < shown.index("Step 38")
    assert shown.count(" open") == rollouts.OPEN


def test_a_run_shows_the_settings_of_its_own_method() -> None:
    for name, section in METHODS.items():
        spec = RunSpec(model="m", data=Data(dataset="d"), method=section())
        stored = Run(id="run-1", name="r", status="queued", spec=spec.model_dump(mode="json"), method=name)
        story = run.Story(stored, None, None)
        shown = str(run_tabs.settings_of(story))
        assert (">Beta<" in shown) == (name in {"dpo", "kto"})
        assert ("Answers per prompt" in shown) == (name == "grpo")


def test_a_run_with_rewards_tells_them_in_the_place_of_its_losses() -> None:
    rewarded = Run(method="grpo", eval_loss=-0.25, best_eval_loss=-0.5)
    told = Curves({"step": np.arange(2.0), "metrics/reward": np.array([0.1, 0.3])}, {"step": np.zeros(0)})
    shown = "".join(map(str, run.rewards(rewarded, told)))
    assert "highest 0.300" in shown
    assert "<b>0.250" in shown
    assert "best 0.500" in shown


def test_settings_of_different_methods_are_not_compared_one_by_one() -> None:
    made = [
        Run(id=f"run-{name}", name=name, method=name, spec={"method": method, "lora": {"r": r}})
        for r, (name, method) in enumerate({"dpo": {"type": "dpo", "beta": 1}, "grpo": {"type": "grpo"}}.items(), 4)
    ]
    told = Curves({"step": np.zeros(0)}, {"step": np.zeros(0)})
    shown = str(compare.differences([(one, told) for one in made], {}))
    assert "Rank" in shown
    assert "Method" in shown
    assert "GRPO" in shown
    assert "Beta" not in shown
    weighted = [Run(id=f"run-{n}", name="", method="grpo", spec={"method": {"rewards": {"regex": n}}}) for n in (1, 2)]
    assert "Reward: regex" in str(compare.differences([(one, told) for one in weighted], {}))
