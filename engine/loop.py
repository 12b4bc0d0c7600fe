"""Every step of a run's method: said, measured, evaluated, saved when due, and stopped when asked."""

import math
import time

from engine.checkpoint import size_of
from engine.events import Eval, Phase, Saved, Step, Warned
from engine.failure import Failure
from engine.memory import measure
from engine.methods import EVALUATIONS, METHODS
from engine.run import Last, Run, asked, stop_if_asked
from engine.schedule import share_of
from engine.stopping import Stopped
from engine.trainer import Stepped

NON_FINITE_IN_A_ROW = 3


def train_steps(run: Run, last: Last) -> None:
    """Every step of the method: say it, measure and save when due, stop when asked."""
    saving = run.spec.saving
    eval_every, save_every = share_of(saving.eval_steps, run.total), share_of(saving.save_steps, run.total)
    run.say(Phase(phase="training"))
    stop_if_asked(run.folder, run.signals)
    began = time.perf_counter()
    for done in METHODS[run.spec.method.type](run.trainer, run.spec, run.plan):
        last.step = done.step
        _say_step(run, done, time.perf_counter() - began)
        _check_finite(run, done)
        if done.step % eval_every == 0 or done.step == run.total:
            _evaluate(run)
        reason = asked(run.folder, run.signals)
        due = done.step % save_every == 0 or done.step == run.total or reason == "pause"
        if due and not run.bad_steps:
            _checkpoint(run)
        if reason and done.step < run.total:
            raise Stopped(reason)
        began = time.perf_counter()


def _say_step(run: Run, done: Stepped, seconds: float) -> None:
    step = Step(
        step=done.step,
        epoch=run.plan.epoch(done.step),
        loss=done.loss,
        learning_rate=done.learning_rate,
        grad_norm=done.grad_norm,
        tokens=done.tokens,
        trained_tokens=done.trained_tokens,
        seconds=seconds,
        tokens_per_second=done.tokens / seconds,
        memory=[measure(run.trainer.built.device)],
        metrics=done.metrics,
    )
    if run.trainer.built.device.type == "cpu":
        run.heap.tidy(step.memory[0].allocated)
    run.history.steps.append(step)
    run.say(step)


def _check_finite(run: Run, done: Stepped) -> None:
    """Warn about a step that was not finite; Failure when they follow one another."""
    if math.isfinite(done.loss) and not done.skipped:
        run.bad_steps = 0
        return
    run.bad_steps += 1
    message = f"Step {done.step} had no finite loss or gradient, so it changed nothing."
    run.say(Warned(code="not_finite", message=message))
    if run.bad_steps < NON_FINITE_IN_A_ROW:
        return
    kept = f"The checkpoint of step {run.saved_step} is kept." if run.saved_step else "No checkpoint was made yet."
    raise Failure(
        "diverged",
        f"{NON_FINITE_IN_A_ROW} steps in a row had no finite loss or gradient. {kept}",
        [
            f"Learning rate {run.spec.optimizer.learning_rate / 10:g} instead of {run.spec.optimizer.learning_rate:g}.",
            "Precision float32.",
            "A longer warm-up, and gradient clipping at 1.",
        ],
    )


def _evaluate(run: Run) -> None:
    """What the method measures on the held-out rows."""
    if not len(run.prepared.eval):
        return
    run.say(Phase(phase="evaluating"))
    found = EVALUATIONS[run.spec.method.type](run.trainer, run.spec, run.prepared.eval)
    earlier = [event.loss for event in run.history.evals if event.loss is not None]
    event = Eval(
        step=run.trainer.step,
        loss=found.loss,
        tokens=found.tokens,
        best=found.loss < min(earlier, default=math.inf),
        metrics=found.metrics,
    )
    run.history.evals.append(event)
    run.say(event)
    run.say(Phase(phase="training"))


def _checkpoint(run: Run) -> None:
    step = run.trainer.step
    path = run.checkpoints.save(step, run.trainer.save)
    run.saved_step = step
    run.say(Saved(step=step, what="checkpoint", path=f"checkpoints/{path.name}", bytes=size_of(path)))
