"""Products with weights that are kept in a form of their own: by groups of rows, or packed and unpacked when needed."""

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor


def grouped(rows_SI: Tensor, weight_EIO: Tensor, ends_E: Tensor) -> Tensor:
    """Rows that come sorted by group, each times the matrix of its group (S, O); `ends_E`: where a group's rows end.

    Torch's kernel, or one product per group in float64.
    """
    if rows_SI.dtype == torch.float64:
        found: Tensor = torch.ops.transformers.grouped_mm_fallback(rows_SI, weight_EIO, ends_E)
        return found
    return F.grouped_mm(rows_SI, weight_EIO, offs=ends_E)


Unpack = Callable[..., Tensor]
"""(what is kept of a frozen weight, precision) -> the weight (O, I)."""


class _Packed(torch.autograd.Function):
    """x (..., I) times a frozen weight (O, I) transposed, of which only what it is unpacked from is kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, unpack: Unpack, *kept: Tensor) -> Tensor:
        ctx.save_for_backward(*kept)
        ctx.unpack = unpack
        return F.linear(x, unpack(*kept, x.dtype))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        weight_OI = ctx.unpack(*ctx.saved_tensors, gradient.dtype)
        return gradient @ weight_OI, None, *(None for _ in ctx.saved_tensors)


def packed(x: Tensor, unpack: Unpack, *kept: Tensor) -> Tensor:
    """X (..., I) -> (..., O) by a frozen weight, unpacked from `kept` now and once more for the gradient of x."""
    return cast(Tensor, _Packed.apply(x, unpack, *kept))  # type: ignore[no-untyped-call]
