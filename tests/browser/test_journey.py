"""The main journey on a real studio: drop, choose, Start; watch, reload, restart, download; compare two runs."""

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Live, Watched
from tests.browser.journeys import begin, download, finish, written

pytestmark = [pytest.mark.browser, pytest.mark.e2e]
FIRST_STEP = 120_000
SHORT = {"training.max_steps": 8, "data.max_length": 128}
CHATS = [
    {"messages": [{"role": "user", "content": f"Say {n}."}, {"role": "assistant", "content": f"{n}, of course!"}]}
    for n in range(40)
]


def losses(page: Page) -> str:
    """The train line of the loss chart, as its path."""
    return page.locator("figure.chart").first.locator("path.chart-line").first.get_attribute("d") or ""


@pytest.mark.timeout(1500)
def test_from_a_dropped_file_to_a_downloaded_adapter(
    live: Live, watch: Callable[..., Watched], tmp_path: Path, screenshots: Path
) -> None:
    watched = watch(live.base)
    page = watched.open("/")
    file = written(tmp_path / "numbers.jsonl", CHATS)
    first = begin(page, file, "40 chats", {**SHORT, "lora.r": 8, "saving.sample_prompts": 1})

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

    assert {"adapter_config.json", "adapter_model.safetensors"} <= download(page)

    page = watched.open("/")
    second = begin(page, file, "40 chats", {**SHORT, "lora.r": 4, "saving.sample_prompts": 0})
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
