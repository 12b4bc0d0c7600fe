"""What a process holds besides the run's tensors: interpreter, libraries, memory freed but not given back."""

from engine.plan.catalogue import Device
from engine.plan.memory import Model
from engine.plan.recipe import Recipe

LIBRARIES = 560 * 2**20


def reserve_of(device: Device, recipe: Recipe, model: Model) -> int:
    """Bytes on a CPU, where a run is measured by its process; accelerators are measured by their allocator."""
    del recipe, model
    return LIBRARIES if device.kind == "cpu" else 0
