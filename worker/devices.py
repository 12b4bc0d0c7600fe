"""The accelerators of this host, and leases on them.

A lease is a row: its primary key admits one holder, its expiry makes a dead one harmless.
"""

import contextlib
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from datetime import timedelta
from typing import Any

import psutil
import pynvml
from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from studio.db import insert_one
from studio.db.tables import DeviceLease, Worker, now

TOGETHER = ","  # between the names of devices that one run uses together


@dataclass(frozen=True)
class Device:
    """One accelerator or, where there is none, the CPU. Sizes in bytes."""

    name: str
    kind: str
    label: str
    total_bytes: int
    used_bytes: int

    def told(self) -> dict[str, Any]:
        """As stored in `workers.devices`."""
        return asdict(self)


def host_name() -> str:
    """The name of this machine in leases."""
    return os.uname().nodename[:200]


def find_devices() -> list[Device]:
    """NVIDIA GPUs of this host, or those that CUDA_VISIBLE_DEVICES leaves; last of all, the CPU."""
    memory = psutil.virtual_memory()
    cpu = Device("cpu", "cpu", f"CPU, {psutil.cpu_count() or 1} threads", memory.total, memory.total - memory.available)
    return [*_gpus(), cpu]


def _gpus() -> list[Device]:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    found = []
    try:
        for index in _visible(pynvml.nvmlDeviceGetCount()):
            with contextlib.suppress(pynvml.NVMLError):
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
                label = pynvml.nvmlDeviceGetName(handle)
                found.append(Device(f"cuda:{index}", "cuda", str(label), int(memory.total), int(memory.used)))
    finally:
        pynvml.nvmlShutdown()
    return found


def _visible(count: int) -> list[int]:
    """Indices that this process may use; names by UUID cannot be mapped here and leave all visible."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return list(range(count))
    wanted = [part.strip() for part in named.split(",") if part.strip()]
    if not all(part.lstrip("-").isdigit() for part in wanted):
        return list(range(count))
    return [int(part) for part in wanted if 0 <= int(part) < count]


def told_by(worker: Worker) -> list[Device]:
    """The devices of a worker's host, as it said last."""
    return [Device(**{field.name: told[field.name] for field in fields(Device)}) for told in worker.devices]


def choices(devices: Sequence[Device], wanted: str) -> list[str]:
    """Names of the devices that a run may take: the CPU when it asks for it or there is nothing else."""
    gpus = [device.name for device in devices if device.kind != "cpu"]
    return gpus if gpus and wanted != "cpu" else ["cpu"]


def engine_environment(device: str) -> dict[str, str]:
    """What makes the engine see the leased devices (joined by TOGETHER) and no others."""
    names = [name.rpartition("/")[2].partition(":") for name in device.split(TOGETHER)]
    indices = [index for kind, _, index in names if kind == "cuda"]
    if indices:
        return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(indices)}
    return {}


def lease(
    session: Session, names: Sequence[str], run_id: str, holder: str, seconds: float, count: int = 1
) -> str | None:
    """The first `count` free devices of `names`, now leased to the holder (joined by TOGETHER); None when too few are.

    With None some may be leased already: the caller rolls back. Each name is tried once, in order: where everybody
    takes the same order, no two wait for each other.
    """
    leased: list[str] = []
    expires = now() + timedelta(seconds=seconds)
    for name in names:
        if len(leased) == count:
            break
        row = {"device": name, "run_id": run_id, "worker_id": holder, "expires_at": expires}
        expired = update(DeviceLease).where(DeviceLease.device == name, DeviceLease.expires_at < now()).values(**row)
        if session.execute(expired).rowcount or insert_one(session, DeviceLease, row):  # type: ignore[attr-defined]
            leased.append(name)
    return TOGETHER.join(leased) if len(leased) == count else None


def taken(session: Session) -> set[str]:
    """Names of the devices that are leased."""
    return set(session.scalars(select(DeviceLease.device).where(DeviceLease.expires_at >= now())))


def extend(session: Session, holder: str, seconds: float) -> None:
    """Keep the holder's leases."""
    expires = now() + timedelta(seconds=seconds)
    session.execute(update(DeviceLease).where(DeviceLease.worker_id == holder).values(expires_at=expires))


def release(session: Session, holder: str) -> None:
    """Give the holder's devices back."""
    session.execute(delete(DeviceLease).where(DeviceLease.worker_id == holder))
