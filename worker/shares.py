"""Which devices of which hosts a run can take now: one host's where they will do, else an even share of several."""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from sqlalchemy.orm import Session

from engine.spec import RunSpec
from studio import workers
from studio.plans import devices_needed
from worker import devices
from worker.devices import Device

CPU = ["cpu"]


@dataclass(frozen=True)
class Host:
    """A host with a worker that carries out runs. `address`: where other hosts reach it; empty: nowhere."""

    name: str
    devices: Sequence[Device]
    address: str = ""
    worker_id: str = ""

    def lends(self, wanted: str) -> list[str]:
        """Names, as in leases, of the devices that a run may take."""
        return [f"{self.name}/{name}" for name in devices.choices(self.devices, wanted)]

    def is_cpu(self, wanted: str) -> bool:
        """Whether the run would compute on the CPU, which serves any number of its processes."""
        return devices.choices(self.devices, wanted) == CPU

    def reaches(self, other: "Host") -> bool:
        """Whether the two are in one network, as far as addresses tell: loopback leads nowhere else."""
        if not self.address or not other.address or self.name == other.name:
            return False
        mine, theirs = (ipaddress.ip_address(one.address).is_loopback for one in (self, other))
        return mine == theirs


@dataclass(frozen=True)
class Share:
    """What one host gives to a run: `count` of the devices of these names."""

    host: Host
    names: Sequence[str]
    count: int


def shares(session: Session, stored: dict[str, Any], here: Host, seconds: float) -> list[Share]:
    """What every host would give to a run that is led from here, this one first; empty while it cannot be.

    Hosts are alive that were heard of within `seconds`.
    """
    wanted = stored.get("training", {}).get("device", "auto")
    cpu, own = here.is_cpu(wanted), here.lends(wanted)
    try:
        spec = RunSpec.model_validate(stored)
    except ValidationError:  # of another version: the run says so when it has begun
        return [Share(here, own, 1)]
    count, hosts = devices_needed(session, spec, [device.told() for device in here.devices]), spec.layout.hosts
    if hosts == 1 or (hosts == "auto" and (cpu or count <= len(own))):
        return [Share(here, own, 1 if cpu else count)] if cpu or count <= len(own) else []
    others = [host for host in living(session, seconds) if here.reaches(host) and host.is_cpu(wanted) == cpu]
    if hosts == "auto":
        hosts = fewest(count, [len(host.lends(wanted)) for host in (here, *others)])
    if not hosts:
        return []
    if count % hosts:  # which was not seen while the model was being prepared: the run says so when it has begun
        return [Share(here, own, 1)]
    each, leased = 1 if cpu else count // hosts, devices.taken(session)
    able = [host for host in (here, *others) if len(set(host.lends(wanted)) - leased) >= each]
    if here not in able or len(able) < hosts:
        return []
    return [Share(host, host.lends(wanted), each) for host in able[:hosts]]


def living(session: Session, seconds: float) -> list[Host]:
    """Hosts whose workers take part in runs over several, by name, one worker of each."""
    alive = sorted(workers.alive(session, seconds), key=lambda worker: (worker.host, worker.seen_at))
    found = {one.host: Host(one.host, devices.told_by(one), one.address, one.id) for one in alive if one.address}
    return list(found.values())


def fewest(count: int, sizes: Sequence[int]) -> int:
    """The fewest hosts, of those that have as many devices as in `sizes`, with an even share of `count`; or 0."""
    spread = (ways for ways in range(2, len(sizes) + 1) if count % ways == 0)
    return next((ways for ways in spread if sum(size >= count // ways for size in sizes) >= ways), 0)
