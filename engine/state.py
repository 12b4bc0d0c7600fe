"""A trainer's state as files: adapter, optimizer and random state as safetensors, the step as JSON. No pickle."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from safetensors.torch import save as tensor_bytes
from torch import Tensor, nn

from engine.failure import Failure
from engine.layout.placement import Placement, Placements

ADAPTER, OPTIMIZER, RANDOM, STATE = "adapter.safetensors", "optimizer.safetensors", "random.safetensors", "state.json"
_COUNT = ".count"  # ends the name of a whole number among the tensors


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A trainer's state at one step, in host memory of its own: training may go on while it is written."""

    step: int
    weights: dict[str, Tensor]
    moments: dict[str, Tensor]
    random: dict[str, Tensor]

    def write(self, folder: Path) -> None:
        """Write the four files into an existing folder. Raises OSError (a full disk, for one)."""
        _write(folder / ADAPTER, self.weights)
        _write(folder / OPTIMIZER, self.moments)
        _write(folder / RANDOM, self.random)
        (folder / STATE).write_text(json.dumps({"version": 1, "step": self.step}), encoding="utf-8")


def take(
    step: int,
    parameters: Mapping[str, nn.Parameter],
    placements: Placements,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    *,
    keep: bool,
) -> Snapshot:
    """The state in whole tensors, whatever the layout.

    All processes of a layout call this; those that do not `keep` it hand their pieces over and get an empty one.
    """
    weights = gather({name: value.detach() for name, value in parameters.items()}, placements, keep=keep)
    moments: dict[str, Tensor] = {}
    for name, value in parameters.items():
        for moment, kept in optimizer.state.get(value, {}).items():
            place = placements[name] if _is_cut(kept, value) else Placement()
            key = f"{name}.{moment}{'' if isinstance(kept, Tensor) else _COUNT}"
            moments |= gather({key: torch.as_tensor(kept)}, {key: place}, keep=keep)
    return Snapshot(step, weights, moments, _random_state(device))


def gather(pieces: Mapping[str, Tensor], placements: Placements, *, keep: bool) -> dict[str, Tensor]:
    """Whole copies in host memory, one after the other, from the pieces of all processes; empty unless `keep`."""
    found: dict[str, Tensor] = {}
    for name, piece in pieces.items():
        whole = placements[name].whole(piece)
        if keep:
            held = whole.cpu().contiguous()
            found[name] = held.clone() if whole is piece and held.data_ptr() == piece.data_ptr() else held
    return found


def load(
    folder: Path,
    parameters: Mapping[str, nn.Parameter],
    placements: Placements,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
) -> int:
    """Read what a snapshot wrote; its step. Raises Failure when the files are damaged or of another adapter."""
    try:
        weights, moments, random = (_read(folder / name) for name in (ADAPTER, OPTIMIZER, RANDOM))
        step = int(json.loads((folder / STATE).read_text(encoding="utf-8"))["step"])
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise Failure("checkpoint_damaged", f"Checkpoint {folder.name} cannot be read: {error}") from error
    shapes = {name: placements[name].whole_shape(value.shape) for name, value in parameters.items()}
    if {name: value.shape for name, value in weights.items()} != shapes:
        raise Failure(
            "checkpoint_of_another_adapter",
            f"Checkpoint {folder.name} belongs to an adapter of another shape.",
            ["Start a new run instead of resuming this one."],
        )
    with torch.no_grad():
        for name, value in parameters.items():
            value.copy_(placements[name].cut(weights[name]))
    optimizer.state.clear()
    _restore(optimizer, parameters, placements, moments, device)
    torch.set_rng_state(random["cpu"])
    if "device" in random:
        torch.get_device_module(device).set_rng_state(random["device"], device)
    return step


def _is_cut(kept: object, value: Tensor) -> bool:
    """Whether what an optimizer keeps for a parameter has a number for each of the parameter's own."""
    return isinstance(kept, Tensor) and kept.shape == value.shape


def _restore(
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, nn.Parameter],
    placements: Placements,
    moments: Mapping[str, Tensor],
    device: torch.device,
) -> None:
    """Give each parameter what the optimizer kept for it: tensors on the device, whole numbers as they were."""
    for key, kept in moments.items():
        name, _, moment = key.removesuffix(_COUNT).rpartition(".")
        value, place = parameters[name], placements[name]
        if kept.shape == place.whole_shape(value.shape):
            kept = place.cut(kept)
        optimizer.state[value][moment] = int(kept) if key.endswith(_COUNT) else kept.to(device)


def _random_state(device: torch.device) -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if device.type != "cpu":
        states["device"] = torch.get_device_module(device).get_rng_state(device)
    return states


def _write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    path.write_bytes(tensor_bytes(dict(tensors)))


def _read(path: Path) -> dict[str, Tensor]:
    return parse_tensors(path.read_bytes())
