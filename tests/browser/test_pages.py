"""Every page in every state, wide and narrow, light and dark: complete without a network, without errors, in bounds."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import TimeoutError

from studio.ui.texts import text
from tests.browser import seed
from tests.browser.conftest import Watched

pytestmark = pytest.mark.browser
Watch = Callable[..., Watched]

STATES = {
    "train": ("/", text("train.title")),
    "train-tokens": (f"/?dataset={seed.CHATS}&model={seed.STARTER}", "of 24,256 tokens are trained"),
    "train-reading": (f"/?dataset={seed.HOSTILE_ROWS}&model={seed.STARTER}", "Reading it as SmolLM2 135M Instruct"),
    "train-tokens-failed": (f"/?dataset={seed.CHATS}&model=qwen", text("learn.failed")),
    "train-ready": (f"/?dataset={seed.CHATS}&model={seed.STARTER}", "298 chats"),
    "train-checking": (f"/?dataset={seed.CHECKING}", "Checking every row"),
    "train-useless": (f"/?dataset={seed.USELESS}", text("train.unusable")),
    "train-clone": (f"/?clone={seed.DONE_TOO}", "Settings of support-json, rank 64"),
    "train-clone-gone": (f"/?clone={seed.OF_GONE}", text("train.gone_dataset", name="last year")),
    "train-pairs": (f"/?dataset={seed.PAIRS}&model={seed.STARTER}", text("side.rejected")),
    "run-running": (f"/run?id={seed.RUNNING}", "step 48 of 75"),
    "run-preparing": (f"/run?id={seed.PREPARING}", text("phase.loading_model")),
    "run-queued": (f"/run?id={seed.QUEUED}", text("run.waiting")),
    "run-done": (f"/run?id={seed.DONE}", text("run.download_adapter")),
    "run-failed": (f"/run?id={seed.FAILED}", "Turn on Recompute activations."),
    "run-paused": (f"/run?id={seed.PAUSED}", text("run.paused")),
    "run-cancelled": (f"/run?id={seed.CANCELLED}", text("status.cancelled")),
    "run-hostile": (f"/run?id={seed.HOSTILE_RUN}", seed.HOSTILE),
    "run-unknown": ("/run?id=run-none", text("run.unknown")),
    "runs": ("/runs", "waiting for its turn"),
    "compare": (f"/compare?runs={seed.DONE},{seed.DONE_TOO},run-none", text("compare.settings")),
    "compare-empty": ("/compare", text("compare.empty")),
    "datasets": ("/datasets", "export-2026.jsonl"),
    "dataset": (f"/datasets?id={seed.CHATS}", text("datasets.problems")),
    "dataset-columns": (f"/datasets?id={seed.ODD}", text("columns.title")),
    "dataset-hostile": (f"/datasets?id={seed.HOSTILE_ROWS}", seed.HOSTILE),
    "dataset-unknown": ("/datasets?id=file-none", text("datasets.unknown")),
    "models": ("/models", "The folder holds GGUF files."),
}
EMPTY = {
    "runs": ("/runs", "runs.empty"),
    "datasets": ("/datasets", "datasets.empty"),
    "models": ("/models", "models.empty"),
}
START = re.compile(r"^Start( · .*)?$")  # with the time it takes, once a worker has planned it
SCHEMES: tuple[Literal["dark", "light"], ...] = ("dark", "light")  # light last: it is what the next page begins with
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


def look(watched: Watched, path: str, words: str, picture: Path) -> None:
    """Open a page, wait for its words, keep a picture in each colour scheme, and check what every page promises."""
    page = watched.open(path)
    try:
        page.get_by_text(words, exact=False).first.wait_for()
    except TimeoutError as error:
        raise AssertionError(f"{words!r} is not on {path}: {page.inner_text('body')}, {watched.errors}") from error
    page.wait_for_timeout(300)
    page.evaluate("scrollTo(0, document.body.scrollHeight)")  # charts are drawn when they come near
    page.wait_for_timeout(100)
    page.evaluate("scrollTo(0, 0)")
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        page.screenshot(path=picture.with_stem(f"{picture.stem}-{scheme}"), full_page=True, animations="disabled")
        assert page.evaluate(OVERFLOW) <= 0
    assert watched.foreign == []
    assert watched.errors == []
    assert watched.dialogs == []


@pytest.mark.parametrize("size", ["wide", "phone"])
def test_every_state_of_every_page(seeded: str, watch: Watch, screenshots: Path, size: str) -> None:
    watched = watch(seeded, size)
    for name, (path, words) in STATES.items():
        look(watched, path, words, screenshots / f"{name}-{size}.png")


def test_an_empty_studio_says_what_each_page_is_for(bare: str, watch: Watch, screenshots: Path) -> None:
    watched = watch(bare)
    for name in EMPTY:
        look(watched, f"/{name}", text(f"{name}.empty"), screenshots / f"{name}-empty-wide.png")
    page = watched.open("/")
    page.get_by_text(text("train.model_none")).wait_for()
    assert page.get_by_role("button", name=text("train.need_both")).is_disabled()


def test_a_wrong_setting_is_marked_beside_its_field(seeded: str, watch: Watch) -> None:
    page = watch(seeded).open(f"/?dataset={seed.CHATS}&model={seed.STARTER}")
    page.get_by_role("button", name=START).wait_for()
    page.get_by_role("button", name=text("train.advanced")).click()
    rank = page.get_by_label("Rank", exact=True)
    rank.fill("5000")
    page.locator(".field", has=rank).get_by_role("alert").wait_for()
    assert page.get_by_role("button", name=text("train.need_fix")).is_disabled()
    rank.fill("8")
    page.get_by_label("Maximum steps").fill("30")
    page.get_by_role("button", name=START).wait_for()
    page.get_by_label("Qwen3 1.7B").check()
    page.get_by_text("LoRA rank 8 · 30 steps").wait_for()


def test_a_token_says_what_it_is_and_the_next_row_is_a_click_away(seeded: str, watch: Watch) -> None:
    page = watch(seeded).open(f"/?dataset={seed.CHATS}&model={seed.STARTER}")
    stop = page.locator(".leaf:visible .tok.stop i")
    stop.hover()
    assert stop.get_attribute("title") == "151645 · stop · template · trained"
    page.get_by_role("button", name=text("learn.next")).click()
    page.get_by_text(text("learn.refused", turn=2)).first.wait_for()
    assert page.locator(".leaf:visible .tok.answer").count() == 1
    page.get_by_role("button", name=text("train.advanced")).click()
    page.get_by_label("Maximum length").fill("120")
    page.get_by_text(text("learn.maximum", n=120)).wait_for()
    page.get_by_text(text("learn.cut", n=12)).wait_for()


def test_a_clone_of_a_run_whose_data_was_deleted_says_so(seeded: str, watch: Watch, screenshots: Path) -> None:
    watched = watch(seeded)
    look(watched, *STATES["train-clone-gone"], screenshots / "train-clone-gone.png")
    assert watched.page.get_by_role("button", name=text("train.need_data")).is_disabled()
    look(watched, *STATES["train-pairs"], screenshots / "train-pairs.png")


def test_what_the_columns_hold_is_said_on_the_page_and_goes_along(seeded: str, watch: Watch, screenshots: Path) -> None:
    page = watch(seeded).open(f"/datasets?id={seed.ODD}&model={seed.STARTER}")
    for name, column in (("columns.chat_prompt", "frage"), ("columns.chat_completion", "antwort")):
        page.get_by_label(text(name), exact=True).click()
        page.get_by_role("option", name=column).last.click()
    page.locator(".leaf:visible .tok.answer").first.wait_for()
    page.screenshot(path=screenshots / "columns-chosen.png", full_page=True)
    page.get_by_role("link", name=text("datasets.train")).click()
    page.get_by_role("button", name=START).wait_for()
    page.screenshot(path=screenshots / "columns-train.png", full_page=True)


def test_a_file_that_is_not_taken_says_why(seeded: str, watch: Watch) -> None:
    page = watch(seeded).open("/")
    empty = {"name": "empty.jsonl", "mimeType": "text/plain", "buffer": b""}
    page.locator("#drop input[type=file]").set_input_files(empty)  # type: ignore[arg-type]
    page.get_by_text(text("train.drop_failed")).wait_for()


def test_a_chart_keeps_a_hidden_series_answers_the_keyboard_and_zooms_to_every_point(seeded: str, watch: Watch) -> None:
    page = watch(seeded).open(f"/run?id={seed.RUNNING}")
    page.get_by_text("3 times so far").wait_for()
    chart = page.locator("figure.chart").first
    chart.get_by_role("button", name="eval").click()
    page.wait_for_timeout(2500)  # longer than the page's timer
    assert chart.get_by_role("button", name="eval").get_attribute("aria-pressed") == "false"
    assert chart.locator("path.chart-line").count() == 1
    chart.locator("svg").focus()
    page.keyboard.press("ArrowRight")
    assert "train" in chart.locator(".chart-tip").inner_text()
    page.keyboard.press("+")
    chart.get_by_text(text("chart.exact")).wait_for()
    page.keyboard.press("Escape")
    chart.get_by_text(text("chart.exact")).wait_for(state="detached")


def test_runs_are_selected_and_compared(seeded: str, watch: Watch) -> None:
    page = watch(seeded).open("/runs")
    page.get_by_label("Filter").fill("support-json,")
    page.locator("tbody tr").nth(2).wait_for(state="detached")
    for box in page.locator("input[data-run]").all():
        box.check()
    page.get_by_text("2 selected").wait_for()
    page.locator("[data-compare] a").click()
    page.wait_for_url("**/compare?runs=run-*,run-*")
    page.get_by_role("rowheader", name="Rank").wait_for()


def test_the_hub_out_of_reach_says_so_at_once(seeded: str, watch: Watch) -> None:
    page = watch(seeded).open("/models")
    page.get_by_label(text("models.search_hint")).fill("smol")
    page.get_by_role("button", name=text("models.search_button")).click()
    page.get_by_text(re.compile("Hub cannot be reached|works? offline|downloads")).first.wait_for(timeout=6000)


def test_a_run_is_started_by_keyboard_alone(seeded: str, watch: Watch) -> None:
    page = watch(seeded).open(f"/?dataset={seed.CHATS}")
    model = page.get_by_label("SmolLM2 135M Instruct")
    model.wait_for()
    model.focus()
    page.keyboard.press("Space")
    start = page.get_by_role("button", name=START)
    start.wait_for()
    start.focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/run?id=run-*")
    page.get_by_role("button", name=text("run.cancel")).focus()
    page.keyboard.press("Enter")
    page.locator(".badge.is-cancelled").wait_for()


def test_what_an_action_is_refused_for_is_told_in_words(watch: Watch, seeded: str) -> None:
    watched = watch(seeded)
    page = watched.open("/datasets")
    page.locator("article", has=page.locator(f"a[href*='{seed.CHATS}']")).get_by_text("Delete", exact=True).click()
    page.get_by_role("alert").filter(has_text="A run that has not ended needs the dataset").wait_for()
    page = watched.open("/?clone=<b>none")
    page.get_by_role("alert").filter(has_text="There is no run '<b>none'").wait_for()


def test_the_method_follows_the_data_and_what_cannot_be_chosen_says_what_it_needs(watch: Watch, seeded: str) -> None:
    page = watch(seeded).open(f"/?dataset={seed.PAIRS}&model={seed.STARTER}")
    page.get_by_text("DPO · LoRA rank 16").wait_for()
    page.get_by_text(f"{text('method.sft_choice')} · {text('method.sft_needs')}").click()
    page.get_by_text("DPO · LoRA rank 16").wait_for()
    page.get_by_role("button", name=START).wait_for()
