"""One run from its folder to its last event. All events, checkpoints and stop requests pass through this loop."""

import math
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

from engine import events
from engine.adapter import save_adapter, verify_adapter, write_probe
from engine.batches import Plan, in_order
from engine.build import build, load_tokenizer, stop_ids
from engine.card import History, versions
from engine.checkpoint import Checkpoints, is_disk_full, size_of
from engine.data import Prepared, prepare
from engine.devices import choose_device, choose_dtype, name_of, set_threads
from engine.events import Eval, Event, Finished, Phase, Sample, Saved, Started, Step, Warned
from engine.failure import Failure
from engine.memory import Heap, is_out_of_memory, measure, out_of_memory
from engine.methods import METHODS
from engine.rundir import RunDir, StopReason
from engine.schedule import share_of
from engine.spec import RunSpec
from engine.stopping import Signals, Stopped
from engine.trainer import Stepped, Trainer

MOST_NEW_TOKENS = 96
NON_FINITE_IN_A_ROW = 3

Say = Callable[[Event], None]


@dataclass
class Run:
    """A run in progress: its folder, spec and voice, what is loaded, and what happened so far."""

    folder: RunDir
    spec: RunSpec
    say: Say
    tokenizer: Any
    prepared: Prepared
    plan: Plan
    trainer: Trainer
    checkpoints: Checkpoints
    signals: Signals
    total: int
    history: History = field(default_factory=History)
    heap: Heap = field(default_factory=Heap)
    saved_step: int = 0
    bad_steps: int = 0


def train(path: Path) -> int:
    """Train the run in folder `path`; 0 when its last event is succeeded, paused or cancelled, 1 when it is failed."""
    folder = RunDir(path)
    say: Say = partial(events.append, folder.events)
    signals = Signals()
    say(Phase(phase="starting"))
    with signals.listening():
        finished = _to_the_end(folder, say, signals)
    say(finished)
    if finished.status in {"paused", "cancelled"}:
        folder.stop.unlink(missing_ok=True)  # obeyed; a later resume must not find it
    return 1 if finished.status == "failed" else 0


def _to_the_end(folder: RunDir, say: Say, signals: Signals) -> Finished:
    """Do the work; every way a run can end becomes its last event."""
    run_spec: RunSpec | None = None
    last = _Last()
    try:
        run_spec = _read_spec(folder)
        return _work(folder, run_spec, say, signals, last)
    except Stopped as stopped:
        status = "cancelled" if stopped.reason == "cancel" else "paused"
        return Finished(
            status=status, step=last.step, code=status, message=f"The run was {status} at step {last.step}."
        )
    except Failure as failure:
        return _failed(failure, last)
    except (OSError, MemoryError, RuntimeError) as error:
        if is_disk_full(error):
            return Finished(
                status="paused",
                step=last.step,
                code="disk_full",
                message=f"The disk is full, so the run is paused at step {last.step}. Earlier checkpoints are kept.",
                advice=["Make space on the disk, then resume the run."],
            )
        if run_spec is None or not is_out_of_memory(error):
            raise
        dtype = choose_dtype(run_spec.training, choose_device(run_spec.training))
        return _failed(out_of_memory(run_spec, dtype, error), last)


@dataclass
class _Last:
    """The last step done, known to whoever writes the last event."""

    step: int = 0


def _failed(failure: Failure, last: _Last) -> Finished:
    sys.stderr.write(f"{failure}\n")
    return Finished(status="failed", step=last.step, code=failure.code, message=failure.message, advice=failure.advice)


def _read_spec(folder: RunDir) -> RunSpec:
    try:
        return folder.read_spec()
    except (FileNotFoundError, ValueError) as error:
        raise Failure("spec_unreadable", f"The run's spec.json cannot be read: {error}") from error


def _work(folder: RunDir, spec: RunSpec, say: Say, signals: Signals, last: _Last) -> Finished:
    """Load, train, measure, save, prove."""
    set_threads()
    with tempfile.TemporaryDirectory(prefix="atelier-") as scratch:
        probe = Path(scratch) / "probe.safetensors"
        run = _load(folder, spec, say, signals, last)
        _train(run, last)
        _sample(run)
        _save(run, probe)
        device = run.trainer.built.device
        del run  # the clean process needs the memory
        if device.type != "cpu":
            torch.accelerator.empty_cache()
        say(Phase(phase="checking_adapter", detail="loading it in a clean process with stock PEFT"))
        verdict = verify_adapter(folder.adapter, spec, probe, device)
    message = (
        f"The adapter loads in stock PEFT and its logits agree: {verdict['divergence']:.1g} nats from the trainer's, "
        f"{verdict['effect']:.1g} from the base model's."
    )
    return Finished(status="succeeded", step=last.step, message=message)


def _load(folder: RunDir, spec: RunSpec, say: Say, signals: Signals, last: _Last) -> Run:
    """Data first (its faults show soonest), then the model, then the newest whole checkpoint."""
    torch.manual_seed(spec.training.seed)
    say(Phase(phase="loading_data"))
    tokenizer = load_tokenizer(spec)
    stops = stop_ids(spec, tokenizer)
    prepared = prepare(spec, tokenizer, stops, say, frozen_date=_day_of_start(folder))
    plan = Plan(
        prepared.train,
        max_length=spec.data.max_length,
        packing=spec.data.packing,
        batch_size=spec.training.per_device_train_batch_size,
        accumulation=spec.training.gradient_accumulation_steps,
        seed=spec.training.seed,
    )
    _stop_if_asked(folder, signals)
    say(Phase(phase="loading_model"))
    built = build(spec)
    trainer = Trainer(built, spec.optimizer, stops)
    run = Run(
        folder=folder,
        spec=spec,
        say=say,
        tokenizer=tokenizer,
        prepared=prepared,
        plan=plan,
        trainer=trainer,
        checkpoints=Checkpoints(folder.checkpoints, spec.saving.save_total_limit),
        signals=signals,
        total=plan.total_steps(spec.training.num_train_epochs, spec.training.max_steps),
    )
    _resume(run)
    last.step = trainer.step
    say(_started(run))
    _warn(run)
    return run


def _day_of_start(folder: RunDir) -> date:
    """The day of the run's first event: a resumed run tells its chat template the same date again."""
    _, first = next(events.read(folder.events))
    return datetime.fromtimestamp(first.time, UTC).date()


def _resume(run: Run) -> None:
    """Go on from the newest whole checkpoint, and say so when a newer one was not whole."""
    found, passed = run.checkpoints.resume(run.trainer.load)
    for fault in passed:
        instead = f"went on from {found.name}" if found else "started from the beginning"
        run.say(
            Warned(
                code="checkpoint_passed_over", message=f"A checkpoint cannot be used, so the run {instead}. {fault}."
            )
        )
    run.saved_step = run.trainer.step
    if not found:
        return
    steps: dict[int, Step] = {}
    evals: dict[int, Eval] = {}
    for _, event in events.read(run.folder.events):
        if isinstance(event, Step) and event.step <= run.trainer.step:
            steps[event.step] = event
        elif isinstance(event, Eval) and event.step <= run.trainer.step:
            evals[event.step] = event
    run.history = History([steps[key] for key in sorted(steps)], [evals[key] for key in sorted(evals)])


def _started(run: Run) -> Started:
    counts, built = run.prepared.counts, run.trainer.built
    parameters = built.parameters()
    return Started(
        total_steps=run.total,
        first_step=run.trainer.step,
        device=name_of(built.device),
        dtype=str(built.dtype).removeprefix("torch."),
        train_rows=counts.train_rows,
        eval_rows=counts.eval_rows,
        bad_rows=counts.bad_rows,
        truncated_rows=counts.truncated_rows,
        trained_tokens=counts.trained_tokens,
        total_tokens=counts.total_tokens,
        trainable_parameters=sum(value.numel() for value in parameters.values()),
        total_parameters=sum(value.numel() for value in built.model.parameters()),
        versions=versions(),
    )


def _warn(run: Run) -> None:
    """Say what a person should know before the first step."""
    built = run.trainer.built
    if built.alone:
        message = f"Rows are computed one at a time, which is slower: in this model {built.alone}."
        run.say(Warned(code="documents_alone", message=message))
    context = getattr(built.model.config.get_text_config(), "max_position_embeddings", None)
    longest = int(run.prepared.train.lengths.max())
    if context and longest > context:
        message = (
            f"The longest row has {longest} tokens, but the model was made for {context}. Lower the maximum length."
        )
        run.say(Warned(code="beyond_context", message=message))


def _train(run: Run, last: _Last) -> None:
    """Every step of the method: say it, measure and save when due, stop when asked."""
    saving = run.spec.saving
    eval_every, save_every = share_of(saving.eval_steps, run.total), share_of(saving.save_steps, run.total)
    run.say(Phase(phase="training"))
    _stop_if_asked(run.folder, run.signals)
    began = time.perf_counter()
    for done in METHODS[run.spec.method.type](run.trainer, run.spec, run.plan):
        last.step = done.step
        _say_step(run, done, time.perf_counter() - began)
        _check_finite(run, done)
        if done.step % eval_every == 0 or done.step == run.total:
            _evaluate(run)
        reason = _asked(run.folder, run.signals)
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
    """Mean loss over the trained tokens of the held-out rows."""
    if not len(run.prepared.eval):
        return
    run.say(Phase(phase="evaluating"))
    total, tokens = 0.0, 0
    for batch in in_order(run.prepared.eval, run.spec.data.max_length):
        if batch.trained_tokens:
            total -= float(run.trainer.logprobs(batch).double().sum())
            tokens += batch.trained_tokens
    loss = total / tokens if tokens else math.nan
    earlier = [event.loss for event in run.history.evals if event.loss is not None]
    event = Eval(step=run.trainer.step, loss=loss, tokens=tokens, best=loss < min(earlier, default=math.inf))
    run.history.evals.append(event)
    run.say(event)
    run.say(Phase(phase="training"))


def _checkpoint(run: Run) -> None:
    step = run.trainer.step
    path = run.checkpoints.save(step, run.trainer.save)
    run.saved_step = step
    run.say(Saved(step=step, what="checkpoint", path=f"checkpoints/{path.name}", bytes=size_of(path)))


def _sample(run: Run) -> None:
    """Answer the held-out prompts with the base model and with the tuned one."""
    prompts = run.prepared.prompts
    if not prompts:
        return
    run.say(Phase(phase="sampling", total=len(prompts)))
    ids = [prompt.ids.tolist() for prompt in prompts]
    tuned = run.trainer.sample(ids, MOST_NEW_TOKENS)
    with run.trainer.base_model():
        base = run.trainer.sample(ids, MOST_NEW_TOKENS)
    for prompt, before, after in zip(prompts, base, tuned, strict=True):
        run.say(
            Sample(
                step=run.trainer.step,
                prompt=prompt.messages,
                expected=prompt.expected,
                base_answer=run.tokenizer.decode(before, skip_special_tokens=True).strip(),
                answer=run.tokenizer.decode(after, skip_special_tokens=True).strip(),
            )
        )


def _save(run: Run, probe: Path) -> None:
    """Write the adapter, and what the clean process will compare it with."""
    run.say(Phase(phase="saving"))
    built, samples, folder = run.trainer.built, run.prepared.train, run.folder.adapter
    save_adapter(built, run.tokenizer, run.spec, run.prepared.counts, run.history, folder)
    first = samples.ids[: int(samples.offsets[1])].tolist()
    write_probe(built, first, probe)
    run.say(Saved(step=run.trainer.step, what="adapter", path=folder.name, bytes=size_of(folder)))


def _asked(folder: RunDir, signals: Signals) -> StopReason | None:
    return folder.stop_asked() or signals.asked


def _stop_if_asked(folder: RunDir, signals: Signals) -> None:
    if reason := _asked(folder, signals):
        raise Stopped(reason)
