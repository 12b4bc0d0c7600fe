"""The weights that are offered are the best by the held-out rows, whatever happens to the run meanwhile."""

import shutil

import pytest
from safetensors.torch import load_file

from engine import loop
from engine.best import lowest, without_gain
from engine.evaluation import Evaluated
from engine.events import Eval, Finished, Sample, Saved, Step, Warned
from engine.methods import EVALUATIONS
from engine.train import train
from tests.engine.runs import ask_at, said

pytestmark = pytest.mark.usefixtures("unproven")

LOSSES = [3.0, 2.0, 2.5, 2.6, 2.7]  # at steps 2, 4, 6, 8, 10
SAVING = {"eval_steps": 2, "save_steps": 5, "save_total_limit": 1, "sample_prompts": 1}


@pytest.fixture
def measured(monkeypatch):
    """Evaluations find these losses by step, so that the best one is known."""

    def use(found):
        def held_out(trainer, spec, samples):
            return Evaluated(loss=found[trainer.step // 2 - 1], tokens=9)

        monkeypatch.setitem(EVALUATIONS, "sft", held_out)

    use(LOSSES)
    return use


def weights(run):
    return load_file(run.adapter / "adapter_model.safetensors")


def checkpoint(run, step):
    return load_file(run.checkpoints / f"step-{step}" / "adapter.safetensors")


def offers(run, step):
    """Whether the adapter holds the weights that the checkpoint of this step has."""
    found, kept = weights(run), checkpoint(run, step)
    return all(
        any((value == other).all() for other in kept.values() if other.shape == value.shape) for value in found.values()
    )


def test_the_best_adapter_is_kept_beyond_the_limit_and_offered(make_run, measured):
    run = make_run(saving=SAVING)
    assert train(run.path) == 0
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["step-10", "step-4"]
    assert [event.best for event in said(run, Eval)] == [True, True, False, False, False]
    assert offers(run, 4)
    assert not offers(run, 10)
    assert [event.step for event in said(run, Saved) if event.what == "adapter"] == [4]
    assert [event.step for event in said(run, Sample)] == [4]
    finished = said(run, Finished)[-1]
    assert finished.step == 10
    assert "that of step 4, where the eval loss was lowest: 2." in finished.message
    assert (
        "The weights are those of step 4 of 10, where the eval loss was 2.0000."
        in (run.adapter / "README.md").read_text()
    )


def test_the_last_adapter_is_offered_when_it_is_asked_for(make_run, measured):
    run = make_run(saving={**SAVING, "load_best_model_at_end": False})
    assert train(run.path) == 0
    assert [path.name for path in run.checkpoints.iterdir()] == ["step-10"]
    assert offers(run, 10)
    assert "that of the last step, 10" in said(run, Finished)[-1].message


def test_evaluations_without_gain_end_the_run_early_with_the_best_adapter(make_run, measured):
    run = make_run(saving={**SAVING, "early_stopping_patience": 2})
    assert train(run.path) == 0
    assert said(run, Step)[-1].step == 8
    finished = said(run, Finished)[-1]
    assert (finished.status, finished.code, finished.step) == ("succeeded", "stopped_early", 8)
    assert "Stopped early at step 8 of 10: 2 evaluations in a row were not better." in finished.message
    assert offers(run, 4)


def test_a_run_that_ended_early_trains_no_further_when_its_end_is_repeated(make_run, measured):
    run = make_run(saving={**SAVING, "early_stopping_patience": 2})
    assert train(run.path) == 0
    shutil.rmtree(run.adapter)
    assert train(run.path) == 0
    assert [step.step for step in said(run, Step)] == list(range(1, 9))
    assert offers(run, 4)


def test_a_run_paused_after_its_best_step_offers_that_step(make_run, measured, monkeypatch):
    paused, straight = make_run("paused", saving=SAVING), make_run("straight", saving=SAVING)
    assert train(straight.path) == 0
    ask_at(monkeypatch, paused, 7, "pause")
    assert train(paused.path) == 0
    assert train(paused.path) == 0
    assert [step.step for step in said(paused, Step)] == list(range(1, 11))
    assert all((value == weights(straight)[name]).all() for name, value in weights(paused).items())


def test_a_best_checkpoint_that_is_damaged_is_told_and_the_last_weights_are_offered(make_run, measured, monkeypatch):
    run = make_run(saving=SAVING)
    real = loop._take_best

    def damaged(run_in_progress):
        (run.checkpoints / "step-4" / "adapter.safetensors").write_bytes(b"half")
        real(run_in_progress)

    monkeypatch.setattr(loop, "_take_best", damaged)
    assert train(run.path) == 0
    (warning,) = said(run, Warned)
    assert warning.code == "best_lost"
    assert offers(run, 10)


def test_losses_that_are_not_finite_are_never_the_best():
    evals = [Eval(step=step, loss=loss, tokens=1) for step, loss in ((1, float("nan")), (2, 2.0), (3, float("inf")))]
    assert lowest(evals).step == 2
    assert lowest(evals[:1]) is None
    assert without_gain(evals) == 3
    assert without_gain([evals[0].model_copy(update={"best": True}), *evals]) == 3
