"""`python -m bench.dashboard`: how long the pages take over long runs, on the server and in Chromium.

Ten runs of 10,000 steps with ten curves each on the page Compare, and one run of 200,000 steps on its own page, then
zoomed. A fresh browser profile opens an empty page first, so that scripts are cached as they are for everybody who
works; what that costs once is told apart. Needs Chromium and the test dependencies.
"""

import argparse
import json
import math
import shutil
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from playwright.sync_api import Browser, Page, Response, sync_playwright
from sqlalchemy import insert

from engine.spec import Data, RunSpec
from studio import curves, packs
from studio.app import build_app
from studio.context import Studio, make_studio
from studio.db.migrate import upgrade
from studio.db.tables import Dataset, Model, Run, RunEvent
from studio.settings import Settings
from studio.ui.views import compare

RUNS, STEPS, LONG = 10, 10_000, 200_000
METRICS = ("rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies")
GIB = 1024**3
ROUNDS = 3
BATCH = 5_000
SIZE = {"width": 1440, "height": 900}
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
DRAWN = "count => document.querySelectorAll('figure.chart path.chart-line').length >= count"
NOW = "performance.now()"


def measured(step: int, noise: np.random.Generator) -> dict[str, Any]:
    """One step as an engine tells it: ten curves, and memory."""
    used = {"device": "cuda:0", "allocated": 20 * GIB + step, "reserved": 22 * GIB, "peak": 23 * GIB, "total": 80 * GIB}
    loss, norm, speed, *own = (float(value) for value in noise.normal(size=3 + len(METRICS)))
    return {
        "kind": "step",
        "time": 1.8e9 + step,
        "step": step,
        "epoch": step / 1000,
        "loss": 2 * math.exp(-step / 2000) + 0.1 * loss,
        "learning_rate": 2e-4 / (1 + step / 1000),
        "grad_norm": 1 + 0.1 * norm,
        "tokens": 4096,
        "trained_tokens": 2000,
        "seconds": 0.5,
        "tokens_per_second": 8000 + 100 * speed,
        "memory": [used],
        "metrics": dict(zip(METRICS, own, strict=True)),
    }


def evaluated(step: int) -> dict[str, Any]:
    """One evaluation as an engine tells it."""
    return {"kind": "eval", "step": step, "loss": math.exp(-step / 2000), "tokens": 900, "metrics": {}}


def add_run(studio: Studio, number: int, steps: int) -> str:
    """A finished run in the database, stored as the relay stores it."""
    run_id, noise = f"run-{number:016x}", np.random.default_rng(number)
    spec = RunSpec(name=f"run {number}", model="model", data=Data(dataset="data"))
    common = {"run_id": run_id, "kind": "step", "time": 0.0}
    with studio.session() as session:
        stored = {"spec": spec.model_dump(mode="json"), "status": "succeeded", "events_offset": 500 * steps}
        names = {"name": spec.name, "dataset_id": "data", "model_id": "model", "method": "sft"}
        session.add(Run(id=run_id, step=steps, total_steps=steps, **stored, **names))
        session.flush()
        for begin in range(1, steps + 1, BATCH):
            told = [measured(step, noise) for step in range(begin, min(begin + BATCH, steps + 1))]
            rows = [common | {"offset": 500 * event["step"], "step": event["step"], "data": event} for event in told]
            session.execute(insert(RunEvent), rows)
        said = [evaluated(step) for step in range(100, steps + 1, 100)]
        rows = [
            common | {"kind": "eval", "offset": 500 * one["step"] + 1, "step": one["step"], "data": one} for one in said
        ]
        session.execute(insert(RunEvent), rows)
        packs.pack(session, run_id, rest=True)
    return run_id


def filled(studio: Studio) -> tuple[list[str], str]:
    """Ids of the ten runs, and of the long one."""
    with studio.session() as session:
        session.add(Dataset(id="data", name="data", filename="d", format="jsonl", sha256="", bytes=1, status="ready"))
        session.add(Model(id="model", name="model", source="folder", status="ready"))
    return [add_run(studio, number, STEPS) for number in range(1, RUNS + 1)], add_run(studio, RUNS + 1, LONG)


@contextmanager
def served(studio: Studio) -> Iterator[str]:
    """The whole studio's address, served from a thread of this process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    server = uvicorn.Server(uvicorn.Config(build_app(studio.settings), port=port, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join()


def median(measure: Callable[[], float]) -> float:
    """Of a few rounds."""
    return statistics.median(measure() for _ in range(ROUNDS))


def seconds(act: Callable[[], Any]) -> float:
    """How long something takes."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def on_the_server(studio: Studio, ids: list[str], long: str) -> dict[str, float]:
    """Seconds to make the data of a page out of the database, as JSON."""

    def board() -> str:
        with studio.session() as session:
            found = [(session.get_one(Run, run_id), curves.read(session, run_id)) for run_id in ids]
            return json.dumps(compare.board(found, "step", 0.0))

    def whole() -> curves.Curves:
        with studio.session() as session:
            return curves.read(session, long)

    return {
        "compare_seconds": median(lambda: seconds(board)),
        "compare_bytes": len(board()),
        "long_run_read_seconds": median(lambda: seconds(whole)),
    }


class Opened:
    """A page in a fresh profile, and what its requests for data took."""

    def __init__(self, browser: Browser, base: str) -> None:
        self.base = base
        self.page: Page = browser.new_context(viewport=SIZE).new_page()  # type: ignore[arg-type]
        self.largest = (0, 0.0)  # bytes and seconds of the largest answer of a page's handler
        self.page.on("requestfinished", lambda request: self.note(request.response()))

    def note(self, answer: Response | None) -> None:
        """An answer is there."""
        if answer is not None and "/gradio_api/run/" in answer.url:
            timing = answer.request.timing
            size = answer.request.sizes()["responseBodySize"]
            self.largest = max(self.largest, (size, (timing["responseEnd"] - timing["requestStart"]) / 1000))

    def empty(self) -> float:
        """Seconds until a page that shows nothing is there."""
        self.page.goto(f"{self.base}/compare")
        self.page.locator(".empty").first.wait_for()
        return float(self.page.evaluate(NOW)) / 1000

    def drawn(self, path: str, lines: int) -> float:
        """Seconds from the click on a link until so many lines are there."""
        self.page.goto(self.base + path)
        self.page.wait_for_function(DRAWN, arg=lines)
        return float(self.page.evaluate(NOW)) / 1000

    def zoomed(self) -> float:
        """Seconds from the end of a drag over a chart until all points of that part are there."""
        box = self.page.locator("figure.chart svg").first.bounding_box()
        assert box is not None
        self.page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 80)
        self.page.mouse.down()
        self.page.mouse.move(box["x"] + 0.41 * box["width"] + 10, box["y"] + 80, steps=3)
        self.page.mouse.up()
        return seconds(lambda: self.page.locator(".chart-depth").first.filter(has_text="point").wait_for())


def in_the_browser(base: str, ids: list[str], long: str) -> dict[str, float]:
    """Seconds until a person sees the lines; medians."""
    rounds: list[dict[str, float]] = []
    with sync_playwright() as playwright:
        executable = next(filter(None, map(shutil.which, CHROMIUMS)), None)
        browser = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        for _ in range(ROUNDS):
            many, one = Opened(browser, base), Opened(browser, base)
            told = {"first_page_seconds": many.empty()}
            told["empty_page_seconds"] = many.empty()
            told["compare_drawn_seconds"] = many.drawn(f"/compare?runs={','.join(ids)}", 4 * RUNS)
            told["compare_answer_bytes"], told["compare_answer_seconds"] = many.largest
            one.empty()
            told["long_run_drawn_seconds"] = one.drawn(f"/run?id={long}", 2)
            told["long_run_answer_bytes"], told["long_run_answer_seconds"] = one.largest
            told["long_run_zoom_seconds"] = one.zoomed()
            rounds.append(told)
        browser.close()
    return {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.dashboard", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(data_dir=Path(folder))
        upgrade(settings)
        studio = make_studio(settings)
        ids, long = filled(studio)
        figures = on_the_server(studio, ids, long)
        with served(studio) as base:
            figures |= in_the_browser(base, ids, long)
        studio.close()
    shown = {name: value if name.endswith("bytes") else round(value, 3) for name, value in figures.items()}
    lines = json.dumps(shown) if asked.json else "\n".join(f"{name:<28} {value:>12,}" for name, value in shown.items())
    sys.stdout.write(lines + "\n")


if __name__ == "__main__":
    main()
