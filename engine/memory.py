"""What the process holds on its devices now, and at most so far; and what to change when it was too much."""

import ctypes
import resource
import sys
from dataclasses import dataclass

import psutil
import torch

from engine.events import DeviceMemory
from engine.failure import Failure
from engine.spec import RunSpec


def measure(device: torch.device, rank: int = 0) -> DeviceMemory:
    """Bytes on `device`; on a CPU the resident memory of the process, which is the run's number `rank`."""
    if device.type == "cpu":
        used = psutil.Process().memory_info().rss
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        return DeviceMemory(
            device=f"cpu:{rank}" if rank else "cpu",
            allocated=used,
            reserved=used,
            peak=max(used, peak),
            total=psutil.virtual_memory().total,
        )
    if device.type == "mps":
        used = torch.mps.current_allocated_memory()
        held = torch.mps.driver_allocated_memory()
        return DeviceMemory(
            device="mps", allocated=used, reserved=held, peak=held, total=torch.mps.recommended_max_memory()
        )
    return DeviceMemory(
        device=str(device),
        allocated=torch.accelerator.memory_allocated(device),
        reserved=torch.accelerator.memory_reserved(device),
        peak=torch.accelerator.max_memory_allocated(device),
        total=torch.accelerator.get_memory_info(device)[1],
    )


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
        if resident < self.level * 1.2 or not sys.platform.startswith("linux"):
            return False
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's own
        if trim is not None:
            trim(0)
        self.level = None
        return True


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out; some allocators say it in a bare RuntimeError."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(
        text in str(error) for text in ("DefaultCPUAllocator", "out of memory")
    )


def out_of_memory(spec: RunSpec, dtype: torch.dtype, error: BaseException) -> Failure:
    """The failure to report, with the three settings that would help most, largest effect first."""
    training = spec.training
    advice: list[str] = []
    if training.per_device_train_batch_size > 1:
        half = training.per_device_train_batch_size // 2
        advice.append(
            f"Batch size {half} instead of {training.per_device_train_batch_size}, with gradient accumulation "
            f"{training.gradient_accumulation_steps * 2}: the same training, about half the activations."
        )
    if not training.gradient_checkpointing:
        advice.append("Turn on Recompute activations: keeps one tensor per layer, about a quarter slower.")
    longest = spec.data.max_length
    if longest is None:
        advice.append("A maximum length below that of the longest rows: longer rows are cut.")
    elif longest > 256:
        advice.append(f"Maximum length {longest // 2} instead of {longest}: half the activations; longer rows are cut.")
    if dtype == torch.float32:
        advice.append("Precision bfloat16: half the memory for weights and activations, slower where it is emulated.")
    if spec.lora.r > 8:
        advice.append(f"Rank {spec.lora.r // 2} instead of {spec.lora.r}: half the adapter and its optimizer state.")
    advice.append("Choose a smaller base model.")
    detail = str(error).strip().splitlines()
    asked = f" ({detail[0][:300]})" if detail else ""
    return Failure("out_of_memory", f"The device ran out of memory{asked}.", advice[:3])
