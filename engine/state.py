"""A trainer's state as files: adapter, optimizer and random state as safetensors, the step as JSON. No pickle."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from safetensors.torch import save as tensor_bytes
from torch import Tensor, nn

from engine.failure import Failure

ADAPTER, OPTIMIZER, RANDOM, STATE = "adapter.safetensors", "optimizer.safetensors", "random.safetensors", "state.json"
_COUNT = ".count"  # ends the name of a whole number among the tensors


def save(
    folder: Path,
    step: int,
    parameters: Mapping[str, nn.Parameter],
    optimizer: torch.optim.Optimizer,
    device: torch.device,
) -> None:
    """Write the four files. Raises OSError (a full disk, for one)."""
    moments = {
        f"{name}.{moment}{'' if isinstance(kept, Tensor) else _COUNT}": torch.as_tensor(kept)
        for name, value in parameters.items()
        for moment, kept in optimizer.state.get(value, {}).items()
    }
    _write(folder / ADAPTER, {name: value.detach() for name, value in parameters.items()})
    _write(folder / OPTIMIZER, moments)
    _write(folder / RANDOM, _random_state(device))
    (folder / STATE).write_text(json.dumps({"version": 1, "step": step}), encoding="utf-8")


def load(
    folder: Path,
    parameters: Mapping[str, nn.Parameter],
    optimizer: torch.optim.Optimizer,
    device: torch.device,
) -> int:
    """Read what `save` wrote and return its step. Raises Failure when the files are damaged or of another adapter."""
    try:
        weights, moments, random = (_read(folder / name) for name in (ADAPTER, OPTIMIZER, RANDOM))
        step = int(json.loads((folder / STATE).read_text(encoding="utf-8"))["step"])
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise Failure("checkpoint_damaged", f"Checkpoint {folder.name} cannot be read: {error}") from error
    if {name: value.shape for name, value in weights.items()} != {name: v.shape for name, v in parameters.items()}:
        raise Failure(
            "checkpoint_of_another_adapter",
            f"Checkpoint {folder.name} belongs to an adapter of another shape.",
            ["Start a new run instead of resuming this one."],
        )
    with torch.no_grad():
        for name, value in parameters.items():
            value.copy_(weights[name])
    optimizer.state.clear()
    _restore(optimizer, parameters, moments, device)
    torch.set_rng_state(random["cpu"])
    if "device" in random:
        torch.get_device_module(device).set_rng_state(random["device"], device)
    return step


def _restore(
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, nn.Parameter],
    moments: Mapping[str, Tensor],
    device: torch.device,
) -> None:
    """Give each parameter what the optimizer kept for it: tensors on the device, whole numbers as they were."""
    for key, kept in moments.items():
        name, _, moment = key.removesuffix(_COUNT).rpartition(".")
        optimizer.state[parameters[name]][moment] = int(kept) if key.endswith(_COUNT) else kept.to(device)


def _random_state(device: torch.device) -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if device.type != "cpu":
        states["device"] = torch.get_device_module(device).get_rng_state(device)
    return states


def _write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    path.write_bytes(tensor_bytes({name: value.cpu().contiguous() for name, value in tensors.items()}))


def _read(path: Path) -> dict[str, Tensor]:
    return parse_tensors(path.read_bytes())
