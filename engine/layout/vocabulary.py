"""The head split by vocabulary: each process of a tensor group scores its own words, and no logits travel.

Per tile of tokens the processes exchange three numbers a token: the log of their sum of exponentials, the score of the
target if it is theirs, and their mean score. Together they make the log-probability and the entropy over all words.
"""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from engine.devices import exact
from engine.head import How, Measure, tiles
from engine.layout.mesh import Group


class _SplitHead(torch.autograd.Function):
    """(logprobs_N, entropy_N) of `targets_N`, of which this process has the words from `first` on; weight frozen."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        part: tuple[Tensor, Tensor | None],
        targets_N: Tensor,
        how: How,
        first: int,
        group: Group,
    ) -> tuple[Tensor, Tensor]:
        weight_VD, bias_V = part
        logprobs_N = torch.empty(len(hidden_ND), dtype=exact(hidden_ND.dtype), device=hidden_ND.device)
        entropy_N = torch.empty_like(logprobs_N)
        slope_ND = torch.empty_like(hidden_ND) if ctx.needs_input_grad[0] else None
        mine = slice(first, first + len(weight_VD))
        for tile in tiles(len(hidden_ND), _longest(len(weight_VD), group)):
            shown = how.show(F.linear(hidden_ND[tile], weight_VD, bias_V), tile, mine).to(logprobs_N.dtype)
            at = targets_N[tile] - first
            here = (at >= 0) & (at < len(weight_VD))
            at = at.where(here, 0)[:, None]
            total, target, mean = _together(shown, at, here, group)
            logprobs_N[tile], entropy_N[tile] = target - total, total - mean
            if slope_ND is not None:
                slope = shown.sub(total[:, None]).exp_().neg_()
                slope.scatter_add_(1, at, here[:, None].to(slope.dtype))
                torch.mm(how.shape.chain(slope, shown).to(weight_VD.dtype), weight_VD, out=slope_ND[tile])
        if slope_ND is not None:
            ctx.save_for_backward(slope_ND)
        ctx.group = group
        ctx.mark_non_differentiable(entropy_N)
        return logprobs_N, entropy_N

    @staticmethod
    def backward(ctx: Any, gradient_N: Tensor, _: Any) -> tuple[Tensor, None, None, None, None, None]:
        (slope_ND,) = ctx.saved_tensors
        gradient_ND = (slope_ND * gradient_N[:, None]).to(slope_ND.dtype).contiguous()
        return ctx.group.sum_(gradient_ND), None, None, None, None, None


def _together(shown: Tensor, at: Tensor, here: Tensor, group: Group) -> tuple[Tensor, Tensor, Tensor]:
    """Over all words, per token: log of the sum of exponentials, score of the target, mean score."""
    total = shown.logsumexp(-1)
    share = shown.sub(total.clamp_min(torch.finfo(shown.dtype).min)[:, None]).exp_()
    mean = torch.where(share > 0, share * shown, 0.0).sum(-1)  # words that were ruled out count for nothing
    target = shown.gather(1, at).squeeze(1).where(here, 0.0)
    totals, targets, means = torch.stack(group.gather(torch.stack([total, target, mean]))).unbind(1)
    everywhere = totals.logsumexp(0)
    return everywhere, targets.sum(0), (totals.sub(everywhere).exp_() * means).sum(0)


def _longest(rows: int, group: Group) -> int:
    """The most words that a process has: tiles must be the same everywhere, since each is an exchange."""
    return rows if group.index == 0 else rows + 1


def measure_split(head: nn.Linear, group: Group) -> Measure:
    """What `engine.head.measure` does, for a head whose weight is split over `group` by words."""
    first = group.index * -(-head.out_features // group.size)

    def measure(
        hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, targets_N: Tensor, how: How
    ) -> tuple[Tensor, Tensor | None]:
        part = tuple(value.to_local() if isinstance(value, DTensor) else value for value in (weight_VD, bias_V))
        found = _SplitHead.apply(hidden_ND, part, targets_N, how, first, group)  # type: ignore[no-untyped-call]
        return cast(tuple[Tensor, Tensor | None], found)

    return measure


def is_split(head: nn.Linear) -> bool:
    """Whether a head's words are spread over a tensor group."""
    weight = head.weight
    return isinstance(weight, DTensor) and "tp" in (weight.device_mesh.mesh_dim_names or ())
