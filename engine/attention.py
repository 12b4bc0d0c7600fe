"""Attention for flat sequences of isolated documents, for unmodified models: transformers' AttentionInterface.

A forward pass carries one flat sequence (batch 1) of documents and a `Documents` keyword that models hand down to every
attention layer. Each document attends to itself only. A model whose attention cannot be replaced is run one document
at a time instead; which of the two it is, is not guessed from names but measured (`engine.isolation`).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

NAME = "atelier_documents"
GROUP_TOKENS = 256  # of answers that share a call: below, one call more costs more than scores that nobody sees
_CHANGES_SCORES = ("bias", "mask", "indices")  # parts of the names of keywords that change what a token attends to


@dataclass
class Witness:
    """What a model asked of attention while it was watched: windows of its masks and layers, and extras."""

    mask_windows: set[int] = field(default_factory=set)
    layer_windows: set[int] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    calls: int = 0
    calls_with_documents: int = 0

    @property
    def complaint(self) -> str:
        """Why this model's attention cannot be replaced; empty if it can."""
        if self.unknown:
            return f"its attention takes {', '.join(sorted(self.unknown))}"
        if self.calls == 0 or self.calls != self.calls_with_documents:
            return "it does not hand keywords down to its attention layers"
        if not self.mask_windows <= self.layer_windows:
            return f"it limits attention to {sorted(self.mask_windows)} tokens through its masks only"
        return ""


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


_watching: list[Witness] = []


def _no_mask(*_: Any, local_size: int | None = None, **__: Any) -> None:
    """Masks are built inside the attention; a mask limited to a window is noted for the probe."""
    if _watching and local_size is not None:
        _watching[-1].mask_windows.add(local_size)


@contextmanager
def watched() -> Iterator[Witness]:
    """Note what the models run inside the block ask of attention."""
    _watching.append(Witness())
    try:
        yield _watching[-1]
    finally:
        _watching.pop()


@dataclass(frozen=True)
class _Scoring:
    """How one layer turns products into weights; `sinks` (H,) are logits that take part in the softmax only."""

    scale: float
    dropout: float = 0.0
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    **asked: Any,
) -> tuple[Tensor, None]:
    """Causal attention inside each document: q (1, H, T, D), k and v (1, G, T, D) -> (1, T, H, D).

    The protocol is transformers': `scaling`, `dropout`, `sliding_window` (tokens a query may look back, itself
    included), `softcap` (limit of the scores), `s_aux` (a sink logit per head), and our `documents`.
    """
    documents: Documents | None = asked.get("documents")
    if _watching:
        _note(_watching[-1], attention_mask, asked)
    how = _Scoring(
        scale=asked["scaling"] if asked.get("scaling") is not None else query.shape[-1] ** -0.5,
        dropout=asked.get("dropout", 0.0),
        window=asked.get("sliding_window"),
        softcap=asked.get("softcap"),
        sinks=asked.get("s_aux"),
    )
    lengths = [query.shape[2]] if documents is None else list(documents.lengths)
    answers = documents.answers if documents is not None and documents.answers else ((),) * len(lengths)
    dtype = query.dtype
    if (
        query.device.type == "cpu"
    ):  # float32 kernels are two to three times faster on short documents than bfloat16 ones
        query, key, value = query.float(), key.float(), value.float()
    triples = zip(query.split(lengths, 2), key.split(lengths, 2), value.split(lengths, 2), strict=True)
    parts = [part for each, own in zip(triples, answers, strict=True) for part in _document(*each, own, how)]
    out = parts[0] if len(parts) == 1 else torch.cat(parts, 2)
    return out.transpose(1, 2).to(dtype).contiguous(), None


def _note(witness: Witness, mask: Tensor | None, asked: dict[str, Any]) -> None:
    """Remember what one layer asked for."""
    witness.calls += 1
    witness.calls_with_documents += asked.get("documents") is not None
    if asked.get("sliding_window") is not None:
        witness.layer_windows.add(asked["sliding_window"])
    if mask is not None:
        witness.unknown.add("a mask of its own")
    witness.unknown |= {
        name for name, value in asked.items() if value is not None and any(part in name for part in _CHANGES_SCORES)
    }


def _document(q: Tensor, k: Tensor, v: Tensor, answers: Sequence[int], how: _Scoring) -> list[Tensor]:
    """One document in parts: its text, or its prompt and then group after group of the answers to it."""
    one = _fused if how.softcap is None and how.sinks is None else _plain
    prompt = q.shape[2] - sum(answers)
    parts = [one(q[:, :, :prompt], k[:, :, :prompt], v[:, :, :prompt], how)]
    start = prompt
    for group in _grouped(answers):
        mine = slice(start, start + sum(group))
        keys, values = (torch.cat([each[:, :, :prompt], each[:, :, mine]], 2) for each in (k, v))
        parts.append(one(q[:, :, mine], keys, values, how, _seen_by_answers(prompt, group, how.window, q.device)))
        start = mine.stop
    return parts


def _grouped(answers: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Answers in groups that go through one call: many short ones together, a long one alone."""
    group: tuple[int, ...] = ()
    for length in answers:
        if group and sum(group) + length > GROUP_TOKENS:
            yield group
            group = ()
        group += (length,)
    if group:
        yield group


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


def _fused(q: Tensor, k: Tensor, v: Tensor, how: _Scoring, mask: Tensor | None = None) -> Tensor:
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


def _plain(q: Tensor, k: Tensor, v: Tensor, how: _Scoring, mask: Tensor | None = None) -> Tensor:
    """One document step by step, for score caps and sinks, which the fused kernels do not have."""
    _, heads, length, width = q.shape
    groups = k.shape[1]
    q = q.reshape(groups, heads // groups, length, width)
    scores = (q @ k[0, :, None].transpose(-1, -2)).float() * how.scale  # (G, H/G, T, keys)
    if how.softcap is not None:
        scores = torch.tanh(scores / how.softcap) * how.softcap
    mask = _seen(length, how.window, q.device) if mask is None else mask
    scores = scores.masked_fill(~mask, float("-inf"))
    if how.sinks is None:
        weights = scores.softmax(-1)
    else:
        sinks = how.sinks.float().view(groups, heads // groups, 1, 1).expand(-1, -1, length, 1)
        weights = torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]
    weights = F.dropout(weights, how.dropout).to(v.dtype)
    return (weights @ v[0, :, None]).reshape(1, heads, length, -1)


def register() -> None:
    """Offer `NAME` to every model of transformers; doing it twice is harmless."""
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, _no_mask)
