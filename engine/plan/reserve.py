"""What a process holds besides the run's tensors: interpreter, libraries, and a checkpoint while it is written."""

from dataclasses import dataclass

from engine.plan.catalogue import Device

LIBRARIES = 560 * 2**20  # Python with torch, transformers and PEFT, measured
FRAGMENTS = 0.3  # of the tensors on the heap: what the C library holds between them without use, measured


@dataclass(frozen=True)
class Reserve:
    """Bytes `always` held, and the share `unused` besides of what is on the heap: activations, or keys and values."""

    always: int = 0
    unused: float = 0.0


NONE = Reserve()


def reserve_of(device: Device, checkpoint: int, *, mapped: bool) -> Reserve:
    """On a CPU, where a run is measured by its process; an accelerator is measured by its allocator.

    `checkpoint`: bytes of one, of which a copy is in host memory while it is written; `mapped`: large tensors are
    mapped one by one (`engine.memory`), not on the heap.
    """
    return Reserve(LIBRARIES + checkpoint, 0.0 if mapped else FRAGMENTS) if device.kind == "cpu" else NONE
