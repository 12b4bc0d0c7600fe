"""When memory ran out: what was asked for, what was there, and the three settings that would help most."""

import re

import torch

from engine.events import DeviceMemory
from engine.extras import has_bitsandbytes
from engine.failure import Change, Failure
from engine.spec import RunSpec

GIB = 2**30
MOST_CHANGES = 3
SHORTEST = 256  # tokens below which a shorter maximum is no help
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_ASKED = re.compile(r"tried to allocate ([\d.]+) ?(bytes|[KMGT]iB)", re.IGNORECASE)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out; some allocators say it in a bare RuntimeError."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(
        text in str(error) for text in ("DefaultCPUAllocator", "out of memory")
    )


def out_of_memory(spec: RunSpec, dtype: torch.dtype, error: BaseException, there: DeviceMemory) -> Failure:
    """The failure to report: asked, held and present bytes, and the changes with the largest effect first."""
    asked = bytes_asked(str(error))
    wanted = f"{asked / GIB:.2f} GiB more were asked for; " if asked else ""
    message = (
        f"The device {there.device} ran out of memory: {wanted}the run held {there.allocated / GIB:.2f} GiB "
        f"of {there.total / GIB:.2f} GiB."
    )
    changes = would_help(spec, dtype)[:MOST_CHANGES]
    return Failure("out_of_memory", message, [*(change.effect for change in changes)] or [SMALLER], changes)


SMALLER = "Choose a smaller base model."


def bytes_asked(text: str) -> int:
    """What an allocator's message says it was asked for; 0 when it says nothing."""
    found = _ASKED.search(text)
    unit = next((size for name, size in _UNITS.items() if found and name.lower() == found[2].lower()), 0)
    return int(float(found[1]) * unit) if found else 0


def would_help(spec: RunSpec, dtype: torch.dtype) -> list[Change]:
    """What could be set otherwise, the largest effect first; the total batch stays as it was."""
    return [*_less_at_once(spec), *_smaller_weights(spec, dtype)]


def _less_at_once(spec: RunSpec) -> list[Change]:
    """Changes that keep fewer activations."""
    training, length = spec.training, spec.data.max_length
    batch, steps = training.per_device_train_batch_size, training.gradient_accumulation_steps
    found = []
    if not training.gradient_checkpointing:
        effect = "Turn on Recompute activations: keeps one tensor per layer, about a quarter slower."
        found.append(Change({"training.gradient_checkpointing": True}, effect))
    if batch > 1:
        values = {
            "training.per_device_train_batch_size": batch // 2,
            "training.gradient_accumulation_steps": steps * batch // (batch // 2),
        }
        effect = (
            f"Batch size {batch // 2} instead of {batch}, with more gradient accumulation: the same training, about "
            "half the activations."
        )
        found.append(Change(values, effect))
    if length is not None and length > SHORTEST:
        effect = f"Maximum length {length // 2} instead of {length}: half the activations; longer rows are cut."
        found.append(Change({"data.max_length": length // 2}, effect))
    return found


def _smaller_weights(spec: RunSpec, dtype: torch.dtype) -> list[Change]:
    """Changes that keep the base, or what is trained, in fewer bytes."""
    training, found = spec.training, []
    if training.full_finetuning:
        effect = "An adapter instead of all weights: gradients and optimizer state of a hundredth."
        found.append(Change({"training.full_finetuning": False}, effect))
    elif dtype == torch.float32:
        effect = "Precision bfloat16: half the memory for weights and activations, slower where it is emulated."
        found.append(Change({"training.dtype": "bfloat16"}, effect))
    elif training.quantization == "none" and has_bitsandbytes():
        effect = "A base in 4 bits (nf4): a quarter of the memory for its linear layers, slower."
        found.append(Change({"training.quantization": "nf4"}, effect))
    if spec.optimizer.optim == "adamw_torch_fused":
        effect = "Optimizer adamw_bf16: half the memory for what is trained and its state."
        found.append(Change({"optimizer.optim": "adamw_bf16"}, effect))
    if spec.lora.r > 8 and not training.full_finetuning:
        effect = f"Rank {spec.lora.r // 2} instead of {spec.lora.r}: half the adapter and its optimizer state."
        found.append(Change({"lora.r": spec.lora.r // 2}, effect))
    return found
