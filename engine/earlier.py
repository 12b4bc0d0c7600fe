"""An earlier run's adapter as the start of this one: read into the fresh adapter, and kept to refer to."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from peft import PeftModel, load_peft_weights
from torch import Tensor, nn

from engine import peft_format
from engine.failure import Failure
from engine.layout.placement import Placements
from engine.lora import ADAPTER

SAME = ("r", "lora_alpha", "use_dora", "use_rslora")  # what two adapters must have in common


def begin_from(adapter: PeftModel, placements: Placements, folder: Path) -> dict[str, Tensor]:
    """Put the earlier adapter's weights in, of each the piece that is kept here; returns a copy of them by name.

    Raises Failure when it does not fit.
    """
    try:
        config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        weights = load_peft_weights(str(folder), device="cpu")
    except (OSError, ValueError) as error:
        message = f"The adapter that this run should start from cannot be read: {error}"
        raise Failure("adapter_unreadable", message, ["Choose another run to start from."]) from error
    mine = adapter.peft_config[ADAPTER].to_dict()
    other = [f"{name} {config.get(name)} (here {mine[name]})" for name in SAME if config.get(name) != mine[name]]
    if other:
        message = f"The adapter that this run should start from has {', '.join(other)}."
        raise Failure("adapter_does_not_fit", message, ["Give this run the same LoRA settings as the earlier one."])
    model: nn.Module = adapter.get_base_model()
    trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
    shapes = {name: placements[name].whole_shape(value.shape) for name, value in trained.items()}
    try:
        whole = peft_format.parameters(model, shapes, peft_format.as_read(adapter, weights))
    except KeyError as error:
        message = f"The adapter that this run should start from is on other layers: {error.args[0]}."
        raise Failure("adapter_does_not_fit", message, ["Use the Target modules of the earlier run."]) from error
    with torch.no_grad():
        for name, value in trained.items():
            value.copy_(placements[name].cut(whole[name]))
    return {name: value.detach().clone() for name, value in trained.items()}


@contextmanager
def swapped(model: nn.Module, other: Mapping[str, Tensor]) -> Iterator[None]:
    """The model with other values of these parameters, inside the block; each parameter stays the same object."""
    parameters = {name: value for name, value in model.named_parameters() if name in other}
    mine = {name: value.data for name, value in parameters.items()}
    for name, value in parameters.items():
        value.data = other[name].to(value.device)
    try:
        yield
    finally:
        for name, value in parameters.items():
            value.data = mine[name]
