"""The main journey on a real studio: drop, choose, Start; watch, reload, restart, download; compare two runs."""

import io
import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from studio.ui.texts import text
from tests.browser.conftest import Live, Watched

pytestmark = [pytest.mark.browser, pytest.mark.e2e]
CONVERTED = 180_000  # ms: the starter model is converted once
CHECKED = 60_000
FIRST_STEP = 120_000
FINISHED = 480_000
STEPS = 8
MODEL = "SmolLM2"


def chats(path: Path) -> Path:
    """A small file of one's own."""
    pairs = [
        ({"role": "user", "content": f"Say {n}."}, {"role": "assistant", "content": f"{n}, of course!"})
        for n in range(40)
    ]
    rows = [{"messages": pair} for pair in pairs]
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path


def begin(page: Page, file: Path, *, rank: int, samples: int) -> str:
    """Drop, choose, Start (and a short run, so that the test is short); the run's id."""
    page.get_by_label(re.compile(MODEL)).wait_for(timeout=CONVERTED)
    page.locator("#drop input[type=file]").set_input_files(str(file))
    page.get_by_text("40 chats").first.wait_for(timeout=CHECKED)
    page.get_by_label(re.compile(MODEL)).check(timeout=CONVERTED)
    page.get_by_role("button", name=re.compile("^Start · ")).wait_for(timeout=CONVERTED)
    page.get_by_role("button", name=text("train.advanced")).click()
    page.get_by_label("Maximum steps").fill(str(STEPS))
    page.get_by_label("Rank", exact=True).fill(str(rank))
    page.get_by_label("Sample answers").fill(str(samples))
    page.get_by_role("button", name=re.compile(rf"^Start · ({STEPS} steps|about .*)$")).click()
    page.wait_for_url("**/run?id=run-*")
    return page.url.partition("id=")[2]


def losses(page: Page) -> str:
    """The train line of the loss chart, as its path."""
    return page.locator("figure.chart").first.locator("path.chart-line").first.get_attribute("d") or ""


def finish(page: Page) -> None:
    """Until the run has ended; it must have succeeded."""
    page.locator(".run-head .badge:is(.is-succeeded, .is-failed, .is-cancelled)").wait_for(timeout=FINISHED)
    assert page.locator(".run-head .badge.is-succeeded").count() == 1, page.locator(".run-head").inner_text()


@pytest.mark.timeout(1500)
def test_from_a_dropped_file_to_a_downloaded_adapter(
    live: Live, watch: Callable[..., Watched], tmp_path: Path, screenshots: Path
) -> None:
    watched = watch(live.base)
    page = watched.open("/")
    file = chats(tmp_path / "numbers.jsonl")
    first = begin(page, file, rank=8, samples=1)

    page.locator("figure.chart path.chart-line").first.wait_for(timeout=FIRST_STEP)
    page.screenshot(path=screenshots / "journey-running.png")
    page.reload()
    page.locator("figure.chart path.chart-line").first.wait_for()
    finish(page)
    before = losses(page)
    page.reload()
    page.locator("figure.chart path.chart-line").first.wait_for()
    expect(page.locator("figure.chart").first.locator("path.chart-line").first).to_have_attribute("d", before)
    page.screenshot(path=screenshots / "journey-done.png", full_page=True)

    with page.expect_download() as download:
        page.get_by_role("link", name=text("run.download_adapter")).click()
    with zipfile.ZipFile(io.BytesIO(Path(download.value.path()).read_bytes())) as adapter:
        names = {Path(name).name for name in adapter.namelist()}
    assert {"adapter_config.json", "adapter_model.safetensors"} <= names

    page = watched.open("/")
    second = begin(page, file, rank=4, samples=0)
    finish(page)
    page = watched.open("/runs")
    for run_id in (first, second):
        page.locator(f"input[data-run='{run_id}']").check()
    page.locator("[data-compare] a").click()
    page.wait_for_url("**/compare?runs=*")
    expect(page.locator("figure.chart").first.locator("path.chart-line")).to_have_count(2)
    expect(page.get_by_role("rowheader", name="Rank")).to_be_visible()
    page.screenshot(path=screenshots / "journey-compare.png", full_page=True)
    assert watched.foreign == []
    assert watched.errors == []
