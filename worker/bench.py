"""What the tasks of one worker process share: the studio, its name, its devices, the engine's command, and its end."""

import itertools
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Lock, Thread

from studio.context import Studio
from worker.devices import Device, find_devices, host_name
from worker.inspector import Inspector
from worker.launch import ENGINE
from worker.standby import Standby


@dataclass
class Bench:
    """One per worker process."""

    studio: Studio
    engine: Sequence[str] = tuple(ENGINE)
    host: str = field(default_factory=host_name)
    devices: list[Device] = field(default_factory=find_devices)
    leaving: Event = field(default_factory=Event)
    guests: list[Thread] = field(default_factory=list)  # parts in runs that other hosts lead

    def __post_init__(self) -> None:
        self.id = f"{self.host[:40]}-{os.getpid()}-{secrets.token_hex(3)}"
        logs = self.studio.settings.data_dir / "logs"
        self.standby = Standby(self.engine, logs / "standby.log")
        self.inspector = Inspector(self.engine, logs / "inspector.log", self.leaving)
        self._claims = itertools.count(1)
        self._busy: set[str] = set()
        self._lock = Lock()

    def new_holder(self) -> str:
        """A name for the next claim: no two claims share one, not even two of this worker on one run."""
        with self._lock:
            return f"{self.id}.{next(self._claims)}"

    def close(self) -> None:
        """End the engines that wait here; `leaving` must be set."""
        self.inspector.close()
        self.standby.close()

    @contextmanager
    def only_once(self, key: str) -> Iterator[bool]:
        """True when nobody else in this process works on `key` meanwhile."""
        with self._lock:
            mine = key not in self._busy
            self._busy.add(key)
        try:
            yield mine
        finally:
            if mine:
                with self._lock:
                    self._busy.discard(key)

    def busy(self) -> set[str]:
        """Keys that are worked on now."""
        with self._lock:
            return set(self._busy)
