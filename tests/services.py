"""Private servers for the tests: a Redis and a PostgreSQL on free ports, ended by pid. A missing program is named."""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

PATIENCE = 30.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def program(name: str) -> str:
    """The path of a program; the test fails, and says which one is missing, when there is none."""
    found = shutil.which(name)
    if found is None:
        places = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)
        found = str(places[0]) if places else None
    if found is None:
        pytest.fail(f"The program {name} is missing; install it (Debian: apt-get install redis-server postgresql).")
    return found


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=0.2):
        return True
    return False


def wait_until(true: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, f"waited {seconds:.0f} s in vain: {what}"
        time.sleep(0.02)


def end(process: subprocess.Popen[bytes], how: signal.Signals = signal.SIGTERM) -> None:
    if process.poll() is None:
        process.send_signal(how)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()


class Redis:
    """A Redis that can be taken down and brought up again on the same port."""

    def __init__(self) -> None:
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def up(self) -> None:
        argv = [
            program("redis-server"),
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
        ]
        self.process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, cwd="/tmp")
        wait_until(lambda: answers(self.port), "redis-server to answer")

    def down(self) -> None:
        if self.process is not None:
            end(self.process)
            self.process = None

    def flush(self) -> None:
        """Forget every message."""
        with redis.Redis(port=self.port) as client:
            client.flushall()


@contextlib.contextmanager
def redis_server() -> Iterator[Redis]:
    server = Redis()
    server.up()
    try:
        yield server
    finally:
        server.down()


@contextlib.contextmanager
def postgres_server() -> Iterator[str]:
    """The URL of a fresh PostgreSQL without its database name; root starts it as another user, as it must."""
    folder = Path(tempfile.mkdtemp(prefix="atelier-postgres-"))
    port = free_port()
    account: dict[str, object] = {"cwd": "/tmp"}
    if os.getuid() == 0:
        who = next(entry for entry in map(find_user, ("postgres", "nobody")) if entry)
        os.chown(folder, who.pw_uid, who.pw_gid)
        account |= {"user": who.pw_uid, "group": who.pw_gid, "extra_groups": []}
    data = folder / "data"
    try:
        argv = [
            program("initdb"),
            "-D",
            str(data),
            "-A",
            "trust",
            "-U",
            "atelier",
            "-E",
            "UTF8",
            "--locale=C",
            "--no-sync",
        ]
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, **account)
        options = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "off"}
        argv = [program("postgres"), "-D", str(data), "-p", str(port)]
        argv += [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(argv, stdout=log, stderr=log, **account)
        try:
            wait_until(lambda: answers(port), "PostgreSQL to answer")
            yield f"postgresql+psycopg://atelier@127.0.0.1:{port}"
        finally:
            end(process, signal.SIGINT)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def find_user(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None
