"""The reference: what the weights that a run started from think of each answer, computed once and kept with the run."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load as parse_arrays
from safetensors.numpy import save as array_bytes

from engine.batches import Floats, Ints, Samples, chunks, gather
from engine.events import Phase
from engine.losses import per_answer
from engine.run import Run, stop_if_asked
from engine.spec import DPO


def refer(run: Run) -> None:
    """Give the run's samples their reference, if its method compares with one.

    It is measured before the first step, in file order and thus in the same batches whenever it is measured, and read
    back from the run's folder afterwards: a resumed run goes on with the very same numbers.
    """
    if not isinstance(run.spec.method, DPO) or not run.spec.method.refers:
        return
    train, held = run.prepared.train, run.prepared.eval
    wanted = (run.plan.indices(run.total), np.arange(len(held)))
    found = run.mesh.once(lambda: _kept(run.folder.reference, (train, held), wanted))
    if found is None:
        total = sum(len(indices) for indices in wanted)
        found = {
            "train": _measure(run, train, wanted[0], 0, total),
            "eval": _measure(run, held, wanted[1], len(wanted[0]), total),
        }
        if run.mesh.main:
            partial = run.folder.reference.with_suffix(".partial")
            partial.write_bytes(array_bytes(found))
            partial.rename(run.folder.reference)
    run.plan = run.plan.with_reference(found["train"])
    run.prepared = replace(run.prepared, train=run.plan.samples, eval=replace(held, reference=found["eval"]))


def _kept(path: Path, samples: tuple[Samples, Samples], wanted: tuple[Ints, Ints]) -> dict[str, Floats] | None:
    """What was measured before, if it is all there: every wanted row of both."""
    try:
        found = parse_arrays(path.read_bytes())
    except (FileNotFoundError, SafetensorError):
        return None
    for name, every, indices in zip(("train", "eval"), samples, wanted, strict=True):
        if name not in found or len(found[name]) != len(every) or np.isnan(found[name][indices]).any():
            return None
    return found


def _measure(run: Run, samples: Samples, indices: Ints, done: int, total: int) -> Floats:
    """Log-probabilities (samples, answers) of the answers of the samples at `indices`; NaN for the others."""
    shape = (0, 2) if samples.answers is None else samples.answers.shape
    found = np.full(shape, np.nan, dtype=np.float32)
    for chunk in chunks(samples, indices, run.spec.data.limit):
        stop_if_asked(run.folder, run.signals, run.mesh)
        batch = gather(samples, chunk)
        with torch.no_grad(), run.trainer.reference_model():
            sums, _ = per_answer(run.trainer.logprobs(batch), batch)
        found[chunk] = sums.cpu().numpy()
        done += len(chunk)
        run.say(Phase(phase="reference", done=done, total=total))
    return found
