"""One zip that tells what happened in a run, for a report to somebody else: spec, versions, log, events; no secrets."""

import json
import platform
import re
import sys
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from studio.db.tables import Run
from studio.settings import Settings
from studio.storage import Storage

PACKAGES = (
    "atelier",
    "torch",
    "transformers",
    "peft",
    "accelerate",
    "safetensors",
    "datasets",
    "huggingface_hub",
    "gradio",
)
LOG_BYTES = 4 << 20
EVENT_BYTES = 32 << 20
SECRETS = (
    (re.compile(r"\bhf_[A-Za-z0-9]{8,}"), "hf_***"),
    (re.compile(r"\bsk-[A-Za-z0-9_-]{8,}"), "sk-***"),
    (re.compile(r"(\w+://[^\s:/@]*):[^\s@/]+@"), r"\1:***@"),
    (
        re.compile(
            r"(?i)((?:password|passwd|secret|token|api[_-]?key|authorization)\"?\s*[:=]\s*\"?(?:bearer\s+)?)[^\s\",;]{4,}"
        ),
        r"\1***",
    ),
)


def diagnostics(storage: Storage, run: Run, settings: Settings) -> IO[bytes]:
    """An open temporary zip file at its start: run.json, spec.json, versions.json, events.jsonl, and the logs."""
    folder = storage.run_dir(run.id)
    hidden = settings.password.get_secret_value()
    texts = {
        "run.json": json.dumps(_run(run), indent=2, default=str),
        "spec.json": json.dumps(run.spec, indent=2),
        "versions.json": json.dumps(versions(), indent=2),
        "log.txt": _tail(folder.log, LOG_BYTES) or run.log_tail,
        **{path.name: _tail(path, LOG_BYTES) for path in folder.logs_elsewhere()},
        "events.jsonl": _tail(folder.events, EVENT_BYTES),
    }
    file = TemporaryFile(dir=storage.incoming)  # noqa: SIM115 - the caller closes it
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in texts.items():
            archive.writestr(f"{run.id}-diagnostics/{name}", without_secrets(text, hidden))
    file.seek(0)
    return file


def without_secrets(text: str, password: str = "") -> str:
    """The text with this installation's password, tokens, and passwords in addresses blotted out."""
    for pattern, stand_in in SECRETS:
        text = pattern.sub(stand_in, text)
    return text.replace(password, "***") if password else text


def versions() -> dict[str, str]:
    """Versions of Python, the system, and the packages a run depends on."""
    found = {"python": sys.version.split()[0], "system": platform.platform()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def _run(run: Run) -> dict[str, Any]:
    left_out = ("spec", "log_tail", "user_metadata")
    return {column.name: getattr(run, column.name) for column in Run.__table__.columns if column.name not in left_out}


def _tail(path: Path, most: int) -> str:
    """The last `most` bytes of a file as text; '' when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - most))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
