"""What a process holds besides the run's tensors: interpreter, libraries, and a checkpoint while it is written."""

from engine.plan.catalogue import Device

LIBRARIES = 560 * 2**20  # Python with torch, transformers and PEFT, measured
FRAGMENTS = 0.3  # of the activations on the heap: what the C library holds between them without use, measured


def reserve_of(device: Device, checkpoint: int = 0, on_heap: int = 0) -> int:
    """Bytes on a CPU, where a run is measured by its process; an accelerator is measured by its allocator.

    `checkpoint`: bytes of one, of which a copy is in host memory while it is written; `on_heap`: bytes of activations
    kept there and not mapped one by one.
    """
    return LIBRARIES + checkpoint + round(FRAGMENTS * on_heap) if device.kind == "cpu" else 0
