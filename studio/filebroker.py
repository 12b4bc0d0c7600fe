"""A message broker made of files in one folder: kombu's virtual transport with writes that are whole or absent.

One message is one file. It is written under another name and renamed, and taken by renaming it away: a reader never
sees half a message and two readers never get the same one. Losing or doubling a message is harmless anyway: the
database is the queue of record.
"""

import contextlib
import json
import time
import uuid
from pathlib import Path
from queue import Empty
from typing import Any

from kombu.exceptions import ChannelError
from kombu.transport import virtual


class Channel(virtual.Channel):
    """Messages `<time>_<id>.<queue>.msg` in the folder named by the transport option `folder`."""

    @property
    def folder(self) -> Path:
        """Folder of the messages."""
        client: Any = self.connection.client
        return Path(client.transport_options["folder"])

    def _put(self, queue: str, message: Any, **_kwargs: Any) -> None:
        name = f"{time.time_ns()}_{uuid.uuid4().hex}.{queue}.msg"
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            growing = self.folder / f".{name}"
            growing.write_text(json.dumps(message), encoding="utf-8")
            growing.rename(self.folder / name)
        except OSError as error:
            raise ChannelError(f"The queue folder {self.folder} cannot be written: {error.strerror}") from error

    def _waiting(self, queue: str) -> list[Path]:
        """Messages of one queue, oldest first."""
        try:
            names = [path.name for path in self.folder.iterdir()]
        except FileNotFoundError:
            return []
        return [self.folder / name for name in sorted(names) if name.partition(".")[2] == f"{queue}.msg"]

    def _get(self, queue: str, timeout: float | None = None) -> Any:
        for path in self._waiting(queue):
            taken = path.with_name(f".taken-{path.name}")
            try:
                path.rename(taken)
                payload = taken.read_text(encoding="utf-8")
                taken.unlink()
                return json.loads(payload)
            except (OSError, ValueError):  # another reader was faster, or it is no message
                continue
        raise Empty

    def _size(self, queue: str) -> int:
        return len(self._waiting(queue))

    def _purge(self, queue: str) -> int:
        waiting = self._waiting(queue)
        for path in waiting:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
        return len(waiting)


class Transport(virtual.Transport):
    """Direct exchanges over a folder."""

    Channel = Channel
    global_state = virtual.BrokerState()
    default_port = 0
    driver_type = "folder"
    driver_name = "folder"

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self.state = self.global_state

    def driver_version(self) -> str:
        """There is no driver."""
        return "1"
