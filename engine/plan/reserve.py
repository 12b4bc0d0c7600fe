"""What a process holds besides the run's tensors: interpreter, libraries, memory freed but not given back."""

from engine.memory import GROWTH
from engine.plan.activations import Activations
from engine.plan.catalogue import Device

LIBRARIES = 560 * 2**20  # Python with torch, transformers and PEFT, measured


def reserve_of(device: Device, found: Activations) -> int:
    """Bytes on a CPU, where a run is measured by its process; an accelerator is measured by its allocator.

    The C library keeps freed activations until the heap has grown by as much as `engine.memory.Heap` allows.
    """
    return LIBRARIES + round((GROWTH - 1) * found.kept) if device.kind == "cpu" else 0
