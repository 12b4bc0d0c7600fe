"""Tensors without memory that say they are on a device which is not here, and the fused kernels that it has.

The engine's own code runs on the meta device as it would run on the device that is planned for, takes the same
branches, and keeps the same tensors; nothing is computed. What a fused kernel keeps for its backward is stated here.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

META = torch.device("meta")
DEVICE_OF: Any = torch.Tensor.device.__get__  # made anew each time: compare with ==


class Attention(torch.autograd.Function):
    """A fused attention: keeps q, k, v, its output, one float32 number per query and head, and a mask as numbers."""

    @staticmethod
    def forward(ctx: Any, q_BHTD: Tensor, k_BGTD: Tensor, v_BGTE: Tensor, mask: Tensor | None = None) -> Tensor:
        """The result's shape; keeps what the kernel keeps."""
        batch, heads, length, _ = q_BHTD.shape
        out = q_BHTD.new_empty(batch, length, heads, v_BGTE.shape[-1]).transpose(1, 2)  # as kernels lay it out
        sums = q_BHTD.new_empty(q_BHTD.shape[:-1], dtype=torch.float32)
        bias = [] if mask is None else [mask.to(q_BHTD.dtype)]
        ctx.save_for_backward(q_BHTD, k_BGTD, v_BGTE, out, sums, *bias)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Gradients in the shapes of the inputs."""
        q, k, v, *_ = ctx.saved_tensors
        return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), None


class Grouped(torch.autograd.Function):
    """x (rows, in) times the matrix of each row's expert (experts, in, out): keeps x only where the matrices learn."""

    @staticmethod
    def forward(ctx: Any, x_NI: Tensor, weight_EIO: Tensor) -> Tensor:
        """The result's shape; keeps what the kernel keeps."""
        ctx.learns = weight_EIO.requires_grad
        ctx.shape = x_NI.shape
        ctx.save_for_backward(weight_EIO, *([x_NI] if ctx.learns else []))
        return x_NI.new_empty(x_NI.shape[0], weight_EIO.shape[-1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        """Gradients in the shapes of the inputs."""
        weight = ctx.saved_tensors[0]
        return gradient.new_empty(ctx.shape), torch.empty_like(weight) if ctx.learns else None


class Norm(torch.autograd.Function):
    """A fused RMS norm: keeps its input and one float32 number per row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        """The result's shape; keeps what the kernel keeps."""
        ctx.save_for_backward(x, x.new_empty(x.shape[:-1], dtype=torch.float32), weight)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        """Gradients in the shapes of the inputs."""
        _, _, weight = ctx.saved_tensors
        return torch.empty_like(gradient), torch.empty_like(weight) if weight.requires_grad else None


class Gate(torch.autograd.Function):
    """A fused gated activation: keeps its inputs, whose gradients take their place."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> Tensor:
        """The result's shape; keeps what the kernel keeps."""
        ctx.save_for_backward(*inputs)
        first = inputs[0]
        return torch.empty_like(first) if len(inputs) == 2 else first.new_empty(*first.shape[:-1], first.shape[-1] // 2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        """Gradients in the shapes of the inputs."""
        return tuple(ctx.saved_tensors)


def _attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *_: Any, **__: Any) -> Any:
    return Attention.apply(query, key, value, attn_mask)  # type: ignore[no-untyped-call]


def _grouped(rows: Tensor, weights: Tensor, *_: Any, **__: Any) -> Any:
    return Grouped.apply(rows, weights)  # type: ignore[no-untyped-call]


class Pretence(TorchFunctionMode):
    """Inside the block every tensor is on a CPU by its own words, if that is planned for, and on meta in truth.

    An accelerator is not named: no branch asks for one by name that runs without it.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.device = torch.device("cpu") if kind == "cpu" else META
        self.fused: dict[Any, Callable[..., Any]] = {
            F.scaled_dot_product_attention: _attention,
            torch._grouped_mm: _grouped,
            torch.ops.transformers.grouped_mm_fallback: _grouped,
        }

    @contextmanager
    def again(self) -> Iterator[None]:
        """Inside the block also where autograd has left the mode: when a layer is recomputed."""
        if torch._C._len_torch_function_stack():
            yield
            return
        with self:
            yield

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """One call of torch: answered, redirected to the meta device, or let through."""
        kwargs = dict(kwargs or {})
        if func == DEVICE_OF:
            return self.device
        if func in (torch.Tensor.__bool__, torch.equal):
            return True  # models ask whether a mask is all ones and the like; the plain case is the one to plan
        if func in self.fused:
            return self.fused[func](*args, **kwargs)
        if kwargs.get("device") is not None:
            kwargs["device"] = META
        args = tuple(META if isinstance(one, torch.device) else one for one in args)
        return func(*args, **kwargs)
