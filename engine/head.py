"""The language-model head without the logits: log-probability per trained token, tile by tile.

For one token the log-probability depends on one hidden vector only, so the forward pass keeps its derivative (N, D) and
throws the tile's logits (tile, V) away; backward is one multiplication. Values and derivatives are those of the full
logits.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TILE_BYTES = 64 * 2**20  # float32 logits of one tile


@dataclass(frozen=True)
class Shape:
    """What a model does to its logits after the head: `cap * tanh(scale * logits / cap)`; `cap` 0 is no cap."""

    scale: float = 1.0
    cap: float = 0.0

    @classmethod
    def of(cls, config: Any) -> "Shape":
        """Read from a (text) config the names that transformers' models use; `engine.isolation` checks the result."""
        scale = float(getattr(config, "logit_scale", None) or 1.0)
        scale *= float(getattr(config, "lm_head_multiplier", None) or 1.0)
        scale /= float(getattr(config, "logits_scaling", None) or 1.0)
        return cls(scale=scale, cap=float(getattr(config, "final_logit_softcapping", None) or 0.0))

    def __call__(self, logits: Tensor) -> Tensor:
        """Logits of any shape as the model shows them."""
        logits = logits * self.scale if self.scale != 1.0 else logits
        return torch.tanh(logits / self.cap) * self.cap if self.cap else logits


class _TokenLogprobs(torch.autograd.Function):
    """logprobs_N of `targets_N` under softmax(shape(hidden_ND @ weight_VD.T + bias_V)); derivative for hidden only."""

    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, targets_N: Tensor, shape: Shape
    ) -> Tensor:
        count, vocabulary = len(hidden_ND), len(weight_VD)
        logprobs_N = torch.empty(count, dtype=torch.float32, device=hidden_ND.device)
        slope_ND = torch.empty_like(hidden_ND) if ctx.needs_input_grad[0] else None
        rows = max(16, TILE_BYTES // (4 * vocabulary))
        for start in range(0, count, rows):
            tile = slice(start, min(start + rows, count))
            raw = F.linear(hidden_ND[tile], weight_VD, bias_V)
            shown = shape(raw.float()) if shape != Shape() else raw
            scores = torch.log_softmax(shown, -1, dtype=torch.float32)
            at = targets_N[tile, None]
            logprobs_N[tile] = scores.gather(1, at).squeeze(1)
            if slope_ND is not None:
                slope = scores.exp_().neg_()
                slope.scatter_add_(1, at, slope.new_ones(at.shape))
                if shape.cap:
                    slope.mul_(1.0 - (shown / shape.cap).square())
                torch.mm(slope.to(weight_VD.dtype), weight_VD, out=slope_ND[tile])
        if slope_ND is not None:
            ctx.save_for_backward(slope_ND.mul_(shape.scale) if shape.scale != 1.0 else slope_ND)
        return logprobs_N

    @staticmethod
    def backward(ctx: Any, gradient_N: Tensor) -> tuple[Tensor, None, None, None, None]:
        (slope_ND,) = ctx.saved_tensors
        return (slope_ND * gradient_N[:, None]).to(slope_ND.dtype), None, None, None, None


def token_logprobs(
    hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, *, bias_V: Tensor | None = None, shape: Shape | None = None
) -> Tensor:
    """Float32 log-probabilities (N,) of `targets_N` given hidden states (N, D), without ever holding (N, V).

    The head is frozen: gradients go to the hidden states only; a head that wants gradients is an error (ValueError).
    """
    if weight_VD.requires_grad or (bias_V is not None and bias_V.requires_grad):
        raise ValueError("the tiled head gives no gradients to its weight")
    result = _TokenLogprobs.apply(hidden_ND, weight_VD, bias_V, targets_N, shape or Shape())  # type: ignore[no-untyped-call]
    return cast(Tensor, result)


def attach(head: nn.Linear, shape: Shape) -> None:
    """Teach a model's head module a second way to be called: `head(hidden_ND, targets_N=targets)` -> logprobs_N.

    It runs inside the module's own forward, so that whatever gathers the weight for a forward (sharding) serves it too.
    """
    plain = cast(Callable[[Tensor], Tensor], head.forward)

    def forward(hidden: Tensor, targets_N: Tensor | None = None) -> Tensor:
        if targets_N is None:
            return plain(hidden)
        return token_logprobs(hidden, head.weight, targets_N, bias_V=head.bias, shape=shape)

    head.__dict__["forward"] = forward
