"""What journeys on a real studio share: a dropped file and a click on Start, the end of a run, a downloaded adapter."""

import io
import json
import re
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

from studio.ui.texts import text

CONVERTED = 180_000  # ms: the starter model is converted once
CHECKED = 60_000
FINISHED = 480_000
MODEL = re.compile("SmolLM2")


def written(path: Path, rows: Iterable[Any]) -> Path:
    """A small file of one's own."""
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path


def begin(page: Page, file: Path, found: str, settings: Mapping[str, object]) -> str:
    """Drop, choose, Start (with settings, by their names in a spec, that make a short run); the run's id."""
    page.get_by_label(MODEL).wait_for(timeout=CONVERTED)
    page.locator("#drop input[type=file]").set_input_files(str(file))
    page.get_by_text(found).first.wait_for(timeout=CHECKED)
    page.get_by_label(MODEL).check(timeout=CONVERTED)
    page.get_by_role("button", name=re.compile("^Start · ")).wait_for(timeout=CONVERTED)
    page.get_by_role("button", name=text("train.advanced")).click()
    for name, value in settings.items():
        page.locator(f"#set-{name.replace('.', '-')} :is(input, textarea)").fill(str(value))
    page.get_by_role("button", name=re.compile(r"^Start · (\d+ steps|about .*)$")).click()
    page.wait_for_url("**/run?id=run-*")
    return page.url.partition("id=")[2]


def finish(page: Page) -> None:
    """Until the run has ended; it must have succeeded."""
    page.locator(".run-head .badge:is(.is-succeeded, .is-failed, .is-cancelled)").wait_for(timeout=FINISHED)
    assert page.locator(".run-head .badge.is-succeeded").count() == 1, page.locator(".run-head").inner_text()


def download(page: Page) -> set[str]:
    """The names of what is in the adapter that a finished run offers."""
    with page.expect_download() as given:
        page.get_by_role("link", name=text("run.download_adapter")).click()
    with zipfile.ZipFile(io.BytesIO(Path(given.value.path()).read_bytes())) as adapter:
        return {Path(name).name for name in adapter.namelist()}
