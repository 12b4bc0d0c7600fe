"""The devices of this machine, as a plan sees them."""

from typing import Any

import psutil
import torch

from engine.plan.catalogue import Device, named
from engine.plan.planner import Machine
from engine.spec import RunSpec


def here(spec: RunSpec) -> Machine:
    """The accelerators that torch sees, with the memory that they say; else, or where the run asks for it, the CPU."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or spec.training.device == "cpu":
        return Machine(1, Device("this CPU", "cpu", psutil.virtual_memory().total))
    if accelerator.type == "mps":
        return Machine(1, Device("this GPU", "mps", torch.mps.recommended_max_memory()))
    memory = torch.accelerator.get_memory_info(0)[1]
    label = torch.cuda.get_device_name(0) if accelerator.type == "cuda" else accelerator.type.upper()
    known = named(label)
    return Machine(torch.accelerator.device_count(), Device(label, "cuda", memory, known.flops if known else 0.0))


def device_of(told: dict[str, Any]) -> Device:
    """A device as a worker tells it: `{kind, label, total_bytes}`."""
    label, memory = str(told.get("label") or told.get("name") or "device"), int(told["total_bytes"])
    if told.get("kind") == "cpu":
        return Device("this CPU", "cpu", memory)
    known = named(label)
    return Device(label, "cuda", memory, known.flops if known else 0.0)
