"""A browser, and two studios to look at: one with everything in every state, one that is really running."""

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from huggingface_hub import constants
from playwright.sync_api import Browser, BrowserContext, Dialog, Page, Request, sync_playwright

from studio.context import make_studio
from studio.db.migrate import upgrade
from studio.settings import Settings
from studio.ui import mount
from tests.browser.seed import fill

CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")  # as in the wrapper
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
SIZES = {"wide": (1440, 900), "phone": (390, 844)}
START_SECONDS = 120.0
STOP_SECONDS = 60.0


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    """The system's Chromium, headless; Playwright gives every context a fresh profile.

    For this package only: while it is open, Playwright keeps an event loop running in the thread of the tests.
    """
    found = next(filter(None, map(shutil.which, CHROMIUMS)), None)
    assert found, f"none of {', '.join(CHROMIUMS)} is installed; Debian's package is called chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, headless=True, args=FLAGS)
        yield browser
        browser.close()


@dataclass
class Watched:
    """A page, and what went wrong on it: requests to other hosts, errors of its scripts, dialogs."""

    page: Page
    base: str
    foreign: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)

    def listen(self) -> None:
        """Note everything from now on; dialogs are answered with yes."""
        self.page.on("request", self.asked)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)
        self.page.on("dialog", self.answer)

    def asked(self, request: Request) -> None:
        """A request went out."""
        if not request.url.startswith((self.base, "data:", "blob:")):
            self.foreign.append(request.url)

    def answer(self, dialog: Dialog) -> None:
        """The page asks something."""
        self.dialogs.append(dialog.message)
        dialog.accept()

    def open(self, path: str) -> Page:
        """The page at a path, once its top bar is there."""
        self.page.goto(self.base + path)
        self.page.locator("header.bar").wait_for()
        return self.page


@pytest.fixture
def watch(chromium: Browser) -> Iterator[Callable[..., Watched]]:
    """Opens a watched page: `watch(base, size="phone", scheme="dark")`."""
    contexts: list[BrowserContext] = []

    def begin(base: str, size: str = "wide", scheme: str = "light") -> Watched:
        width, height = SIZES[size]
        options: Any = {"viewport": {"width": width, "height": height}, "color_scheme": scheme}
        context = chromium.new_context(**options)
        contexts.append(context)
        watched = Watched(context.new_page(), base)
        watched.listen()
        return watched

    yield begin
    for context in contexts:
        context.close()


@pytest.fixture(scope="session")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pictures go: ATELIER_SCREENSHOTS, or a folder of this session."""
    named = os.environ.get("ATELIER_SCREENSHOTS")
    folder = Path(named) if named else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def free_port() -> int:
    """A port that nothing listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of pages over a database that holds every state; no worker moves anything."""
    settings = Settings(data_dir=tmp_path_factory.mktemp("seeded"))
    upgrade(settings)
    studio = make_studio(settings)
    fill(studio)
    yield from served(mount(FastAPI(), studio))
    studio.close()


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of pages over an empty database."""
    settings = Settings(data_dir=tmp_path_factory.mktemp("bare"))
    upgrade(settings)
    studio = make_studio(settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "HF_HUB_CACHE", str(settings.data_dir / "hub"))  # not that of whoever runs the tests
        yield from served(mount(FastAPI(), studio))
    studio.close()


def served(app: FastAPI) -> Iterator[str]:
    """Serve an app from a thread of this process."""
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    base = f"http://127.0.0.1:{port}"
    wait_until_up(base, lambda: thread.is_alive())
    yield base
    server.should_exit = True
    thread.join(STOP_SECONDS)


def wait_until_up(base: str, alive: Callable[[], bool]) -> None:
    """Until the first page answers."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert alive(), "the studio ended while it was starting"
        try:
            with urllib.request.urlopen(base, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"no answer from {base}")


@dataclass
class Live:
    """A whole studio as `atelier up` starts it: web server and both workers, in processes of its own."""

    data_dir: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def base(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and wait for the first page."""
        command = [
            sys.executable,
            "-c",
            "from studio.cli import main; main()",
            "up",
            "--port",
            str(self.port),
            "--data-dir",
            str(self.data_dir),
            "--no-open",
        ]
        with (self.data_dir / "up.txt").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        process = self.process
        wait_until_up(self.base, lambda: process.poll() is None)

    def stop(self) -> None:
        """End it as Ctrl-C does."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(STOP_SECONDS)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A running studio in a fresh data folder."""
    studio = Live(tmp_path_factory.mktemp("live"), free_port())
    studio.start()
    yield studio
    studio.stop()
