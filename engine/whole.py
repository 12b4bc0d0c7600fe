"""All weights in training: no adapter is put in, and the base model is read once more when it is asked for."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM


@contextmanager
def base_weights(model: nn.Module, source: str) -> Iterator[None]:
    """The weights that training started from, inside the block; those in training wait meanwhile. Memory: one copy."""
    original: Any = AutoModelForCausalLM.from_pretrained(source, dtype=next(model.parameters()).dtype)
    _exchange(model, original)
    try:
        yield
    finally:
        _exchange(model, original)


@torch.no_grad()
def _exchange(model: nn.Module, other: nn.Module) -> None:
    """Swap the values of two models of one architecture; each parameter stays the same object."""
    theirs = dict(other.named_parameters())
    for name, value in model.named_parameters():
        mine, value.data = value.data, theirs[name].data.to(value.device, value.dtype)
        theirs[name].data = mine
