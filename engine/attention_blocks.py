"""Attention on CPUs in bfloat16: block by block as matrix products, which such processors do fastest.

A block is some queries and everything that they may see, small enough for its scores to stay in the cache. Short
documents share a block, and so do short answers to one prompt. Scores are rounded to bfloat16, as in transformers'
eager attention. What a layer keeps is its inputs, and the weights where the texts are short: of long ones they would be
the largest tensors of all, so these are worked out again for the gradients.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor

BLOCK = 256  # queries at most; more of them compute more scores that nobody sees, fewer make more calls
KEPT = 256  # keys per query, on average, up to which weights are kept


@dataclass(frozen=True, eq=False)
class Block:
    """`queries` of a flat sequence, the ranges of `keys` that some of them see, and `bias_QK`, 0 or minus infinity.

    The bias is that of the last keys; those before are seen by every query.
    """

    queries: slice
    keys: tuple[slice, ...]
    bias_QK: Tensor

    @property
    def area(self) -> int:
        """Queries times keys."""
        queries, *keys = (int(part.stop - part.start) for part in (self.queries, *self.keys))
        return queries * sum(keys)

    def seen(self, each_GTD: Tensor) -> Tensor:
        """The keys or values (G, K, D) of this block."""
        parts = [each_GTD[:, part] for part in self.keys]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def add(self, whole_GTD: Tensor, part_GKD: Tensor) -> None:
        """Add gradients of the keys or values of this block to those of all."""
        start = 0
        for part in self.keys:
            end = start + part.stop - part.start
            whole_GTD[:, part] += part_GKD[:, start:end]
            start = end

    def weights(self, q_GRD: Tensor, k_GKD: Tensor, scale: float) -> Tensor:
        """Softmax of the scaled products (G, R, K); R are the queries of all heads that share a key."""
        scores = _product(q_GRD, k_GKD.transpose(1, 2), scale)
        count, biased = self.bias_QK.shape
        scores.view(-1, count, scores.shape[-1])[..., -biased:] += self.bias_QK
        return scores.softmax(-1)


def _product(a: Tensor, b: Tensor, scale: float) -> Tensor:
    """A batch of `scale * a @ b`, scaled before it is rounded."""
    return torch.baddbmm(a.new_empty(1, 1, 1), a, b, beta=0, alpha=scale)


@cache
def serves() -> bool:
    """Whether this processor multiplies bfloat16 itself."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


@lru_cache(maxsize=8)  # the layers of a pass ask for the same
def blocks(lengths: tuple[int, ...], answers: tuple[tuple[int, ...], ...], window: int | None) -> tuple[Block, ...]:
    """The blocks of documents of these lengths, which may end in answers to one prompt (`Documents`)."""
    texts = [length - sum(own) for length, own in zip(lengths, answers or ((),) * len(lengths), strict=True)]
    if not any(answers):
        return tuple(_packed(0, tuple(lengths), None, window))
    made: list[Block] = []
    start = 0
    for text, own in zip(texts, answers, strict=True):
        prompt = slice(start, start + text)
        made += [*_packed(start, (text,), None, window), *_packed(prompt.stop, own, prompt, window)]
        start = prompt.stop + sum(own)
    return tuple(made)


def _packed(start: int, lengths: tuple[int, ...], prompt: slice | None, window: int | None) -> Iterator[Block]:
    """Blocks of texts from `start` on, which see themselves and `prompt`: short ones together, a long one in pieces."""
    for group in grouped(lengths, BLOCK):
        total = sum(group)
        pieces = -(-total // BLOCK)  # of a long text, which is alone
        for at, to in pairwise(total * piece // pieces for piece in range(pieces + 1)):
            yield _block(start, group if pieces == 1 else (to,), at, prompt, window)
        start += total


def grouped(lengths: Sequence[int], most: int) -> Iterator[tuple[int, ...]]:
    """Texts in groups of at most so many tokens: short ones together, a longer one alone."""
    group: tuple[int, ...] = ()
    for length in lengths:
        if group and sum(group) + length > most:
            yield group
            group = ()
        group += (length,)
    if group:
        yield group


def _block(start: int, group: Sequence[int], before: int, prompt: slice | None, window: int | None) -> Block:
    """Texts from `start` on; of the only one, those tokens that come after the first `before`."""
    end = start + sum(group)
    lead = 0 if prompt is None else prompt.stop - prompt.start
    text_T = torch.repeat_interleave(torch.arange(len(group)), torch.tensor(list(group)))
    place_T = torch.cat([torch.arange(length) for length in group])
    back_QT = place_T[before:, None] - place_T[None, :]
    seen_QT = (text_T[before:, None] == text_T[None, :]) & (back_QT >= 0)
    first = 0  # of the text's tokens that anyone sees
    if window is None:
        seen_QT = seen_QT[:, before:]  # all that came before is seen by all
    else:
        seen_QT &= back_QT < window
        first = max(0, before - window + 1)
        seen_QT = seen_QT[:, first:]
        if lead:
            back_QP = lead + place_T[before:, None] - torch.arange(lead)[None, :]
            seen_QT = torch.cat([back_QP < window, seen_QT], 1)
    bias_QK = torch.zeros(seen_QT.shape, dtype=torch.bfloat16).masked_fill_(~seen_QT, float("-inf"))
    own = slice(start + first, end)
    return Block(slice(start + before, end), (own,) if prompt is None else (prompt, own), bias_QK)


class _InBlocks(torch.autograd.Function):
    """q (1, H, T, D), k (1, G, T, D), v (1, G, T, E) -> (1, T, H, E)."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, parts: tuple[Block, ...], scale: float) -> Tensor:
        k_GTD, v_GTE = k[0].contiguous(), v[0].contiguous()
        out_THE = q.new_empty(q.shape[2], q.shape[1], v.shape[3])
        kept: list[Tensor] = []
        keeps = sum(block.area for block in parts) <= KEPT * q.shape[2]
        for block in parts:
            q_GRD = q[0, :, block.queries].reshape(len(k_GTD), -1, q.shape[3])
            weights = block.weights(q_GRD, block.seen(k_GTD), scale)
            kept += [weights] * keeps
            found = weights @ block.seen(v_GTE)
            out_THE[block.queries] = found.view(q.shape[1], -1, v.shape[3]).transpose(0, 1)
        ctx.save_for_backward(q, k_GTD, v_GTE, *kept)
        ctx.parts, ctx.scale = parts, scale
        return out_THE[None]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        q, k_GTD, v_GTE, *kept = ctx.saved_tensors
        grad_q = torch.empty_like(q)
        grad_k, grad_v = (torch.zeros_like(each, dtype=torch.float32) for each in (k_GTD, v_GTE))
        for number, block in enumerate(ctx.parts):
            keys = block.seen(k_GTD)
            q_GRD = q[0, :, block.queries].reshape(len(k_GTD), -1, q.shape[3])
            g_GRE = gradient[0, block.queries].transpose(0, 1).reshape(len(k_GTD), -1, gradient.shape[3])
            weights = kept[number] if kept else block.weights(q_GRD, keys, ctx.scale)
            block.add(grad_v, weights.transpose(1, 2) @ g_GRE)
            slopes = g_GRE @ block.seen(v_GTE).transpose(1, 2)
            slopes = torch.ops.aten._softmax_backward_data(slopes, weights, -1, weights.dtype)
            grad_q[0, :, block.queries] = _product(slopes, keys, ctx.scale).view(q.shape[1], -1, q.shape[3])
            block.add(grad_k, _product(slopes.transpose(1, 2), q_GRD, ctx.scale))
        return grad_q, grad_k.to(q.dtype)[None], grad_v.to(q.dtype)[None], None, None


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: tuple[int, ...],
    answers: tuple[tuple[int, ...], ...],
    window: int | None,
    scale: float,
) -> Tensor:
    """Causal attention inside each document, at most `window` tokens back; answers see their prompt too."""
    out = _InBlocks.apply(q, k, v, blocks(lengths, answers, window), scale)  # type: ignore[no-untyped-call]
    return cast(Tensor, out)
