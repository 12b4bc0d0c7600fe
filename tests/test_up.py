"""`atelier up`: the real studio once, and its supervisor with small stand-in children that misbehave."""

import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from studio.cli.children import Child, end_all
from studio.cli.up import address, free_port
from studio.errors import Conflict, Invalid
from studio.settings import Settings

ROOT = Path(__file__).parents[1]
NUMBERS = itertools.count()

STAND_IN = """
import os, signal, subprocess, sys, time
from pathlib import Path
from engine import lifeline

name, *habits = sys.argv[1:]
folder = Path(__file__).parent
with (folder / (name + ".pids")).open("a") as file:
    file.write(f"{os.getpid()}\\n")
print("hello from", name)
if "deaf" in habits:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "parent" in habits:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    (folder / (name + ".child")).write_text(str(child.pid))
if "holds" in habits:
    lifeline.hold(0.5)
if "dies" in habits:
    sys.exit(3)
time.sleep(600)
"""


def wait_for(condition: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@dataclass
class StandIns:
    """Children that run the script above."""

    folder: Path

    def make(self, name: str, *habits: str, stop_seconds: float = 5.0) -> Child:
        (self.folder / "stand_in.py").write_text(STAND_IN)
        return Child(
            name,
            ["stand_in", name, *habits],
            {"PYTHONPATH": f"{self.folder}{os.pathsep}{ROOT}"},
            self.folder / "logs" / f"{name}.log",
            stop_seconds=stop_seconds,
        )

    def pids(self, name: str) -> list[int]:
        path = self.folder / f"{name}.pids"
        return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def stand_ins(tmp_path: Path) -> StandIns:
    return StandIns(tmp_path)


def test_output_is_shown_with_the_childs_name_and_kept(stand_ins: StandIns, capfd: pytest.CaptureFixture[str]) -> None:
    child = stand_ins.make("runs")
    child.start()
    wait_for(lambda: child.log.exists() and "hello from runs" in child.log.read_text())
    end_all([child], threading.Event())
    assert "runs    | hello from runs\n" in capfd.readouterr().out


def test_a_deaf_child_and_what_it_started_are_killed(stand_ins: StandIns) -> None:
    child = stand_ins.make("runs", "deaf", "parent", stop_seconds=0.3)
    child.start()
    below = stand_ins.folder / "runs.child"
    wait_for(lambda: below.exists() and below.read_text())
    end_all([child], threading.Event())
    wait_for(lambda: gone(stand_ins.pids("runs")[0]) and gone(int(below.read_text())), 5)


def test_a_second_signal_waits_for_nobody(stand_ins: StandIns) -> None:
    child = stand_ins.make("runs", "deaf", stop_seconds=60)
    child.start()
    wait_for(lambda: stand_ins.pids("runs"))
    hurry = threading.Event()
    hurry.set()
    started = time.monotonic()
    end_all([child], hurry)
    assert time.monotonic() - started < 5
    assert child.exit_code == -signal.SIGKILL


def test_a_dead_child_starts_again_after_a_growing_wait(stand_ins: StandIns) -> None:
    child = stand_ins.make("runs", "dies")
    child.wait = 0.05
    child.start()
    wait_for(lambda: child.exit_code == 3)
    child.revive()
    assert child.wait == pytest.approx(0.1)
    assert len(stand_ins.pids("runs")) == 1

    def started_again() -> bool:
        child.revive()
        return len(stand_ins.pids("runs")) == 2

    wait_for(started_again, 10)
    wait_for(lambda: child.exit_code == 3)
    child.revive()
    assert child.wait == pytest.approx(0.2)
    end_all([child], threading.Event())


def test_a_child_ends_with_its_starter_even_without_a_signal(stand_ins: StandIns) -> None:
    child = stand_ins.make("runs", "holds")
    child.start()
    wait_for(lambda: stand_ins.pids("runs"))
    assert child.process is not None
    assert child.process.stdin is not None
    child.process.stdin.close()  # what the system does when `up` is killed
    wait_for(lambda: child.exit_code == -signal.SIGTERM, 10)
    end_all([child], threading.Event())


def test_a_port_in_use_is_named_with_another_one() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(Conflict) as caught:
            free_port("127.0.0.1", port)
    assert f"Port {port} on 127.0.0.1" in caught.value.message
    assert "--port" in caught.value.advice


def test_port_zero_takes_a_free_one() -> None:
    assert free_port("127.0.0.1", 0) > 1023


def test_what_is_no_address_at_all_is_not_taken_for_a_port_in_use() -> None:
    with pytest.raises(Invalid, match="::zz is no address of this machine"):
        free_port("::zz", 0)


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises((Invalid, Conflict)):
        free_port("203.0.113.7", 7860)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:7860"),
        ("0.0.0.0", "http://127.0.0.1:7860"),
        ("::", "http://[::1]:7860"),
        ("studio.example", "http://studio.example:7860"),
    ],
)
def test_the_address_is_one_that_a_browser_here_can_open(host: str, url: str, tmp_path: Path) -> None:
    assert address(Settings(host=host, data_dir=tmp_path)) == url


# --- the real thing --------------------------------------------------------------------------------------------------


class Up:
    """A running `atelier up` on a folder of its own."""

    def __init__(self, data_dir: Path, *args: str, **environment: str) -> None:
        self.output = data_dir.parent / f"{data_dir.name}-{next(NUMBERS)}.out"
        with self.output.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "studio", "up", "--data-dir", str(data_dir), "--no-open", *args],
                cwd=ROOT,
                env={name: value for name, value in os.environ.items() if not name.startswith("ATELIER_")}
                | environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def url(self) -> str:
        wait_for(lambda: "Atelier is ready" in self.text() or self.process.poll() is not None, 60)
        found = re.search(r"Atelier is ready: (\S+)", self.text())
        assert found, self.text()
        return found[1]

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def refuse(self) -> str:
        """Its words when it does not start."""
        assert self.process.wait(timeout=60) not in (0, None)
        assert "Traceback" not in self.text()
        return " ".join(self.text().split())

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Up, Path]]:
    data_dir = tmp_path_factory.mktemp("up") / "data"
    up = Up(data_dir, "--port", "0")
    yield up, data_dir
    up.kill()


@pytest.fixture
def starting() -> Iterator[Callable[..., Up]]:
    started: list[Up] = []

    def start(data_dir: Path, *args: str, **environment: str) -> Up:
        started.append(Up(data_dir, *args, **environment))
        return started[-1]

    yield start
    for up in started:
        up.kill()


def test_up_serves_page_and_health(running: tuple[Up, Path]) -> None:
    url = running[0].url()
    with urllib.request.urlopen(f"{url}/healthz", timeout=10) as answer:
        assert json.load(answer)
    with urllib.request.urlopen(url, timeout=30) as answer:
        assert b"Atelier" in answer.read()


def test_a_second_up_on_the_same_folder_is_refused(running: tuple[Up, Path], starting: Callable[..., Up]) -> None:
    running[0].url()
    words = starting(running[1], "--port", "0").refuse()
    assert "already runs on" in words
    assert str(running[0].process.pid) in words
    assert "--data-dir" in words


def test_a_taken_port_is_refused(running: tuple[Up, Path], starting: Callable[..., Up], tmp_path: Path) -> None:
    port = running[0].url().rsplit(":", 1)[1]
    words = starting(tmp_path / "other", "--port", port).refuse()
    assert f"Port {port}" in words
    assert "--port" in words


def test_any_address_but_loopback_needs_a_password(starting: Callable[..., Up], tmp_path: Path) -> None:
    words = starting(tmp_path / "data", "--host", "0.0.0.0", "--port", "0").refuse()
    assert "ATELIER_PASSWORD" in words


def test_a_database_that_is_down_is_named(starting: Callable[..., Up], tmp_path: Path) -> None:
    url = f"postgresql+psycopg://atelier:secret@127.0.0.1:{free_port('127.0.0.1', 0)}/atelier"
    words = starting(tmp_path / "data", "--port", "0", ATELIER_DATABASE_URL=url).refuse()
    assert "out of reach" in words
    assert "secret" not in words


def test_a_data_folder_that_cannot_be_written_is_named(starting: Callable[..., Up], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    words = starting(tmp_path / "file", "--port", "0").refuse()
    assert "data folder" in words


def test_a_killed_worker_comes_back_and_sigterm_leaves_nothing(running: tuple[Up, Path]) -> None:
    up, data_dir = running
    up.url()
    worker = next(process for process in up.family() if process.cmdline()[-2:] == ["worker", "runs"])
    worker.kill()
    wait_for(lambda: "runs was ended by signal 9" in up.text())
    wait_for(
        lambda: any(process.cmdline()[-2:] == ["worker", "runs"] for process in up.family() if not gone(process.pid))
    )
    family = up.family()
    assert len(family) >= 3
    up.process.send_signal(signal.SIGTERM)
    assert up.process.wait(timeout=60) == 0
    assert psutil.wait_procs(family, timeout=5)[1] == []
    assert (data_dir / "logs" / "web.log").exists()


def test_a_second_start_computes_for_less_than_ten_seconds_and_a_killed_up_leaves_nothing(
    running: tuple[Up, Path], starting: Callable[..., Up]
) -> None:
    running[0].kill()
    up = starting(running[1], "--port", "0", ATELIER_STOP_GRACE_SECONDS="5")
    up.url()
    family = up.family()
    web = next(process for process in family if process.cmdline()[-2:] == ["studio", "web"])
    computed = sum(sum(process.cpu_times()[:2]) for process in (psutil.Process(up.process.pid), web))
    up.process.kill()
    up.process.wait()
    assert psutil.wait_procs(family, timeout=25)[1] == []
    assert computed < 10, f"{computed:.1f} s of computing from the command to the page"
