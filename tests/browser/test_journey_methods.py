"""Preference and reinforcement on a real studio: drop, Start, see rewards and answers come in, download, talk to it.

In the starter model's place lies a small random one, so that a run takes seconds.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from engine.starter_paths import MODEL_ID
from studio.ui.texts import text
from tests.browser.conftest import Live, Watched, free_port
from tests.browser.journeys import begin, download, finish, written
from tests.engine.models import make_tiny

pytestmark = [pytest.mark.browser, pytest.mark.e2e]
SHORT = {"training.max_steps": 6, "saving.sample_prompts": 1}
NUMBERS = range(40)
PAIRS = [{"prompt": f"Say {n}.", "chosen": f"{n}, of course!", "rejected": f"No, not {n}."} for n in NUMBERS]
QUESTIONS = [{"prompt": f"What is {n} and one?", "solution": str(n + 1)} for n in NUMBERS]
ON_TWO = {**SHORT, "layout.shard": 2}
SCORED = {
    **SHORT,
    "method.grpo.rewards": "length:8 = 1\nexact_match = 0.5",
    "method.grpo.max_completion_length": 16,
    "method.grpo.num_generations": 4,
}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A running studio whose one model is small and random."""
    studio = Live(tmp_path_factory.mktemp("small"), free_port())
    make_tiny("llama", studio.data_dir / "models" / MODEL_ID)
    studio.start()
    yield studio
    studio.stop()


def said(live: Live, run_id: str) -> str:
    """What the result of a run answers on the command line."""
    command = [sys.executable, "-c", "from studio.cli import main; main()", "chat", run_id, "--max-new-tokens", "8"]
    options = ["--data-dir", str(live.data_dir)]
    done = subprocess.run([*command, *options], input="Say 7.\n", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def drawn(page: Page, title: str) -> None:
    """A chart of this title with a line in it, without a reload."""
    chart = page.locator("figure.chart").filter(has_text=title).first
    chart.scroll_into_view_if_needed()
    expect(chart.locator("path.chart-line").first).to_be_attached()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("rows", "found", "settings", "chart", "sample"),
    [
        (PAIRS, "40 preference pairs", ON_TWO, "measured.rewards/margins", "run.tuned"),
        (QUESTIONS, "40 prompts", SCORED, "measured.reward", "rollout.advantage"),
    ],
    ids=["dpo", "grpo"],
)
def test_rewards_and_answers_are_seen_and_the_result_can_be_talked_to(
    small: Live,
    watch: Callable[..., Watched],
    tmp_path: Path,
    screenshots: Path,
    request: pytest.FixtureRequest,
    rows: list[dict[str, str]],
    found: str,
    settings: dict[str, object],
    chart: str,
    sample: str,
) -> None:
    name = request.node.callspec.id
    watched = watch(small.base)
    page = watched.open("/")
    run_id = begin(page, written(tmp_path / f"{name}.jsonl", rows), found, settings)
    drawn(page, text(chart))
    page.get_by_text(text(sample)).first.wait_for()
    finish(page)
    if settings is ON_TWO:
        drawn(page, "cpu:1")
        page.get_by_role("tab", name=text("run.settings")).click()
        page.get_by_text("shard 2").first.wait_for()
        page.screenshot(path=screenshots / f"journey-{name}-layout.png", full_page=True)
        page.get_by_role("tab").first.click()
    page.screenshot(path=screenshots / f"journey-{name}.png", full_page=True)
    assert {"adapter_config.json", "adapter_model.safetensors"} <= download(page)
    assert said(small, run_id)
    assert watched.foreign == watched.errors == []
