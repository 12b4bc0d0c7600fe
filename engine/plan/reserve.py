"""What a process holds besides the run's tensors: interpreter, libraries, and a checkpoint while it is written."""

from engine.plan.catalogue import Device

LIBRARIES = 560 * 2**20  # Python with torch, transformers and PEFT, measured
HEAP = 48 * 2**20  # small tensors and what the C library keeps of them, measured; large ones are mapped one by one


def reserve_of(device: Device, checkpoint: int = 0) -> int:
    """Bytes on a CPU, where a run is measured by its process; an accelerator is measured by its allocator.

    `checkpoint`: bytes of one, of which a copy is in host memory while it is written.
    """
    return LIBRARIES + HEAP + checkpoint if device.kind == "cpu" else 0
