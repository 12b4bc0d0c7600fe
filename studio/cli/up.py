"""`atelier up`: checks what could be wrong, migrates, then keeps web server and workers running until told to stop."""

import fcntl
import os
import signal
import sys
import threading
import urllib.error
import urllib.request
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from studio.auth import check_exposure
from studio.cli import listener
from studio.cli.children import Child, end_all, how_it_ended, say
from studio.cli.installation import DataDir, read_settings
from studio.db.migrate import upgrade
from studio.errors import Conflict
from studio.settings import Settings
from studio.storage import Storage

TICK_SECONDS = 0.2
WEB_STOP_SECONDS = 10.0
PREPARE_STOP_SECONDS = 5.0  # what it does is done again at the next start
WORKER_STOP_MARGIN = 15.0  # on top of the time that a run has to save
EVERYWHERE = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # where this machine itself asks


def up(
    host: Annotated[
        str | None, typer.Option(help="Address to bind to; any but loopback needs ATELIER_PASSWORD.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port of the web server; 0 takes a free one.")
    ] = None,
    data_dir: DataDir = None,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open the browser.")] = False,
) -> None:
    """Start the studio: web server and workers, until Ctrl-C."""
    settings = read_settings(data_dir)
    given = {"host": host, "port": port, "data_dir": settings.data_dir.expanduser().absolute()}
    settings = settings.model_copy(update={name: value for name, value in given.items() if value is not None})
    check_exposure(settings)
    settings = settings.model_copy(update={"port": free_port(settings.host, settings.port)})
    Storage(settings.data_dir).prepare()
    with only_one(settings.data_dir):
        upgrade(settings)
        code = supervise(children_of(settings), address(settings), open_browser=not no_open and can_open())
    raise typer.Exit(code)


def address(settings: Settings) -> str:
    """Where a browser on this machine finds the studio."""
    host = EVERYWHERE.get(settings.host, settings.host)
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.port}"


def free_port(host: str, port: int) -> int:
    """The port, free just now, or any free one for 0. Raises Conflict when it is taken, Invalid for a strange host."""
    with listener.listen(host, port) as probe:
        return int(probe.getsockname()[1])


@contextmanager
def only_one(data_dir: Path) -> Iterator[None]:
    """Hold the data folder's lock; the system frees it with the process. Raises Conflict when somebody holds it."""
    with (data_dir / "up.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            raise Conflict(
                f"Atelier already runs on {data_dir} (process {lock.read().strip() or 'unknown'}).",
                code="already_running",
                advice="Stop that one, or choose another folder: --data-dir",
            ) from error
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def children_of(settings: Settings) -> list[Child]:
    """The web server and one worker per queue, all on the same settings."""
    environment = {
        "ATELIER_DATA_DIR": str(settings.data_dir),
        "ATELIER_HOST": settings.host,
        "ATELIER_PORT": str(settings.port),
    }
    logs = settings.data_dir / "logs"
    saving = settings.stop_grace_seconds + WORKER_STOP_MARGIN
    return [
        Child("web", ["studio", "web"], environment, logs / "web.log", essential=True, stop_seconds=WEB_STOP_SECONDS),
        Child("runs", ["worker", "runs"], environment, logs / "runs.log", stop_seconds=saving),
        Child("prepare", ["worker", "prepare"], environment, logs / "prepare.log", stop_seconds=PREPARE_STOP_SECONDS),
    ]


def supervise(children: list[Child], url: str, *, open_browser: bool) -> int:
    """Keep the children running until a signal comes or an essential one dies; the exit code of `up`.

    A first signal asks everybody to save and end, a second one waits for nobody.
    """
    stop, hurry = threading.Event(), threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        (hurry if stop.is_set() else stop).set()

    before = listen(on_signal)
    try:
        for child in children:
            child.start()
        return watch(children, url, stop, open_browser=open_browser)
    finally:
        stop.set()
        say("Stopping: running trainings save first (press Ctrl-C again to stop at once).")
        end_all(children, hurry)
        for number, handler in before.items():
            signal.signal(number, handler)
        say("Stopped.")


def listen(handler: Any) -> dict[int, Any]:
    """Set the handler for signals that mean "stop" and give back the old ones; an ignored hang-up (nohup) stays so."""
    wanted = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        wanted.append(signal.SIGHUP)
    return {number: signal.signal(number, handler) for number in wanted}


def watch(children: list[Child], url: str, stop: threading.Event, *, open_browser: bool) -> int:
    """Tell the address once the page answers; start again what dies; 0 when asked to stop, 1 when it cannot go on."""
    announced = False
    while not stop.wait(TICK_SECONDS):
        for child in children:
            if child.exit_code is None:
                continue
            if child.essential:
                say(f"The {child.name} server {how_it_ended(child.exit_code)}. Log: {child.log}")
                return 1
            child.revive()
        if not announced and answers(url):
            announced = True
            say(f"\nAtelier is ready: {url}\n")
            if open_browser:
                webbrowser.open(url)
    return 0


def answers(url: str) -> bool:
    """Whether the web server answers; one that asks for the password does."""
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"{url}/healthz", timeout=2):
            return True
    except urllib.error.HTTPError as error:
        return error.code in (401, 403)
    except OSError:
        return False


def can_open() -> bool:
    """Whether somebody sits in front of a screen: no text browser is put into a terminal."""
    screen = sys.platform == "darwin" or "DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ
    return sys.stdout.isatty() and screen
