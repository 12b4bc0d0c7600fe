"""The language-model head without the logits: log-probability per trained token, tile by tile.

A frozen head: a token's log-probability depends on one hidden vector only, so the forward pass keeps its derivative
(N, D) and throws the tile's logits (tokens, V) away; backward is one multiplication. A head in training: its gradient
needs what comes from above, so backward computes the logits once more, in tiles of the vocabulary, each of which gives
its rows of the weight's gradient whole. Values and derivatives are those of the full logits.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.devices import exact

TILE_BYTES = 128 * 2**20  # float32 logits of one tile: one matrix product
STRIP_BYTES = 2 * 2**20  # of them, what goes through the softmax at once on a CPU, so that it stays in its cache


@dataclass(frozen=True)
class Shape:
    """What happens to logits after the head: `cap * tanh(scale * logits / cap) / temperature`; `cap` 0 is no cap.

    Scale and cap are the model's; the temperature is what its answers are sampled at, 1 unless asked for.
    """

    scale: float = 1.0
    cap: float = 0.0
    temperature: float = 1.0

    @classmethod
    def of(cls, config: Any) -> "Shape":
        """Read from a (text) config the names that transformers' models use; `engine.isolation` checks the result."""
        scale = float(getattr(config, "logit_scale", None) or 1.0)
        scale *= float(getattr(config, "lm_head_multiplier", None) or 1.0)
        scale /= float(getattr(config, "logits_scaling", None) or 1.0)
        return cls(scale=scale, cap=float(getattr(config, "final_logit_softcapping", None) or 0.0))

    def __call__(self, logits: Tensor) -> Tensor:
        """Logits of any shape as they enter the softmax."""
        if self == Shape():
            return logits
        logits = logits.to(exact(logits.dtype)) * self.scale
        capped = torch.tanh(logits / self.cap) * self.cap if self.cap else logits
        return capped / self.temperature

    def chain(self, slope: Tensor, shown: Tensor) -> Tensor:
        """A derivative by shaped logits (`shown`) made one by the head's own output; in place."""
        if self == Shape():
            return slope
        if self.cap:
            slope.mul_(1.0 - (shown * (self.temperature / self.cap)).clamp(min=-1.0).square())
        return slope.mul_(self.scale / self.temperature)


def tiles(count: int, other: int) -> list[slice]:
    """Equal slices of `count` rows, each of which, `other` wide in float32, takes about TILE_BYTES.

    Up to a half more: a product reads the whole matrix, however few rows are left for it.
    """
    rows = max(16, TILE_BYTES // (4 * max(1, other)))
    size = -(-count // max(1, round(count / rows)))
    return [slice(start, min(start + size, count)) for start in range(0, count, size or 1)]


def _strips(tile: Tensor, first: int) -> Iterator[tuple[slice, Tensor]]:
    """A tile's rows in the portions cheapest to compute on element by element; `first` is its first row's number."""
    size = max(1, STRIP_BYTES // (4 * tile.shape[1])) if tile.device.type == "cpu" else max(1, len(tile))
    for start in range(0, len(tile), size):
        strip = tile[start : start + size]
        yield slice(first + start, first + start + len(strip)), strip


@dataclass(frozen=True)
class Kept:
    """What each of N tokens was sampled among: `ids`, one set after another, and `offsets` (N + 1), their borders."""

    ids: Tensor
    offsets: Tensor

    def only(self, shown: Tensor, rows: slice, columns: slice) -> Tensor:
        """Logits of these rows and vocabulary columns with all others at minus infinity; in place."""
        start, end = int(self.offsets[rows.start]), int(self.offsets[rows.stop])
        counts = (self.offsets[rows.start + 1 : rows.stop + 1] - self.offsets[rows]).to(shown.device)
        at = torch.repeat_interleave(torch.arange(len(counts), device=shown.device), counts)
        ids = self.ids[start:end].to(shown.device)
        here = (ids >= columns.start) & (ids < columns.stop)
        outside = torch.ones_like(shown, dtype=torch.bool)
        outside[at[here], ids[here].long() - columns.start] = False
        return shown.masked_fill_(outside, float("-inf"))


@dataclass(frozen=True)
class How:
    """What is asked of one pass through the head."""

    shape: Shape
    entropy: bool
    kept: Kept | None = None

    def show(self, raw: Tensor, rows: slice, columns: slice) -> Tensor:
        """The head's output for these rows and vocabulary columns as it enters the softmax."""
        shown = self.shape(raw)
        return shown if self.kept is None else self.kept.only(shown, rows, columns)

    def outputs(self, hidden_ND: Tensor) -> tuple[Tensor, Tensor | None]:
        """Empty float32 results (N,): log-probabilities, and entropies if asked for."""
        empty = torch.empty(len(hidden_ND), dtype=exact(hidden_ND.dtype), device=hidden_ND.device)
        return empty, torch.empty_like(empty) if self.entropy else None


class _FrozenHead(torch.autograd.Function):
    """(logprobs_N, entropy_N) of `targets_N` under softmax(shape(hidden_ND @ weight_VD.T + bias_V))."""

    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, targets_N: Tensor, how: How
    ) -> tuple[Tensor, Tensor | None]:
        logprobs_N, entropy_N = how.outputs(hidden_ND)
        slope_ND = torch.empty_like(hidden_ND) if ctx.needs_input_grad[0] else None
        every = slice(0, len(weight_VD))
        parts = tiles(len(hidden_ND), len(weight_VD))
        raw_NV = hidden_ND.new_empty(parts[0].stop if parts else 0, len(weight_VD))
        for tile in parts:
            raw = _logits(hidden_ND[tile], weight_VD, bias_V, raw_NV[: tile.stop - tile.start])
            for rows, strip in _strips(raw, tile.start):
                shown = how.show(strip, rows, every)
                chances = torch.softmax(shown, -1, dtype=logprobs_N.dtype)
                at = targets_N[rows, None]
                logprobs_N[rows] = (shown.gather(1, at) - _log_total(shown, chances)).squeeze(1)
                if entropy_N is not None:
                    entropy_N[rows] = torch.special.entr(chances).sum(-1)
                if slope_ND is not None:
                    minus_slope = chances.scatter_add_(1, at, chances.new_full(at.shape, -1.0))
                    strip.copy_(how.shape.chain(minus_slope, shown))
            if slope_ND is not None:
                torch.mm(raw, weight_VD, out=slope_ND[tile])
        if slope_ND is not None:
            ctx.save_for_backward(slope_ND.neg_())
        if entropy_N is not None:
            ctx.mark_non_differentiable(entropy_N)
        return logprobs_N, entropy_N

    @staticmethod
    def backward(ctx: Any, gradient_N: Tensor, _: Any) -> tuple[Tensor, None, None, None, None]:
        (slope_ND,) = ctx.saved_tensors
        return (slope_ND * gradient_N[:, None]).to(slope_ND.dtype), None, None, None, None


def _logits(hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, out_NV: Tensor) -> Tensor:
    """The head's output, in place of what the tile before left there."""
    if bias_V is None:
        return torch.mm(hidden_ND, weight_VD.t(), out=out_NV)
    return torch.addmm(bias_V, hidden_ND, weight_VD.t(), out=out_NV)


def _log_total(shown: Tensor, chances: Tensor) -> Tensor:
    """Log of the sum of exponentials (rows, 1), which the likeliest token's logit and chance tell."""
    return shown.amax(-1, keepdim=True) - chances.amax(-1, keepdim=True).log()


class _TrainedHead(torch.autograd.Function):
    """The same values, with gradients for the weight and the bias too."""

    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, targets_N: Tensor, how: How
    ) -> tuple[Tensor, Tensor | None]:
        logprobs_N, entropy_N = how.outputs(hidden_ND)
        total_N = torch.empty_like(logprobs_N)  # log of the sum of exponentials
        every = slice(0, len(weight_VD))
        for tile in tiles(len(hidden_ND), len(weight_VD)):
            raw = F.linear(hidden_ND[tile], weight_VD, bias_V)
            for rows, strip in _strips(raw, tile.start):
                shown = how.show(strip, rows, every).to(logprobs_N.dtype)
                total_N[rows] = shown.logsumexp(-1)
                logprobs_N[rows] = shown.gather(1, targets_N[rows, None]).squeeze(1) - total_N[rows]
                if entropy_N is not None:
                    entropy_N[rows] = torch.special.entr(shown.softmax(-1)).sum(-1)
        ctx.save_for_backward(hidden_ND, weight_VD, bias_V, targets_N, total_N)
        ctx.how = how
        if entropy_N is not None:
            ctx.mark_non_differentiable(entropy_N)
        return logprobs_N, entropy_N

    @staticmethod
    def backward(ctx: Any, gradient_N: Tensor, _: Any) -> tuple[Tensor, Tensor, Tensor | None, None, None]:
        hidden_ND, weight_VD, bias_V, targets_N, total_N = ctx.saved_tensors
        grad_hidden = torch.zeros_like(hidden_ND, dtype=total_N.dtype)
        grad_weight = torch.empty_like(weight_VD)
        grad_bias = None if bias_V is None else torch.empty_like(bias_V)
        every = slice(0, len(hidden_ND))
        for tile in tiles(len(weight_VD), len(hidden_ND)):
            bias = None if bias_V is None else bias_V[tile]
            shown = ctx.how.show(F.linear(hidden_ND, weight_VD[tile], bias), every, tile).to(total_N.dtype)
            slope = (shown - total_N[:, None]).exp_().neg_()
            here = ((targets_N >= tile.start) & (targets_N < tile.stop)).nonzero().squeeze(1)
            slope[here, targets_N[here] - tile.start] += 1.0
            slope = ctx.how.shape.chain(slope, shown).mul_(gradient_N[:, None])
            if grad_bias is not None:
                grad_bias[tile] = slope.sum(0)
            slope = slope.to(weight_VD.dtype)
            grad_weight[tile] = slope.t() @ hidden_ND
            grad_hidden += slope @ weight_VD[tile]
        return grad_hidden.to(hidden_ND.dtype), grad_weight, grad_bias, None, None


def token_logprobs(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    targets_N: Tensor,
    *,
    bias_V: Tensor | None = None,
    shape: Shape | None = None,
    kept: Kept | None = None,
) -> Tensor:
    """Float32 log-probabilities (N,) of `targets_N` given hidden states (N, D), without ever holding (N, V).

    Hidden states, weight and bias get gradients when they want them. With `kept`, each token competes with those that
    it was sampled among only.
    """
    return measure(hidden_ND, weight_VD, bias_V, targets_N, How(shape or Shape(), entropy=False, kept=kept))[0]


def token_logprobs_and_entropy(
    hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, *, bias_V: Tensor | None = None, shape: Shape | None = None
) -> tuple[Tensor, Tensor]:
    """The log-probabilities, and in the same pass the entropy (N,) in nats of the distribution at each token.

    The entropy is a measurement: no gradient flows through it.
    """
    logprobs_N, entropy_N = measure(hidden_ND, weight_VD, bias_V, targets_N, How(shape or Shape(), entropy=True))
    return logprobs_N, cast(Tensor, entropy_N)


def measure(
    hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, targets_N: Tensor, how: How
) -> tuple[Tensor, Tensor | None]:
    """Log-probabilities (N,) of `targets_N`, and entropies (N,) if asked for."""
    trained = weight_VD.requires_grad or (bias_V is not None and bias_V.requires_grad)
    function = _TrainedHead if trained and torch.is_grad_enabled() else _FrozenHead
    result = function.apply(hidden_ND, weight_VD, bias_V, targets_N, how)  # type: ignore[no-untyped-call]
    return cast(tuple[Tensor, Tensor | None], result)


Measure = Callable[[Tensor, Tensor, Tensor | None, Tensor, How], tuple[Tensor, Tensor | None]]


def attach(head: nn.Linear, shape: Shape, measured: Measure = measure) -> None:
    """Teach a model's head module a second way to be called, inside its own forward.

    `head(hidden_ND, targets_N=targets)` -> logprobs_N; with `entropy=True` -> (logprobs_N, entropy_N); `temperature`
    divides the logits, `kept` limits the tokens. Whatever gathers the weight for a forward (sharding) so serves this
    one too; `measured` computes on what it finds there.
    """
    plain = cast(Callable[[Tensor], Tensor], head.forward)

    def forward(
        hidden: Tensor,
        targets_N: Tensor | None = None,
        temperature: float = 1.0,
        entropy: bool = False,
        kept: Kept | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        if targets_N is None:  # of a slice, a CPU in bfloat16 would multiply each text with a copy of the weight
            return plain(hidden.contiguous())
        how = How(replace(shape, temperature=temperature), entropy=entropy, kept=kept)
        logprobs_N, entropy_N = measured(hidden, head.weight, head.bias, targets_N, how)
        return (logprobs_N, cast(Tensor, entropy_N)) if entropy else logprobs_N

    head.__dict__["forward"] = forward
