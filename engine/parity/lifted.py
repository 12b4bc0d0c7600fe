"""What transformers computes in float32 whatever a model's precision (routers, norms, softmaxes), in float64.

A layout adds up in another order, which float64 hardly shows; a sum in float32 does, a million times as much, and would
hide what the table is about. So the code of models where such a sum goes over devices is told another float32.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

OF_TRANSFORMERS = "transformers.models."


class _Torch:
    """`torch`, whose float32 is float64."""

    float = float32 = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@contextmanager
def lifted(model: nn.Module) -> Iterator[None]:
    """Inside the block the code of this model's modules computes in float64 throughout."""
    names = {type(module).__module__ for module in model.modules()}
    codes = [sys.modules[name] for name in sorted(names) if name.startswith(OF_TRANSFORMERS)]
    with ExitStack() as stack:
        for code in codes:
            stack.enter_context(patch.object(code, "torch", _Torch()))
        stack.enter_context(patch.object(torch.Tensor, "float", torch.Tensor.double))
        yield
