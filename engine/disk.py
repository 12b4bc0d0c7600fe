"""Space on the disk: what a run will write at most, and whether that is free before it starts. No torch."""

import errno
import shutil
from collections.abc import Iterable
from pathlib import Path

from engine.checkpoint import size_of
from engine.spec import RunSpec

MIB = 2**20
STATE_BYTES = {"adamw_torch_fused": 8, "adamw_bf16": 4, "adamw_8bit": 2}  # of both moments, for each trained parameter
EIGHT_BIT_FROM = 4096  # elements; bitsandbytes keeps the moments of smaller parameters in float32
TABLE_BYTES = 2048  # of a parameter with moments in 8 bits: what their codes stand for
WEIGHT_BYTES = {"adamw_bf16": 2}  # where a checkpoint holds the trained parameters in less than their own precision
ASIDE = 32 * MIB  # tokenizer, card, events, log


class NoSpace(OSError):
    """The disk has less room than the run will need; `strerror` tells both."""


def needed(sizes: Iterable[int], width: int, spec: RunSpec) -> int:
    """Bytes of all checkpoints that are kept, the best one, one that is being written, and the result.

    `sizes`: elements of each trained parameter; `width`: bytes of one.
    """
    optim, weights, moments = spec.optimizer.optim, 0, 0
    for size in sizes:
        weights += size * WEIGHT_BYTES.get(optim, width)
        moments += _of_moments(size, optim)
    kept = spec.saving.save_total_limit + spec.saving.load_best_model_at_end + 1
    return kept * (weights + moments) + weights + ASIDE


def _of_moments(count: int, optim: str) -> int:
    """Bytes of both moments of a parameter with `count` elements."""
    if optim != "adamw_8bit":
        return count * STATE_BYTES[optim]
    return count * STATE_BYTES[optim] + TABLE_BYTES if count >= EIGHT_BIT_FROM else count * 8


def check(folder: Path, wanted: int) -> None:
    """Raise NoSpace unless `wanted` bytes fit beside what is there; what the run wrote before counts as room."""
    free = shutil.disk_usage(folder).free + size_of(folder)
    if wanted > free:
        message = f"The run needs about {wanted / MIB:,.0f} MiB on the disk, and {free / MIB:,.0f} MiB are free"
        raise NoSpace(errno.ENOSPC, message, str(folder))
