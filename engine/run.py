"""A run in progress: loaded from its folder, resumed from its newest whole checkpoint, told by its first event."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any

import torch

from engine import disk, events, quantized
from engine.batches import Plan
from engine.best import lowest, still_there
from engine.build import build, check_possible, context_length, load_tokenizer, stop_ids
from engine.card import History, versions
from engine.checkpoint import Checkpoints
from engine.data import Prepared, prepare
from engine.devices import choose_device, name_of
from engine.events import Eval, Event, Phase, Started, Step, Warned
from engine.layout.degrees import degrees_of
from engine.layout.mesh import Mesh, join, processes
from engine.memory import Heap
from engine.rundir import RunDir, StopReason
from engine.sampling_server import Server
from engine.spec import GRPO, RunSpec, at_length
from engine.stopping import Signals, Stopped
from engine.trainer import Trainer
from engine.writer import Writer

Say = Callable[[Event], None]


@dataclass
class Last:
    """The last step done, and the spec with what the rows decided: known to whoever writes the last event."""

    step: int = 0
    spec: RunSpec | None = None


@dataclass
class Run:
    """A run in progress: its folder, spec and voice, what is loaded, and what happened so far.

    `best`: the best evaluation so far, whose checkpoint is kept when its weights are to be offered. `saved_step`: that
    of the newest checkpoint, which is whole.
    """

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
    writer: Writer = field(default_factory=Writer)
    history: History = field(default_factory=History)
    heap: Heap = field(default_factory=Heap)
    best: Eval | None = None
    saved_step: int = 0
    bad_steps: int = 0
    broken_rewards: set[str] = field(default_factory=set)

    @property
    def mesh(self) -> Mesh:
        """The processes that the run is spread over."""
        return self.trainer.built.mesh


def load(folder: RunDir, spec: RunSpec, say: Say, signals: Signals, last: Last) -> Run:
    """Data first (its faults show soonest), then the model, then the newest whole checkpoint."""
    check_possible(spec)
    samples_elsewhere = isinstance(spec.method, GRPO) and spec.method.use_vllm
    server = Server.reached(folder.sampler) if samples_elsewhere else None
    mesh = join(degrees_of(spec.layout, processes()), choose_device(spec.training))
    torch.manual_seed(spec.training.seed)
    say(Phase(phase="loading_data"))
    tokenizer = load_tokenizer(spec)
    stops = stop_ids(spec, tokenizer)
    day, micro_batches = mesh.once(lambda: (_day_of_start(folder), _micro_batches(folder)))
    prepared = mesh.once(lambda: prepare(spec, tokenizer, stops, say, frozen_date=day, context=context_length(spec)))
    last.spec = spec = at_length(spec, prepared.max_length)
    plan = Plan(
        prepared.train,
        max_length=prepared.max_length,
        packing=spec.packing,
        batch_size=spec.training.per_device_train_batch_size,
        accumulation=micro_batches or spec.training.gradient_accumulation_steps * mesh.degrees.batches,
        seed=spec.training.seed,
    ).repeated(spec.steps_per_batch)
    stop_if_asked(folder, signals, mesh)
    say(Phase(phase="loading_model"))
    built = build(spec, mesh)
    mesh.once(lambda: disk.check(folder.path, disk.needed(built.sizes, built.width, spec)))
    trainer = Trainer(built, spec.optimizer, stops, server)
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


def on_its_devices(folder: RunDir, spec: RunSpec) -> RunSpec:
    """The spec with the layout that was planned for these devices, where it leaves that open."""
    planned = folder.planned_layout()
    return spec.model_copy(update={"layout": planned.layout}) if planned else spec


def _micro_batches(folder: RunDir) -> int:
    """Micro-batches per step that the run began with, 0 if it never did: on other devices it keeps its steps."""
    began = (event.micro_batches for _, event in events.read(folder.events) if isinstance(event, Started))
    return next(began, 0)


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
    offered = run.spec.saving.load_best_model_at_end
    run.best = still_there(run.history.evals, run.folder.checkpoints) if offered else lowest(run.history.evals)


def _started(run: Run) -> Started:
    counts, built = run.prepared.counts, run.trainer.built
    trained = sum(built.sizes)
    return Started(
        total_steps=run.total,
        first_step=run.trainer.step,
        device=name_of(built.device),
        dtype=str(built.dtype).removeprefix("torch."),
        train_rows=counts.train_rows,
        eval_rows=counts.eval_rows,
        bad_rows=counts.bad_rows,
        truncated_rows=counts.truncated_rows,
        dropped_rows=counts.dropped_rows,
        max_length=run.prepared.max_length,
        level=dict(run.prepared.serving.level),
        date=str(run.prepared.serving.date or ""),
        trained_tokens=counts.trained_tokens,
        total_tokens=counts.total_tokens,
        devices=built.mesh.world.size,
        hosts=built.mesh.hosts(),
        layout=str(built.mesh.degrees),
        layout_why=planned.why if (planned := run.folder.planned_layout()) else "",
        micro_batches=run.plan.accumulation,
        trainable_parameters=trained,
        trained_modules=trained_modules(built.parameters()),
        total_parameters=trained + quantized.frozen_numbers(built.model),
        versions=versions(),
    )


def trained_modules(names: Iterable[str]) -> list[str]:
    """The kinds of layers behind parameter names: `q_proj` for every layer's `...q_proj.lora_A.default.weight`."""
    layers = (name.partition(".lora_")[0] if ".lora_" in name else name.rpartition(".")[0] for name in names)
    return sorted({layer.rpartition(".")[2] for layer in layers})


def _warn(run: Run) -> None:
    """Say what a person should know before the first step."""
    built = run.trainer.built
    if built.alone:
        message = f"Rows are computed one at a time, which is slower: in this model {built.alone}."
        run.say(Warned(code="documents_alone", message=message))
    context = context_length(run.spec)
    longest = int(run.prepared.train.lengths.max())
    if context and longest > context:
        message = (
            f"The longest row has {longest} tokens, but the model was made for {context}. Lower the maximum length."
        )
        run.say(Warned(code="beyond_context", message=message))


def asked(folder: RunDir, signals: Signals, mesh: Mesh) -> StopReason | None:
    """What a person or a signal asks of the run; the same answer in all its processes."""
    return mesh.once(lambda: folder.stop_asked() or signals.asked)


def stop_if_asked(folder: RunDir, signals: Signals, mesh: Mesh) -> None:
    """Raise Stopped when a stop is asked for."""
    if reason := asked(folder, signals, mesh):
        raise Stopped(reason)
