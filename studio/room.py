"""Room on the disk: what a run will write, told by its model's shapes, against what is free in the data folder."""

import math
import shutil
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from sqlalchemy.orm import Session

from engine import disk
from engine.spec import RunSpec
from studio.db.tables import Model, Run
from studio.errors import Invalid
from studio.facts import safetensors_header, weight_files
from studio.runs import spec_of
from studio.storage import Storage

NO_LAYERS = ("embed", "wte", "wpe", "lm_head")  # in names of matrices that adapters leave alone
GIB = 2**30


def check_room(storage: Storage, model: Model | None, spec: RunSpec) -> None:
    """Raise Invalid when the run would write more than is free; the engine would pause it at its start."""
    if model is None or model.status != "ready":
        return
    wanted, free = forecast(Path(model.path), spec), shutil.disk_usage(storage.data_dir).free
    if wanted > free:
        raise Invalid(
            f"The run will write about {wanted / GIB:,.2f} GiB, and {free / GIB:,.2f} GiB are free in the data folder.",
            code="disk_full",
            param="saving.save_total_limit",
            advice="Make space on the disk: delete runs or models that are no longer needed. Or lower "
            "“Checkpoints kept” (saving.save_total_limit).",
        )


def admitted(session: Session, storage: Storage, run: Run) -> Run:
    """A run that has just been made, if there is room for it; otherwise Invalid, and the session takes it back."""
    check_room(storage, session.get(Model, run.model_id), spec_of(run))
    return run


def forecast(folder: Path, spec: RunSpec) -> int:
    """Bytes that a run on the model in this folder will have written at most."""
    whole = spec.training.full_finetuning
    sizes = [math.prod(shape) for _, shape in _shapes(folder)] if whole else _adapter(folder, spec)
    return disk.needed(sizes, 2 if whole and spec.training.dtype == "bfloat16" else 4, spec)


def _adapter(folder: Path, spec: RunSpec) -> Iterator[int]:
    """Elements of each matrix of the adapter."""
    lora, targets = spec.lora, spec.lora.target_modules
    for name, shape in _shapes(folder):
        layer = name.removesuffix(".weight").split(".")
        routed = "experts" in layer
        if len(shape) < 2 or (routed and not lora.adapts_experts) or any(part in name for part in NO_LAYERS):
            continue
        if routed or isinstance(targets, str) or layer[-1] in targets:
            *copies, rows, columns = shape
            yield from (math.prod(copies) * lora.r * side for side in (rows, columns))
            if lora.use_dora:
                yield rows


@lru_cache(maxsize=32)
def _shapes(folder: Path) -> Sequence[tuple[str, tuple[int, ...]]]:
    """Name and shape of every tensor of a model folder, whose content does not change."""
    headers = (safetensors_header(path) for path in weight_files(folder))
    return [(name, tuple(tensor["shape"])) for header in headers for name, tensor in header.items()]
