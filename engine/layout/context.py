"""Context parallelism with packing: each process computes a stretch of every sequence, and documents stay isolated.

Around each attention layer the processes of a team swap (Ulysses): from all heads of one stretch to some heads of the
whole sequence, and back. Between the swaps attention is the one of a single device, borders of documents, windows and
sinks included. Where there are fewer key-value heads than processes, as many neighbours swap as there are heads for;
each then has some heads of a longer stretch, and keys and values go round a ring of those that have the same heads.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from engine import attention
from engine.batches import Bools, Ints, MicroBatch
from engine.layout.exchange import swapped
from engine.layout.mesh import ONLY_THIS, Group
from engine.layout.ring import attend as ring_attention

NAME = "atelier_documents_split"


class _Team:
    """The team that attention layers swap with; one per process, since a process trains one model."""

    splits: Mapping[int, tuple[Group, Group]] = {1: (ONLY_THIS, ONLY_THIS)}


def register(splits: Mapping[int, tuple[Group, Group]]) -> None:
    """Offer `NAME` to every model of transformers, for a team that can be split like this (`Mesh.splits`)."""
    _Team.splits = splits
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, attention.no_mask)


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, **asked: Any
) -> tuple[Tensor, None]:
    """`attention.attend` for a stretch: q (1, H, t, D), k and v (1, G, t, D) -> (1, t, H, D)."""
    swap, ring = _Team.splits[math.gcd(max(_Team.splits), key.shape[1])]
    query, key, value = (swapped(heads, 1, 2, swap) for heads in (query, key, value))
    if asked.get("s_aux") is not None:
        asked["s_aux"] = asked["s_aux"].chunk(swap.size)[swap.index]
    if ring.size == 1:
        out, _ = attention.attend(module, query, key, value, mask, **asked)
    else:
        out = ring_attention(query, key, value, asked["documents"], attention.scoring(query, asked), ring)
    return swapped(out, 1, 2, swap), None


@dataclass(frozen=True)
class Stretch:
    """The part of a micro-batch that this process computes.

    `batch` is filled up to divide evenly, `here` the part's place in it. `sources_n`: its tokens that predict, counted
    from the part's start; `targets_n`: what they predict; `mine_N`: which of the batch's targets these are. `counts`:
    how many predict in each process's part, and `places_N`: where among all of them each of the batch's targets is.
    """

    batch: MicroBatch
    here: slice
    sources_n: Ints
    targets_n: Ints
    mine_N: Bools
    counts: tuple[int, ...]
    places_N: Ints

    @classmethod
    def of(cls, batch: MicroBatch, group: Group) -> "Stretch":
        """The part of this process, `group.size` of which make the batch."""
        lacking = -batch.tokens % group.size
        batch = batch.filled([lacking] if lacking else [])
        length = batch.tokens // group.size
        start = group.index * length
        owners_N = batch.sources_N // length
        mine_N = owners_N == group.index
        return cls(
            batch=batch,
            here=slice(start, start + length),
            sources_n=batch.sources_N[mine_N] - start,
            targets_n=batch.ids_T[batch.trained_T][mine_N],
            mine_N=mine_N,
            counts=tuple(np.bincount(owners_N, minlength=group.size).tolist()),
            places_N=np.argsort(np.argsort(owners_N, kind="stable"), kind="stable"),
        )
