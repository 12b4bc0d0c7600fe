"""Attention over one flat sequence of documents, by the fastest kernel that this device, precision and scoring allow.

All take q (1, H, T, D), k and v (1, G, T, D) and the documents' lengths, and give (1, T, H, D). Which one serves is
decided per call; a kernel of torch's that is new or not everywhere is tried on a few tokens before it is trusted.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from engine import attention_blocks
from engine.devices import exact

GROUP_TOKENS = 256  # of answers that share a call: below, one call more costs more than scores that nobody sees


@dataclass(frozen=True)
class Documents:
    """Tokens per document of one flat sequence, in order.

    `answers`: of each document the tokens of the answers it ends in (`engine.batches`); empty where none has any.
    """

    lengths: tuple[int, ...]
    answers: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        if self.answers and len(self.answers) != len(self.lengths):
            raise ValueError("answers are given for all documents or for none")


@dataclass(frozen=True)
class Scoring:
    """How one layer turns products into weights; `sinks` (H,) are logits that take part in the softmax only."""

    scale: float
    dropout: float = 0.0
    window: int | None = None  # tokens a query may look back, itself included
    softcap: float | None = None
    sinks: Tensor | None = None

    @property
    def is_plain(self) -> bool:
        """Nothing but a softmax of scaled products in a window."""
        return not self.dropout and self.softcap is None and self.sinks is None


def attend(q: Tensor, k: Tensor, v: Tensor, documents: Documents, how: Scoring) -> Tensor:
    """Causal attention inside each document."""
    name = _kernel(q, k, v, documents, how)
    say(name, str(q.device), str(q.dtype))
    return KERNELS[name](q, k, v, documents, how)


def _kernel(q: Tensor, k: Tensor, v: Tensor, documents: Documents, how: Scoring) -> str:
    """The name of the fastest kernel that gives what is asked."""
    if how.is_plain and q.device.type == "cpu" and q.dtype == torch.bfloat16 and attention_blocks.serves():
        return "in blocks"
    if not how.is_plain or documents.answers or q.shape[-1] != v.shape[-1]:
        return "one by one"
    if q.device.type == "cpu":
        return "flash per document" if how.window is None or max(documents.lengths) <= how.window else "one by one"
    if q.dtype == torch.float32 or q.device.type != "cuda":  # ROCm calls itself cuda
        return "one by one"
    trusted = _is_variable_length_right(q.device, q.dtype, (q.shape[1], k.shape[1], q.shape[-1]), how.window is None)
    return "variable-length" if trusted else "one by one"


@cache
def say(name: str, device: str, dtype: str) -> None:
    """One line in the run's log per kernel that serves."""
    sys.stderr.write(f"attention: {name} on {device} in {dtype.removeprefix('torch.')}\n")


def _parts(lengths: tuple[int, ...]) -> Iterator[slice]:
    """Where each document's tokens are."""
    start = 0
    for length in lengths:
        yield slice(start, start + length)
        start += length


@lru_cache(maxsize=4)
def _borders(lengths: tuple[int, ...], device: torch.device) -> Tensor:
    """Document borders, int32, documents + 1 entries; kept, because every layer of a model asks for the same."""
    return F.pad(torch.tensor(lengths, dtype=torch.int32).cumsum(0, dtype=torch.int32), (1, 0)).to(device)


def _variable_length(q: Tensor, k: Tensor, v: Tensor, documents: Documents, how: Scoring) -> Tensor:
    """All documents in one call of torch's variable-length flash attention (CUDA, ROCm; half precision)."""
    borders, longest = _borders(documents.lengths, q.device), max(documents.lengths)
    out = varlen_attn(
        q[0].transpose(0, 1),
        k[0].transpose(0, 1),
        v[0].transpose(0, 1),
        borders,
        borders,
        longest,
        longest,
        scale=how.scale,
        window_size=(-1 if how.window is None else how.window - 1, 0),
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return cast(Tensor, out)[None]


PROBE = Documents((5, 12, 1))


@cache
def _is_variable_length_right(
    device: torch.device, dtype: torch.dtype, shape: tuple[int, int, int], unlimited: bool
) -> bool:
    """Whether that kernel runs here and agrees with SDPA in values and gradients, with a window if one is asked for."""
    heads, groups, width = shape
    how = Scoring(scale=width**-0.5, window=None if unlimited else 4)
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(1, count, sum(PROBE.lengths), width, generator=generator) for count in (heads, groups, groups)]
    found: list[list[Tensor]] = []
    try:
        for kernel in (_variable_length, _one_by_one):
            one, two, three = inputs = [value.to(device, dtype).requires_grad_() for value in start]
            with torch.enable_grad():
                out = kernel(one, two, three, PROBE, how)
                out.float().square().sum().backward()
            found.append([out.detach(), *(cast(Tensor, value.grad) for value in inputs)])
    except (RuntimeError, ValueError, NotImplementedError):
        return False
    return all(float((a - b).float().norm() / b.float().norm()) < 0.02 for a, b in zip(*found, strict=True))


class _FlashOnCpu(torch.autograd.Function):
    """Torch's flash kernel for CPUs on each document, keeping nothing but inputs and output in their own precision."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, lengths: tuple[int, ...], scale: float) -> Tensor:
        out = q.new_empty(1, q.shape[2], q.shape[1], q.shape[3])
        sums = []
        for at in _parts(lengths):
            one, total = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                *_exactly(q[:, :, at], k[:, :, at], v[:, :, at]), 0.0, True, scale=scale
            )
            out[:, at] = one.transpose(1, 2)
            sums.append(total)
        ctx.save_for_backward(q, k, v, out, *sums)
        ctx.lengths, ctx.scale = lengths, scale
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        q, k, v, out, *sums = ctx.saved_tensors
        grads = [torch.empty_like(value) for value in (q, k, v)]
        for at, total in zip(_parts(ctx.lengths), sums, strict=True):
            parts = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                *_exactly(
                    gradient[:, at].transpose(1, 2),
                    *(value[:, :, at] for value in (q, k, v)),
                    out[:, at].transpose(1, 2),
                ),
                total,
                0.0,
                True,
                scale=ctx.scale,
            )
            for whole, part in zip(grads, parts, strict=True):
                whole[:, :, at] = part
        return grads[0], grads[1], grads[2], None, None


def _exactly(*values: Tensor) -> list[Tensor]:
    """One document's tensors (1, H, T, D) in float32 at least, in which that kernel is the faster."""
    return [value.to(exact(value.dtype)) for value in values]


def _flash_on_cpu(q: Tensor, k: Tensor, v: Tensor, documents: Documents, how: Scoring) -> Tensor:
    return cast(Tensor, _FlashOnCpu.apply(q, k, v, documents.lengths, how.scale))  # type: ignore[no-untyped-call]


def _in_blocks(q: Tensor, k: Tensor, v: Tensor, documents: Documents, how: Scoring) -> Tensor:
    """All documents as matrix products in bfloat16 (CPUs that multiply it)."""
    return attention_blocks.attend(q, k, v, documents.lengths, documents.answers, how.window, how.scale)


def _one_by_one(q: Tensor, k: Tensor, v: Tensor, documents: Documents, how: Scoring) -> Tensor:
    """Every document by itself: fused where torch can, step by step where it cannot."""
    dtype = q.dtype
    if q.device.type == "cpu":
        q, k, v = (value.to(exact(dtype)) for value in (q, k, v))
    answers = documents.answers or ((),) * len(documents.lengths)
    parts = [
        part
        for at, own in zip(_parts(documents.lengths), answers, strict=True)
        for part in _document(q[:, :, at], k[:, :, at], v[:, :, at], own, how)
    ]
    out = parts[0] if len(parts) == 1 else torch.cat(parts, 2)
    return out.transpose(1, 2).to(dtype).contiguous()


def _document(q: Tensor, k: Tensor, v: Tensor, answers: Sequence[int], how: Scoring) -> list[Tensor]:
    """One document in parts: its text, or its prompt and then group after group of the answers to it."""
    one = _fused if how.softcap is None and how.sinks is None else _plain
    prompt = q.shape[2] - sum(answers)
    parts = [one(q[:, :, :prompt], k[:, :, :prompt], v[:, :, :prompt], how)]
    start = prompt
    for group in attention_blocks.grouped(answers, GROUP_TOKENS):
        mine = slice(start, start + sum(group))
        keys, values = (torch.cat([each[:, :, :prompt], each[:, :, mine]], 2) for each in (k, v))
        parts.append(one(q[:, :, mine], keys, values, how, _seen_by_answers(prompt, group, how.window, q.device)))
        start = mine.stop
    return parts


@lru_cache(maxsize=64)  # the layers of a forward pass ask for the same few
def _seen_by_answers(prompt: int, answers: tuple[int, ...], window: int | None, device: torch.device) -> Tensor:
    """True where a token of an answer (rows) sees a key of the prompt or of its own answer (columns)."""
    answer_T = torch.cat([torch.full((length,), at) for at, length in enumerate((prompt, *answers))])
    position_T = torch.cat([torch.arange(prompt), *(torch.arange(prompt, prompt + length) for length in answers)])
    back = position_T[prompt:, None] - position_T[None, :]
    own = (answer_T[prompt:, None] == answer_T[None, :]) | (answer_T[None, :] == 0)
    return (own & (back >= 0) & (back < (len(position_T) if window is None else window))).to(device)


def _seen(length: int, window: int | None, device: torch.device) -> Tensor:
    """True where a query (rows) may see a key (columns): causal, at most `window` tokens back."""
    at = torch.arange(length, device=device)
    back = at[:, None] - at[None, :]
    return (back >= 0) & (back < (length if window is None else window))


def _fused(q: Tensor, k: Tensor, v: Tensor, how: Scoring, mask: Tensor | None = None) -> Tensor:
    """One document through torch's fused kernels; `mask` where it is not simply causal."""
    length = q.shape[2]
    if mask is None and how.window is not None and length > how.window:
        mask = _seen(length, how.window, q.device)
    return F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=mask,
        is_causal=mask is None,
        dropout_p=how.dropout,
        scale=how.scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )


def _plain(q: Tensor, k: Tensor, v: Tensor, how: Scoring, mask: Tensor | None = None) -> Tensor:
    """One document step by step, for score caps and sinks, which the fused kernels do not have."""
    _, heads, length, width = q.shape
    groups = k.shape[1]
    q = q.reshape(groups, heads // groups, length, width)
    scores = (q @ k[0, :, None].transpose(-1, -2)).to(exact(q.dtype)) * how.scale  # (G, H/G, T, keys)
    if how.softcap is not None:
        scores = torch.tanh(scores / how.softcap) * how.softcap
    mask = _seen(length, how.window, q.device) if mask is None else mask
    scores = scores.masked_fill(~mask, float("-inf"))
    if how.sinks is None:
        weights = scores.softmax(-1)
    else:
        sinks = how.sinks.to(scores.dtype).view(groups, heads // groups, 1, 1).expand(-1, -1, length, 1)
        weights = torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]
    weights = F.dropout(weights, how.dropout).to(v.dtype)
    return (weights @ v[0, :, None]).reshape(1, heads, length, -1)


KERNELS = {
    "variable-length": _variable_length,
    "in blocks": _in_blocks,
    "flash per document": _flash_on_cpu,
    "one by one": _one_by_one,
}
