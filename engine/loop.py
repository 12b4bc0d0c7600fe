"""Every step of a run's method: said, measured, evaluated, saved when due, and stopped when asked."""

import math
import sys
import time
from functools import partial

from engine.best import better, without_gain
from engine.checkpoint import fault_of, size_of, step_of
from engine.events import Attempt, Eval, Phase, Rollout, Saved, Step, Warned
from engine.failure import Change, Failure
from engine.memory import measure
from engine.methods import EVALUATIONS, METHODS
from engine.run import Last, Run, asked, stop_if_asked
from engine.schedule import share_of
from engine.stopping import Stopped
from engine.trainer import Stepped

NON_FINITE_IN_A_ROW = 3
CALMER = "A longer warm-up, and gradient clipping at 1."
ROLLOUTS = 100  # groups of sampled answers that a run shows


def train_steps(run: Run, last: Last) -> None:
    """Every step of the method; at the end the trainer holds the weights that are to be offered.

    However the steps end, the checkpoint that is being written is whole before anything else happens, or has failed.
    """
    try:
        _steps(run, last)
    finally:
        if run.trainer.server is not None and run.mesh.main:
            run.trainer.server.forget()
        _settle(run, wait=True)
    _take_best(run)


def _steps(run: Run, last: Last) -> None:
    """Say each step, measure and save when due, stop when asked or when no gain is left."""
    saving = run.spec.saving
    eval_every, save_every = share_of(saving.eval_steps, run.total), share_of(saving.save_steps, run.total)
    run.say(Phase(phase="training"))
    stop_if_asked(run.folder, run.signals, run.mesh)
    steps = METHODS[run.spec.method.type](run.trainer, run.spec, run.plan)
    began = time.perf_counter()
    while not gains_nothing(run) and (done := next(steps, None)):
        last.step = done.step
        _say_step(run, done, time.perf_counter() - began)
        _say_rollout(run, done)
        _settle(run, wait=False)
        _check_finite(run, done)
        measured = done.step % eval_every == 0 or done.step == run.total
        best = measured and _evaluate(run)
        reason = asked(run.folder, run.signals, run.mesh)
        ends = done.step == run.total or gains_nothing(run)
        due = done.step % save_every == 0 or ends or best or reason == "pause"
        if due and not run.bad_steps:
            _checkpoint(run)
        if reason and not ends:
            raise Stopped(reason)
        began = time.perf_counter()


def gains_nothing(run: Run) -> bool:
    """Whether so many evaluations in a row brought nothing that the run is to end early."""
    patience = run.spec.saving.early_stopping_patience
    return 0 < patience <= without_gain(run.history.evals)


def _take_best(run: Run) -> None:
    """Go back to the best evaluation's weights, unless the last ones are asked for or none were ever measured."""
    if not run.spec.saving.load_best_model_at_end or run.best is None or run.best.step == run.trainer.step:
        return
    path = run.checkpoints.path(run.best.step)
    if fault := run.mesh.once(lambda: fault_of(path)):
        message = (
            f"The checkpoint of the best step {run.best.step} cannot be used: {fault}. The last weights are offered."
        )
        run.say(Warned(code="best_lost", message=message))
        return
    run.trainer.load(path)


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
        memory=run.mesh.everyones(measure(run.trainer.built.device, run.mesh.rank)),
        metrics=done.metrics,
    )
    if run.trainer.built.device.type == "cpu":
        run.heap.tidy(step.memory[run.mesh.rank].allocated)
    run.history.steps.append(step)
    run.say(step)


def _say_rollout(run: Run, done: Stepped) -> None:
    """Show one group of the step's answers, one with signal if there is any; and what its rewards failed at."""
    if not done.groups:
        return
    faults = dict.fromkeys(fault for group in done.groups for one in group.answers for fault in one.grade.faults)
    for fault in faults:
        name = fault.partition(":")[0]
        if name not in run.broken_rewards:
            run.broken_rewards.add(name)
            message = f"The reward {fault} Such answers count as without it; the log names the others."
            run.say(Warned(code="reward_failed", message=message))
        sys.stderr.write(f"step {done.step}: reward {fault}\n")
    if done.step % max(1, run.total // ROLLOUTS) and done.step != 1:
        return
    group = max(done.groups, key=lambda one: one.has_signal)
    run.say(
        Rollout(
            step=done.step,
            prompt=group.prompt.messages,
            expected=group.prompt.expected,
            answers=[
                Attempt(
                    text=one.text,
                    reward=one.grade.reward,
                    rewards=one.grade.parts,
                    advantage=one.advantage,
                    tokens=len(one.sampled.ids),
                    reasoning_tokens=one.reasoning_tokens,
                    truncated=one.sampled.truncated,
                )
                for one in group.answers
            ],
        )
    )


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
    _settle(run, wait=True)
    kept = f"The checkpoint of step {run.saved_step} is kept." if run.saved_step else "No checkpoint was made yet."
    rate = run.spec.optimizer.learning_rate
    changes = [
        Change({"optimizer.learning_rate": rate / 10}, f"Learning rate {rate / 10:g} instead of {rate:g}."),
        Change({"optimizer.warmup_steps": 0.1, "optimizer.max_grad_norm": 1.0}, CALMER),
    ]
    if run.spec.training.dtype != "float32":
        changes.append(Change({"training.dtype": "float32"}, "Precision float32."))
    message = f"{NON_FINITE_IN_A_ROW} steps in a row had no finite loss or gradient. {kept}"
    raise Failure("diverged", message, [change.effect for change in changes], changes)


def _evaluate(run: Run) -> bool:
    """Say what the method measures on the held-out rows; True when these weights are to be kept as the best."""
    if not len(run.prepared.eval):
        return False
    run.say(Phase(phase="evaluating"))
    found = EVALUATIONS[run.spec.method.type](run.trainer, run.spec, run.prepared.eval)
    best = better(found.loss, run.best) and not run.bad_steps  # between bad steps nothing is saved
    event = Eval(step=run.trainer.step, loss=found.loss, tokens=found.tokens, best=best, metrics=found.metrics)
    run.history.evals.append(event)
    run.best = event if best else run.best
    run.say(event)
    run.say(Phase(phase="training"))
    return best and run.spec.saving.load_best_model_at_end


def _checkpoint(run: Run) -> None:
    """Copy the state, which training waits for, and have it written, which the next checkpoint waits for."""
    _settle(run, wait=True)
    snapshot = run.trainer.save()
    kept = run.best.step if run.best and run.spec.saving.load_best_model_at_end else None
    if run.mesh.main:
        run.writer.begin(partial(run.checkpoints.save, snapshot.step, snapshot.write, kept))
    else:
        run.saved_step = snapshot.step


def _settle(run: Run, *, wait: bool) -> None:
    """Say that the checkpoint being written is whole, once it is. Raises what its writing raised (a full disk)."""
    if path := run.writer.finished(wait=wait):
        run.saved_step = step_of(path)
        saved = Saved(step=run.saved_step, what="checkpoint", path=f"checkpoints/{path.name}", bytes=size_of(path))
        run.say(saved)
