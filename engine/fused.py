"""Parts of unmodified models computed in fewer passes, keeping less: RMS norms and gated MLPs, from outside.

What a module computes is not read off its name but tried: a part is replaced only where our way gives the very same
bits on a few random tokens. Replaced are the forwards of single module objects; classes, weights and files stay as they
are, and a module in training (its weight wants a gradient) goes its own way.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from peft.tuners.lora.layer import Linear as LoraLinear
from torch import Tensor, nn

from engine.lora import Joint, LowRank, is_plain, joined
from engine.siblings import join

STRIP_BYTES = 2**20  # what one portion of rows takes in float32, so that its passes stay in a core's cache (CPU)
PROBE_TOKENS = 5


def _strips(rows_ND: Tensor) -> Iterator[slice]:
    """Portions of rows: small ones on a CPU, all at once elsewhere."""
    count, width = rows_ND.shape
    size = max(1, STRIP_BYTES // (4 * width)) if rows_ND.device.type == "cpu" else max(1, count)
    for start in range(0, count, size):
        yield slice(start, start + size)


@dataclass(frozen=True)
class _Norm:
    """`x / rms(x) * (weight + offset)`; `late` multiplies only after going back to the precision of x."""

    eps: float
    offset: float
    late: bool

    def scale(self, normed: Tensor, weight_D: Tensor, out: Tensor) -> None:
        """Write float32 rows of norm one, times the weight, to `out`."""
        if self.late:
            torch.mul(normed.to(out.dtype), weight_D + self.offset if self.offset else weight_D, out=out)
        else:
            torch.mul(normed, weight_D.float() + self.offset, out=out)


class _RMSNorm(torch.autograd.Function):
    """An RMS norm that keeps its input as it came, and one number per token."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_D: Tensor, norm: _Norm) -> Tensor:
        x_ND = x.reshape(-1, x.shape[-1])
        out_ND = torch.empty_like(x_ND)
        inverse_N1 = torch.empty(len(x_ND), 1, dtype=torch.float32, device=x.device)
        for at in _strips(x_ND):
            wide = x_ND[at].to(torch.float32, copy=True)
            inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + norm.eps)
            inverse_N1[at] = inverse
            norm.scale(wide.mul_(inverse), weight_D, out_ND[at])
        ctx.save_for_backward(x_ND, inverse_N1, weight_D)
        ctx.norm, ctx.shape = norm, x.shape
        return out_ND.view(x.shape)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        x_ND, inverse_N1, weight_D = ctx.saved_tensors
        grad_ND = gradient.reshape(x_ND.shape)
        out_ND = torch.empty_like(x_ND)
        factor_D = weight_D.float() + ctx.norm.offset
        for at in _strips(x_ND):
            inverse = inverse_N1[at]
            grad = grad_ND[at] * factor_D  # float32
            normed = x_ND[at] * inverse
            along = (grad * normed).mean(-1, keepdim=True)
            torch.mul(grad.addcmul_(normed, along, value=-1), inverse, out=out_ND[at])
        return out_ND.view(ctx.shape), None, None


@dataclass(frozen=True)
class _Gate:
    """An activation and its derivative."""

    forward: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor, Tensor], Tensor]  # (gradient, input)


GATES = (
    _Gate(F.silu, torch.ops.aten.silu_backward),
    _Gate(
        lambda x: F.gelu(x, approximate="tanh"),
        lambda gradient, x: torch.ops.aten.gelu_backward(gradient, x, approximate="tanh"),
    ),
    _Gate(F.gelu, torch.ops.aten.gelu_backward),
)


class _GatedMLP(torch.autograd.Function):
    """down(act(gate(x)) * up(x)) with adapters on all three; the product is computed again in the backward pass.

    `into` is gate and up side by side; their outputs (N, 2I) are kept, and so are their gradients in one piece.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, act: _Gate, into: Joint, down: LowRank, *adapters: Tensor) -> Tensor:
        x_ND = x.reshape(-1, x.shape[-1])
        both_NJ, low_NR = into.layer().forward(x_ND)
        gate_NI, up_NI = both_NJ.chunk(2, -1)
        out_NO, down_NR = down.forward(_product(gate_NI, up_NI, act))
        ctx.save_for_backward(x_ND, both_NJ, low_NR, down_NR)
        ctx.act, ctx.into, ctx.down, ctx.shape = act, into, down, x.shape
        return out_NO.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x_ND, both_NJ, low_NR, down_NR = ctx.saved_tensors
        down: LowRank = ctx.down
        grad_NO = gradient.reshape(-1, gradient.shape[-1])
        low_grad_NR = down.low_gradient(grad_NO)
        grad_NI = down.input_gradient(grad_NO, low_grad_NR)
        product_NI, grad_NJ = torch.empty_like(grad_NI), torch.empty_like(both_NJ)
        (gate_NI, up_NI), (grad_gate_NI, grad_up_NI) = both_NJ.chunk(2, -1), grad_NJ.chunk(2, -1)
        for at in _strips(grad_NI):
            gate, up, grad = gate_NI[at], up_NI[at], grad_NI[at]
            value = ctx.act.forward(gate)
            torch.mul(value, up, out=product_NI[at])
            torch.mul(grad, value, out=grad_up_NI[at])
            grad_gate_NI[at] = ctx.act.backward(grad.mul_(up), gate)
        of_down = down.adapter_gradients(grad_NO, low_grad_NR, product_NI, down_NR)
        del product_NI, grad_NI
        into = ctx.into.layer()
        low_grad_NR = into.low_gradient(grad_NJ)
        of_into = ctx.into.split(*into.adapter_gradients(grad_NJ, low_grad_NR, x_ND, low_NR))
        grad_x = into.input_gradient(grad_NJ, low_grad_NR).view(ctx.shape) if ctx.needs_input_grad[0] else None
        return grad_x, None, None, None, *of_into, *of_down


def _product(gate_NI: Tensor, up_NI: Tensor, act: _Gate) -> Tensor:
    out_NI = torch.empty_like(gate_NI)
    for at in _strips(gate_NI):
        torch.mul(act.forward(gate_NI[at]), up_NI[at], out=out_NI[at])
    return out_NI


def fuse(model: nn.Module, dtype: torch.dtype) -> tuple[int, int]:
    """Replace what can be; returns how many norms and how many MLPs.

    Adapters must be in, weights frozen and whole. Checks in float64 are about the last digits: they get nothing.
    """
    if dtype == torch.float64:
        return 0, 0
    modules = list(model.modules())
    norms, mlps = (sum(part(module, dtype) for module in modules) for part in (fuse_norm, fuse_mlp))
    for module in modules:
        join(module)
    return norms, mlps


@torch.no_grad()
def fuse_norm(module: nn.Module, dtype: torch.dtype) -> bool:
    """Replace the forward of an RMS norm; whether `module` was one."""
    weight = getattr(module, "weight", None)
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    is_leaf = not list(module.children()) and len(list(module.parameters())) == 1
    if not is_leaf or not isinstance(weight, Tensor) or weight.dim() != 1 or not isinstance(eps, float):
        return False
    plain = cast(Callable[..., Tensor], module.forward)
    probe = _random(PROBE_TOKENS, len(weight), weight.device, dtype)
    try:
        expected = plain(probe)
    except TypeError:  # it wants more than hidden states: a gate, in the linear attention of Qwen3.5
        return False
    if not isinstance(expected, Tensor):
        return False
    for norm in (_Norm(eps, offset, late) for offset in (0.0, 1.0) for late in (True, False)):
        if torch.equal(_RMSNorm.apply(probe, weight, norm), expected):  # type: ignore[no-untyped-call]
            module.__dict__["forward"] = _norm_forward(module, plain, norm)
            return True
    return False


def _norm_forward(module: Any, plain: Callable[..., Tensor], norm: _Norm) -> Callable[[Tensor], Tensor]:
    def forward(hidden_states: Tensor, *more: Any, **named: Any) -> Tensor:
        if more or named or module.weight.requires_grad:
            return plain(hidden_states, *more, **named)
        return cast(Tensor, _RMSNorm.apply(hidden_states, module.weight, norm))  # type: ignore[no-untyped-call]

    return forward


@torch.no_grad()
def fuse_mlp(module: Any, dtype: torch.dtype) -> bool:
    """Replace the forward of a gated MLP with a plain adapter on its last layer; whether `module` was one."""
    layers = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    gate, up, down = (layer if isinstance(layer, LoraLinear) and is_plain(layer) else None for layer in layers)
    if gate is None or up is None or down is None:
        return False
    plain = cast(Callable[[Tensor], Tensor], module.forward)
    weight_OI = cast(nn.Linear, gate.base_layer).weight
    probe = _random(PROBE_TOKENS, weight_OI.shape[1], weight_OI.device, dtype)
    try:
        expected = plain(probe)
    except (TypeError, ValueError):  # it wants more than hidden states
        return False
    for act in GATES:
        if isinstance(expected, Tensor) and torch.equal(down(act.forward(gate(probe)) * up(probe)), expected):
            stacked = joined([gate, up])
            if stacked is not None:
                module.__dict__["forward"] = _mlp_forward(module, plain, act, *stacked)
            return stacked is not None
    return False


def _mlp_forward(
    module: Any, plain: Callable[[Tensor], Tensor], act: _Gate, weight_JD: Tensor, bias_J: Tensor | None
) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        if module.down_proj.disable_adapters:
            return plain(x)
        into = Joint.of([module.gate_proj, module.up_proj], weight_JD, bias_J)
        base = module.down_proj.base_layer
        down = LowRank.of(module.down_proj, base.weight, base.bias)
        return cast(
            Tensor,
            _GatedMLP.apply(x, act, into, down, *into.adapters, down.a_RI, down.b_OR),  # type: ignore[no-untyped-call]
        )

    return forward


def _random(tokens: int, width: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Probe inputs (1, tokens, width): the same everywhere, and nothing taken from the run's own randomness."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(1, tokens, width, generator=generator).to(device, dtype)
