"""Where the agents of a run's hosts meet: a c10d store on the first host that listens at one address and at no other.

torch's own rendezvous has its store listen on every address of the machine, keeps pickled state in it, and numbers the
hosts as they come. Here the first host is the first, so that the process that speaks for the run is beside whoever
started it.
"""

import ipaddress
import os
import socket
from dataclasses import dataclass
from datetime import timedelta

import psutil
from torch.distributed import DistError, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)

from engine.failure import Failure

BACKEND = "atelier"
PATIENCE = timedelta(minutes=5)  # that hosts wait for one another
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Meeting:
    """Where the agents of a run's hosts meet: `endpoint` is address:port on the first of them, the same on all.

    `host`: which of the `hosts` this one is, from 0; that one speaks for the run. `key`: the same on all of them, so
    that a host of another run, or of an earlier start of this one, is not taken for one of them.
    """

    hosts: int = 1
    host: int = 0
    endpoint: str = f"{LOOPBACK}:0"
    key: str = "atelier"

    @property
    def address(self) -> str:
        """The first host's address."""
        return self.endpoint.rpartition(":")[0]

    @property
    def port(self) -> int:
        """The port there; 0 takes any, which only a run on one host can do."""
        return int(self.endpoint.rpartition(":")[2])

    @property
    def own_address(self) -> str:
        """The address by which the other hosts reach this one."""
        if not self.host:
            return socket.gethostbyname(self.address)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((self.address, self.port))  # nothing is sent: the system only chooses the way
            return str(probe.getsockname()[0])

    def interfaces(self) -> dict[str, str]:
        """Variables that keep the processes' own connections on the network of that address; set ones stay."""
        own = self.own_address
        name = next((name for name, has in psutil.net_if_addrs().items() if any(one.address == own for one in has)), "")
        wanted = {"GLOO_SOCKET_IFNAME": name}
        if not ipaddress.ip_address(own).is_loopback:
            wanted["NCCL_SOCKET_IFNAME"] = f"={name}"
        return {variable: value for variable, value in wanted.items() if name and variable not in os.environ}


class Rendezvous(RendezvousHandler):
    """All hosts or none: every agent waits here until the last one has come. There is one round."""

    def __init__(self, meeting: Meeting) -> None:
        self.meeting = meeting
        self._store: TCPStore | None = None

    @classmethod
    def of(cls, parameters: RendezvousParameters) -> "Rendezvous":
        """As torch's registry makes it: the launch's configuration holds the meeting."""
        return cls(parameters.config["meeting"])

    def get_backend(self) -> str:
        """The name it is registered under."""
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        """The processes meet in the same store."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for all hosts. Raises Failure when one does not come, or the address cannot be used."""
        meeting = self.meeting
        try:
            self._store = self._store or (_listening(meeting) if meeting.host == 0 else _connected(meeting))
            store = PrefixStore(meeting.key, self._store)
            _await_all(store, meeting)
        except (DistError, OSError) as error:
            raise Failure(
                "hosts_did_not_meet",
                f"The {meeting.hosts} hosts of the run did not meet at {meeting.endpoint}: {_first_line(error)}",
                ["See whether that address is this host's own and the others reach it, whatever the port."],
            ) from error
        return RendezvousInfo(
            store, meeting.host, meeting.hosts, RendezvousStoreInfo(meeting.address, self._store.port)
        )

    def is_closed(self) -> bool:
        """There is only one round."""
        return False

    def set_closed(self) -> None:
        """Nothing is opened again."""

    def num_nodes_waiting(self) -> int:
        """Nobody may come later."""
        return 0

    def get_run_id(self) -> str:
        """The meeting's key."""
        return self.meeting.key

    def shutdown(self) -> bool:
        """The store ends with the agent, whose processes use it."""
        return True


def _listening(meeting: Meeting) -> TCPStore:
    """The store, served from here. The socket is bound before torch sees it."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((meeting.address, meeting.port))
        listener.listen()
        port, descriptor = listener.getsockname()[1], listener.detach()
    return TCPStore(
        meeting.address,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=PATIENCE,
        master_listen_fd=descriptor,
    )


def _connected(meeting: Meeting) -> TCPStore:
    """The store as a guest; waits until the first host serves it."""
    return TCPStore(meeting.address, meeting.port, is_master=False, wait_for_workers=False, timeout=PATIENCE)


def _await_all(store: Store, meeting: Meeting) -> None:
    store.set(f"here/{meeting.host}", "")
    store.wait([f"here/{host}" for host in range(meeting.hosts)], PATIENCE)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
