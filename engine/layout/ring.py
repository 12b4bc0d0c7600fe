"""Attention over a sequence whose keys and values lie on several processes and are passed round a ring.

Each process keeps the queries of one stretch, and sees keys and values of one stretch after another as they come by.
What it finds is merged under the softmax of all it has seen, whose logarithm of the sum it keeps; so the result is that
of the whole sequence. In the backward pass the gradients of keys and values travel along, and home in the end. Nothing
is passed on further than documents and windows reach back. Scores are computed in tiles and never kept.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from engine.attention_kernels import Documents, Scoring, say
from engine.batches import Ints, positions
from engine.devices import exact
from engine.layout.mesh import Group

TILE_BYTES = 64 * 2**20  # of scores at a time


@dataclass(frozen=True, eq=False)
class Sight:
    """What each token of the whole sequence sees: tokens before it in its text, at most `window` back.

    Of every token: its document, which answer to the document's text it is in (0: the text itself), its position, and
    the first token of the sequence that it may see.
    """

    document_T: Tensor
    answer_T: Tensor
    position_T: Tensor
    first_T: Ints
    window: int | None

    @classmethod
    @lru_cache(maxsize=8)  # the layers of a pass ask for the same
    def of(cls, documents: Documents, window: int | None, device: torch.device) -> "Sight":
        """The sight of all tokens of these documents."""
        answers = documents.answers or ((),) * len(documents.lengths)
        parts = [(length - sum(own), *own) for length, own in zip(documents.lengths, answers, strict=True)]
        starts = np.repeat(list(accumulate(documents.lengths, initial=0))[:-1], documents.lengths)
        first = starts if window is None else np.maximum(starts, np.arange(len(starts)) - window + 1)
        with_answers = np.repeat([bool(own) for own in answers], documents.lengths)  # which see their text besides
        document = np.repeat(np.arange(len(parts)), documents.lengths)
        answer = np.concatenate([np.repeat(np.arange(len(part)), part) for part in parts])
        position = positions(documents.lengths, documents.answers)
        document_T, answer_T, position_T = (torch.from_numpy(one).to(device) for one in (document, answer, position))
        return cls(document_T, answer_T, position_T, np.where(with_answers, starts, first), window)

    def seen(self, rows: slice, keys: slice) -> Tensor:
        """True where a query (rows) sees a key (columns)."""
        back_RK = self.position_T[rows, None] - self.position_T[None, keys]
        text_RK = (self.answer_T[rows, None] == self.answer_T[None, keys]) | (self.answer_T[None, keys] == 0)
        seen_RK = (self.document_T[rows, None] == self.document_T[None, keys]) & text_RK & (back_RK >= 0)
        return seen_RK if self.window is None else seen_RK & (back_RK < self.window)

    def turns(self, ring: Group) -> int:
        """How many stretches back any process of the ring has to see."""
        length = len(self.first_T) // ring.size
        return max(at - int(self.first_T[at * length]) // length for at in range(ring.size))

    def tiles(self, mine: slice, theirs: slice, heads: int) -> Iterator[tuple[slice, slice]]:
        """Parts of my queries, each with those of their keys that it may see; places in the whole sequence."""
        height = max(16, TILE_BYTES // (4 * heads * (theirs.stop - theirs.start)))
        for start in range(mine.start, mine.stop, height):
            stop = min(start + height, mine.stop)
            keys = slice(max(theirs.start, int(self.first_T[start])), min(theirs.stop, stop))
            if keys.start < keys.stop:
                yield slice(start, stop), keys


@dataclass(frozen=True, eq=False)
class Tile:
    """The scores of some queries (G, P, R, D), P heads to a group, for some keys (G, K, D)."""

    scores_GPRK: Tensor
    softcap: float | None

    @classmethod
    def of(cls, q_GPRD: Tensor, k_GKD: Tensor, seen_RK: Tensor, how: Scoring) -> "Tile":
        """Scores; minus infinity where a key is not seen."""
        scores = _by_group(q_GPRD, k_GKD.transpose(1, 2)).to(exact(q_GPRD.dtype)) * how.scale
        if how.softcap is not None:
            scores = torch.tanh(scores / how.softcap) * how.softcap
        return cls(scores.masked_fill_(~seen_RK, float("-inf")), how.softcap)

    def weights(self, total_GPR: Tensor) -> Tensor:
        """The softmax whose sum has this logarithm."""
        return (self.scores_GPRK - total_GPR[..., None]).exp_()

    def slopes(self, weights: Tensor, by_weights: Tensor, delta_GPR: Tensor) -> Tensor:
        """Derivatives by the products of queries and keys."""
        found = by_weights.sub_(delta_GPR[..., None]).mul_(weights)
        if self.softcap is not None:
            found.mul_(1 - (self.scores_GPRK / self.softcap).clamp(min=-1).square())
        return found


def _by_group(one_GPRX: Tensor, other_GXY: Tensor) -> Tensor:
    groups, heads, rows, _ = one_GPRX.shape
    return (one_GPRX.reshape(groups, heads * rows, -1) @ other_GXY).view(groups, heads, rows, -1)


def _of_keys(weights_GPRK: Tensor, each_GPRX: Tensor) -> Tensor:
    """Sums over the queries of a group (G, K, X)."""
    return weights_GPRK.flatten(1, 2).transpose(1, 2) @ each_GPRX.flatten(1, 2)


@dataclass(frozen=True, eq=False)
class _Round:
    """The way of keys and values round the ring, as one process sees it."""

    sight: Sight
    how: Scoring
    ring: Group

    def stretch(self, owner: int) -> slice:
        """Where the stretch of a process is."""
        length = len(self.sight.first_T) // self.ring.size
        return slice(owner * length, (owner + 1) * length)

    def tiles(self, owner: int, heads: int) -> Iterator[tuple[slice, slice, Tensor]]:
        """Rows of this process's queries, keys of the owner's stretch, each counted from its start; who sees whom."""
        mine, theirs = self.stretch(self.ring.index), self.stretch(owner)
        for rows, keys in self.sight.tiles(mine, theirs, heads) if owner >= 0 else ():
            seen_RK = self.sight.seen(rows, keys)
            yield _moved(rows, -mine.start), _moved(keys, -theirs.start), seen_RK

    def owners(self) -> Iterator[tuple[int, bool]]:
        """Whose keys are here, turn by turn (a negative one's come after all queries), and whether they go on."""
        turns = self.sight.turns(self.ring)
        for turn in range(turns + 1):
            yield self.ring.index - turn, turn < turns


def _moved(place: slice, by: int) -> slice:
    return slice(place.start + by, place.stop + by)


class _Ring(torch.autograd.Function):
    """q (G, P, T, D), k (G, T, D), v (G, T, E), sinks (G, P) -> (G, P, T, E); T of a stretch."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, way: _Round) -> Tensor:
        kind, width = exact(q.dtype), k.shape[-1]
        out = q.new_zeros(*q.shape[:-1], v.shape[-1], dtype=kind)
        total = q.new_full(q.shape[:-1], float("-inf"), dtype=kind)
        if sinks is not None:
            total.copy_(sinks[..., None].expand_as(total))
        kv = torch.cat([k, v], -1)
        for owner, goes_on in way.owners():
            arriving = way.ring.passing(kv) if goes_on else None
            for rows, keys, seen in way.tiles(owner, q.shape[0] * q.shape[1]):
                tile = Tile.of(q[:, :, rows], kv[:, keys, :width], seen, way.how)
                before = total[:, :, rows]
                after = torch.logaddexp(before, tile.scores_GPRK.logsumexp(-1))
                found = _by_group(tile.weights(after).to(v.dtype), kv[:, keys, width:])
                out[:, :, rows] = out[:, :, rows] * (before - after).exp()[..., None] + found
                total[:, :, rows] = after
            kv = arriving() if arriving is not None else kv
        ctx.save_for_backward(q, k, v, sinks, out.to(q.dtype), total)
        ctx.way = way
        return out.to(q.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None, None]:
        q, k, v, sinks, out, total = ctx.saved_tensors
        way: _Round = ctx.way
        width = k.shape[-1]
        delta = (gradient.to(total.dtype) * out).sum(-1)
        grad_q = torch.zeros_like(q, dtype=total.dtype)
        kv = torch.cat([k, v], -1)
        grad_kv = torch.zeros_like(kv, dtype=total.dtype)
        turns = 0
        for owner, goes_on in way.owners():
            arriving = way.ring.passing(kv) if goes_on else None
            for rows, keys, seen in way.tiles(owner, q.shape[0] * q.shape[1]):
                near, far = kv[:, keys].split([width, kv.shape[-1] - width], -1)
                tile = Tile.of(q[:, :, rows], near, seen, way.how)
                weights, g = tile.weights(total[:, :, rows]), gradient[:, :, rows]
                slopes = tile.slopes(weights, _by_group(g, far.transpose(1, 2)).to(weights.dtype), delta[:, :, rows])
                slopes = slopes.mul_(way.how.scale).to(q.dtype)
                grad_q[:, :, rows] += _by_group(slopes, near)
                grad_kv[:, keys, :width] += _of_keys(slopes, q[:, :, rows])
                grad_kv[:, keys, width:] += _of_keys(weights.to(g.dtype), g)
            if arriving is not None:
                kv, grad_kv, turns = arriving(), way.ring.passing(grad_kv)(), turns + 1
        grad_k, grad_v = way.ring.passing(grad_kv, -turns)().split([width, v.shape[-1]], -1)
        grad_sinks = None if sinks is None else -((sinks[..., None] - total).exp() * delta).sum(-1).to(sinks.dtype)
        return grad_q.to(q.dtype), grad_k.to(k.dtype), grad_v.to(v.dtype), grad_sinks, None


def attend(q: Tensor, k: Tensor, v: Tensor, documents: Documents, how: Scoring, ring: Group) -> Tensor:
    """`attention_kernels.attend` for the queries of a stretch: q (1, H, t, D), k and v (1, G, t, D) -> (1, t, H, D).

    `documents` are those of the whole sequence. Dropout is not among what it can do.
    """
    if how.dropout:
        raise ValueError("attention with dropout cannot be passed round a ring")
    say(f"in a ring of {ring.size}", str(q.device), str(q.dtype))
    groups, width = k.shape[1], q.shape[-1]
    way = _Round(Sight.of(documents, how.window, q.device), how, ring)
    q_GPtD = q.reshape(groups, -1, q.shape[2], width)
    sinks = None if how.sinks is None else how.sinks.to(exact(q.dtype)).view(groups, -1)
    out = cast(Tensor, _Ring.apply(q_GPtD, k[0], v[0], sinks, way))  # type: ignore[no-untyped-call]
    return out.flatten(0, 1).transpose(0, 1)[None].contiguous()
