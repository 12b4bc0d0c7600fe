"""What the process holds on its devices now, and at most so far."""

import ctypes
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
from torch import nn

from engine.events import DeviceMemory
from engine.layout.mesh import host


def measure(device: torch.device, rank: int = 0) -> DeviceMemory:
    """Bytes on `device`; on a CPU the resident memory of the process, which is the run's number `rank`.

    In a run on several hosts the device's name begins with its host's.
    """
    where = f"{host()}/" if host() else ""
    if device.type == "cpu":
        used = psutil.Process().memory_info().rss
        return DeviceMemory(
            device=f"{where}cpu:{rank}" if rank else f"{where}cpu",
            allocated=used,
            reserved=used,
            peak=max(used, most_resident()),
            total=psutil.virtual_memory().total,
        )
    if device.type == "mps":
        used = torch.mps.current_allocated_memory()
        held = torch.mps.driver_allocated_memory()
        return DeviceMemory(
            device=f"{where}mps", allocated=used, reserved=held, peak=held, total=torch.mps.recommended_max_memory()
        )
    return DeviceMemory(
        device=f"{where}{device}",
        allocated=torch.accelerator.memory_allocated(device),
        reserved=torch.accelerator.memory_reserved(device),
        peak=torch.accelerator.max_memory_allocated(device),
        total=torch.accelerator.get_memory_info(device)[1],
    )


def most_resident() -> int:
    """Most resident bytes of this process so far.

    On Linux `ru_maxrss` starts at what the process had that started this one, so the kernel's own mark is read there.
    """
    if sys.platform.startswith("linux"):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


MAPPED_FROM = 2**20  # bytes of a block from which on it is mapped by itself
_M_MMAP_THRESHOLD = -3  # of glibc's malloc.h


def map_large_blocks() -> bool:
    """Let the C library map large tensors one by one, so that a freed one goes back to the system at once.

    By itself glibc raises that threshold to 32 MiB as blocks are freed, and tensors scatter over its heap: the peak of
    a run that recomputes is up to six tenths above what is alive. Mapping costs a tenth or more of the speed, so it is
    for runs that have chosen memory over time. False where there is no glibc.
    """
    change = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform.startswith("linux") else None
    return change is not None and change(_M_MMAP_THRESHOLD, MAPPED_FROM) == 1


def give_back() -> None:
    """Let the C library return what it holds without need; nothing where it is not glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform.startswith("linux") else None
    if trim is not None:
        trim(0)


def settle(model: nn.Module) -> None:
    """Move frozen weights on a CPU into memory of their own, where some of them have been put together.

    Weights in the precision of their file are mapped from it, and the whole of it stays resident as long as one of
    them is left there.
    """
    frozen = [one for one in model.parameters() if not one.requires_grad and one.device.type == "cpu"]
    alone = [one for one in frozen if one.untyped_storage().nbytes() == one.nbytes]
    if len(alone) < len(frozen):
        give_back()
        for value in alone:
            value.data = value.data.clone()
        give_back()


GROWTH = 1.2  # of resident memory since the last trim, from which on it is trimmed again


@dataclass
class Heap:
    """Gives memory that the C library holds without need back to the system.

    On a CPU, tensors of ever new sizes scatter over glibc's heap, and a run's resident memory grows by some tens of MiB
    a step with nothing alive to show for it. Trimming costs page faults in the next step, so it waits for growth.
    """

    level: int | None = None  # resident bytes after the first step since the last trim

    def tidy(self, resident: int) -> bool:
        """Call after a step with the resident bytes; trims (and says True) once they grew by a fifth."""
        if self.level is None:
            self.level = resident
        if resident < self.level * GROWTH or not sys.platform.startswith("linux"):
            return False
        give_back()
        self.level = None
        return True
