"""Which device a run computes on, in which precision, with how many threads."""

import math
import os
import re
from pathlib import Path

import torch

from engine.spec import RunSpec, Training


def choose_device(settings: Training) -> torch.device:
    """The accelerator torch sees (CUDA, ROCm, MPS, XPU, ...), else the CPU; `device: cpu` wins."""
    accelerator = torch.accelerator.current_accelerator(check_available=True) if settings.device == "auto" else None
    if accelerator is None:
        return torch.device("cpu")
    return torch.device(accelerator.type, torch.accelerator.current_device_index())


def choose_dtype(spec: RunSpec, device: torch.device) -> torch.dtype:
    """`auto` is bfloat16 where the device computes it in hardware, else float32.

    All weights in training stay float32, except with the optimizer that rounds bfloat16 stochastically.
    """
    settings = spec.training
    if settings.dtype != "auto":
        return torch.bfloat16 if settings.dtype == "bfloat16" else torch.float32
    if settings.full_finetuning and spec.optimizer.optim != "adamw_bf16":
        return torch.float32
    return torch.bfloat16 if _has_fast_bfloat16(device) else torch.float32


def exact(dtype: torch.dtype) -> torch.dtype:
    """What sums over a vocabulary or a row are kept in: float32, or float64 where a check computes in it."""
    return torch.promote_types(dtype, torch.float32)


def _has_fast_bfloat16(device: torch.device) -> bool:
    if device.type == "cpu":
        abilities = torch.cpu.get_capabilities()
        return bool(abilities.get("avx512_bf16") or abilities.get("amx_bf16") or abilities.get("bf16"))
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device.type in {"xpu", "mps"}


def set_threads(limits: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Use the cores this process may use, container quotas included; OMP_NUM_THREADS wins. Returns the count."""
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, min(torch.get_num_threads(), _allowed_cores(limits))))
    return torch.get_num_threads()


def _allowed_cores(limits: Path) -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = re.fullmatch(r"(\d+) (\d+)\s*", limits.read_text()) if limits.exists() else None
    return min(cores, math.ceil(int(quota[1]) / int(quota[2]))) if quota else cores


def name_of(device: torch.device) -> str:
    """What a person calls the device."""
    if device.type == "cuda":
        return f"{'ROCm' if torch.version.hip else 'CUDA'}: {torch.cuda.get_device_name(device)}"
    if device.type == "cpu":
        model = torch.cpu.get_capabilities().get("cpu_name") or "CPU"
        return f"CPU: {model}, {torch.get_num_threads()} threads"
    return device.type.upper()
