"""One run from its folder to its last event: every way that a run can end is decided here."""

import sys
import tempfile
from functools import partial
from pathlib import Path

import torch

from engine import events, team
from engine.adapter import loader, verify_result
from engine.checkpoint import is_disk_full
from engine.devices import choose_device, choose_dtype, set_threads
from engine.disk import NoSpace
from engine.events import Event, Finished, Phase
from engine.failure import Failure
from engine.layout import mesh
from engine.loop import train_steps
from engine.meeting import Meeting
from engine.memory import map_large_blocks, measure
from engine.reference import refer
from engine.result import sample, save, summary
from engine.run import Last, Say, load, on_its_devices
from engine.rundir import RunDir
from engine.shortage import is_out_of_memory, out_of_memory
from engine.spec import RunSpec
from engine.stopping import Signals, Stopped


def train(path: Path, meeting: Meeting | None = None) -> int:
    """Train the run in folder `path`; 0 when its last event is succeeded, paused or cancelled, 1 when it is failed.

    `meeting`: where the hosts of a run on several of them find one another.
    """
    folder = RunDir(path)
    meeting = meeting or Meeting()
    if count := team.needed(folder, meeting.hosts):
        return team.lead(folder, count, meeting)
    speaks = mesh.rank() == 0
    say: Say = partial(events.append, folder.events) if speaks else _nothing
    signals = Signals()
    say(Phase(phase="starting"))
    with signals.listening():
        finished = _to_the_end(folder, say, signals)
    say(finished)
    if finished.status == "failed" and not speaks:
        team.say_failure(folder, finished)
    if finished.status in {"paused", "cancelled"} and speaks:
        folder.stop.unlink(missing_ok=True)  # obeyed; a later resume must not find it
    unagreed = finished.code == "disk_full" and mesh.processes() > 1  # the others would wait for this process
    return 1 if finished.status == "failed" or unagreed else 0


def _nothing(_: Event) -> None:
    """What a process says that does not speak for the run."""


def _to_the_end(folder: RunDir, say: Say, signals: Signals) -> Finished:
    """Do the work; every way a run can end becomes its last event."""
    last = Last()
    try:
        last.spec = _read_spec(folder)
        return _work(folder, last.spec, say, signals, last)
    except Stopped as stopped:
        status = "cancelled" if stopped.reason == "cancel" else "paused"
        return Finished(
            status=status, step=last.step, code=status, message=f"The run was {status} at step {last.step}."
        )
    except Failure as failure:
        return _failed(failure, last)
    except (OSError, MemoryError, RuntimeError) as error:
        if is_disk_full(error):
            return _paused_for_space(error, last)
        if last.spec is None or not is_out_of_memory(error):
            raise
        device = choose_device(last.spec.training)
        return _failed(out_of_memory(last.spec, choose_dtype(last.spec, device), error, measure(device)), last)


def _paused_for_space(error: BaseException, last: Last) -> Finished:
    why = f"{error.strerror}, so it" if isinstance(error, NoSpace) else "The disk is full, so the run"
    return Finished(
        status="paused",
        step=last.step,
        code="disk_full",
        message=f"{why} is paused at step {last.step}. Earlier checkpoints are kept.",
        advice=["Make space on the disk, then resume the run."],
    )


def _failed(failure: Failure, last: Last) -> Finished:
    sys.stderr.write(f"{failure}\n")
    return Finished.of(failure, last.step)


def _read_spec(folder: RunDir) -> RunSpec:
    try:
        return on_its_devices(folder, folder.read_spec())
    except (FileNotFoundError, ValueError) as error:
        raise Failure("spec_unreadable", f"The run's spec.json cannot be read: {error}") from error


def _work(folder: RunDir, spec: RunSpec, say: Say, signals: Signals, last: Last) -> Finished:
    """Load, train, measure, save, prove."""
    set_threads()
    if spec.training.gradient_checkpointing:
        map_large_blocks()
    with tempfile.TemporaryDirectory(prefix="atelier-") as scratch:
        probe = Path(scratch) / "probe.safetensors"
        run = load(folder, spec, say, signals, last)
        refer(run)
        train_steps(run, last)
        sample(run)
        save(run, probe)
        main = run.mesh.main
        told, code = summary(run, last.step), "stopped_early" if last.step < run.total else ""
        device = run.trainer.built.device
        del run  # the clean process needs the memory
        if device.type != "cpu":
            torch.accelerator.empty_cache()
        mesh.leave()
        if not main:
            return Finished(status="succeeded", step=last.step)
        say(Phase(phase="checking_adapter", detail=f"loading it in a clean process with {loader(spec)}"))
        verdict = verify_result(folder.result(spec), spec, probe, device)
    message = (
        f"{told} It loads in {loader(spec)} and its logits agree: {verdict['divergence']:.1g} nats from the trainer's, "
        f"{verdict['effect']:.1g} from the base model's."
    )
    return Finished(status="succeeded", step=last.step, code=code, message=message)
