"""The reference: what the weights that a run started from think of each answer, computed once and kept with the run."""

from collections.abc import Mapping
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
from engine.spec import DPO, KTO

Parts = dict[str, tuple[Samples, Ints]]
"""Samples by the name that their reference is kept under, and which of them are wanted."""


def refer(run: Run) -> None:
    """Give the run's samples their reference, if its method compares with one.

    It is measured before the first step, in file order and thus in the same batches whenever it is measured, and read
    back from the run's folder afterwards: a resumed run goes on with the very same numbers.
    """
    method = run.spec.method
    if not isinstance(method, KTO) and not (isinstance(method, DPO) and method.refers):
        return
    train, held = run.prepared.train, run.prepared.eval
    wanted = _parts("train", train, run.plan.indices(run.total)) | _parts("eval", held, np.arange(len(held)))
    found = run.mesh.once(lambda: _kept(run.folder.reference, wanted))
    if found is None:
        total, done = sum(len(indices) for _, indices in wanted.values()), 0
        found = {}
        for name, (samples, indices) in wanted.items():
            found[name] = _measure(run, samples, indices, done, total)
            done += len(indices)
        if run.mesh.main:
            partial = run.folder.reference.with_suffix(".partial")
            partial.write_bytes(array_bytes(found))
            partial.rename(run.folder.reference)
    train, held = _referred("train", train, found), _referred("eval", held, found)
    run.plan = run.plan.of(train)
    run.prepared = replace(run.prepared, train=train, eval=held)


def _parts(name: str, samples: Samples, indices: Ints) -> Parts:
    """These samples, and where the method has them, the same prompts with answers to others."""
    own = {name: (samples, indices)}
    return own | ({f"{name}/others": (samples.others, indices)} if samples.others is not None else {})


def _referred(name: str, samples: Samples, found: Mapping[str, Floats]) -> Samples:
    """The samples with what was measured of them."""
    others = samples.others and replace(samples.others, reference=found[f"{name}/others"])
    return replace(samples, reference=found[name], others=others)


def _kept(path: Path, wanted: Parts) -> dict[str, Floats] | None:
    """What was measured before, if it is all there: every wanted row."""
    try:
        found = parse_arrays(path.read_bytes())
    except (FileNotFoundError, SafetensorError):
        return None
    for name, (every, indices) in wanted.items():
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
