"""The most memory that this process has held on the device that torch computes on."""

import torch

from engine.devices import choose_device
from engine.memory import measure
from engine.spec import Training


def peak_bytes() -> int:
    """Resident bytes on a CPU, the allocator's bytes on an accelerator: measured as a run measures itself."""
    return measure(choose_device(Training())).peak


def device_name() -> str:
    """For the report."""
    device = choose_device(Training())
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
