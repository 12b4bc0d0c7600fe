"""Attention for flat sequences of isolated documents, for unmodified models: transformers' AttentionInterface.

A forward pass carries one flat sequence (batch 1) of documents and a `Documents` keyword that models hand down to every
attention layer. Each document attends to itself only. A model whose attention cannot be replaced is run one document
at a time instead; which of the two it is, is not guessed from names but measured (`engine.isolation`).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from engine import attention_kernels
from engine.attention_kernels import Documents as Documents
from engine.attention_kernels import Scoring

NAME = "atelier_documents"
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


_watching: list[Witness] = []


def no_mask(*_: Any, local_size: int | None = None, **__: Any) -> None:
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
    how = scoring(query, asked)
    return attention_kernels.attend(query, key, value, documents or Documents((query.shape[2],)), how), None


def scoring(query: Tensor, asked: Mapping[str, Any]) -> Scoring:
    """How a layer turns products into weights, by what it asked for."""
    return Scoring(
        scale=asked["scaling"] if asked.get("scaling") is not None else query.shape[-1] ** -0.5,
        dropout=asked.get("dropout", 0.0),
        window=asked.get("sliding_window"),
        softcap=asked.get("softcap"),
        sinks=asked.get("s_aux"),
    )


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


def register() -> None:
    """Offer `NAME` to every model of transformers; doing it twice is harmless."""
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, no_mask)
