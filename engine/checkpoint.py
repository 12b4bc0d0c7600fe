"""Checkpoints that are whole or not there: written beside, marked last, renamed; and the newest whole one found."""

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.failure import Failure

MARKER = "complete.json"
_NAME = re.compile(r"step-(\d+)")


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run in `folder`: the `keep` newest, and the best one besides."""

    folder: Path
    keep: int = 2

    def path(self, step: int) -> Path:
        """Where the checkpoint of a step is."""
        return self.folder / f"step-{step}"

    def save(self, step: int, write: Callable[[Path], None], best: int | None = None) -> Path:
        """Let `write` fill a new folder, mark it complete, and drop older ones. Raises OSError when the disk is full.

        An older checkpoint goes only after the new one is whole, so there is always one to resume from; that of the
        `best` step stays.
        """
        final = self.path(step)
        partial = self.folder / f".step-{step}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            write(partial)
            _mark(partial)
            shutil.rmtree(final, ignore_errors=True)
            partial.rename(final)
        except OSError:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        _sync(self.folder)
        for old in self._newest_first()[self.keep :]:
            if old != self.path(best or 0):
                shutil.rmtree(old, ignore_errors=True)
        return final

    def resume(self, read: Callable[[Path], None]) -> tuple[Path | None, list[str]]:
        """Hand the newest whole checkpoint to `read`; (the one taken or None, why newer ones were passed over)."""
        passed: list[str] = []
        for candidate in self._newest_first():
            if fault := fault_of(candidate):
                passed.append(f"{candidate.name}: {fault}")
                continue
            try:
                read(candidate)
            except Failure as failure:
                if failure.code != "checkpoint_damaged":
                    raise
                passed.append(f"{candidate.name}: {failure.message}")
                continue
            return candidate, passed
        return None, passed

    def _newest_first(self) -> list[Path]:
        return sorted(_steps(self.folder), key=step_of, reverse=True)


def step_of(folder: Path) -> int:
    """The step of a checkpoint, by its name."""
    return int(folder.name.removeprefix("step-"))


def _steps(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from (path for path in folder.iterdir() if path.is_dir() and _NAME.fullmatch(path.name))


def _mark(folder: Path) -> None:
    """Write the marker: every file with its size and hash, all of it on the disk before the marker is."""
    files = {}
    for path in sorted(folder.iterdir()):
        files[path.name] = {"bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        _sync(path)
    (folder / MARKER).write_text(json.dumps({"files": files}, indent=2), encoding="utf-8")
    _sync(folder / MARKER)


def fault_of(folder: Path) -> str:
    """Why a checkpoint cannot be used; empty if it is whole."""
    try:
        files = json.loads((folder / MARKER).read_text(encoding="utf-8"))["files"]
    except FileNotFoundError:
        return "it was never finished"
    except (OSError, ValueError, KeyError, TypeError):
        return "its marker cannot be read"
    for name, facts in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != facts["bytes"] or hashlib.sha256(path.read_bytes()).hexdigest() != facts["sha256"]:
            return f"{name} is damaged"
    return ""


def size_of(folder: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def is_disk_full(error: BaseException) -> bool:
    """Whether an error says that there is no space left, also when a library only says so in words."""
    full = {errno.ENOSPC, errno.EDQUOT}
    if isinstance(error, OSError) and error.errno in full:
        return True
    return any(f"os error {number}" in str(error) for number in full)


def _sync(path: Path) -> None:
    """Make the operating system put a file or a folder's entries on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
