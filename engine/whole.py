"""All weights in training: no adapter is put in, and the base model is read once more when it is asked for."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from engine.auto import class_for
from engine.layout import shard
from engine.layout.degrees import Degrees


@contextmanager
def base_weights(model: nn.Module, source: str, degrees: Degrees) -> Iterator[None]:
    """The weights that training started from, inside the block; those in training wait meanwhile. Memory: one copy.

    On several processes all of them call this, and each reads its part.
    """
    shard.settle(model)
    kind = next(model.parameters()).dtype
    original: Any = class_for(source).from_pretrained(source, dtype=kind, **shard.loading(degrees))
    _exchange(model, original)
    try:
        yield
    finally:
        shard.settle(model)
        _exchange(model, original)


@torch.no_grad()
def _exchange(model: nn.Module, other: nn.Module) -> None:
    """Swap the values of two models of one architecture; each parameter stays the same object.

    What FSDP2 keeps is swapped where it lies, since FSDP2 has hold of that memory.
    """
    theirs = dict(other.named_parameters())
    for name, value in model.named_parameters():
        if isinstance(value, DTensor):
            mine = value.detach().clone()
            value.copy_(theirs[name])
            theirs[name].copy_(mine)
        else:
            mine, value.data = value.data, theirs[name].data.to(value.device, value.dtype)
            theirs[name].data = mine
