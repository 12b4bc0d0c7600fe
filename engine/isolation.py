"""Whether a model keeps packed documents apart and how its head ends: measured on a few tokens, not guessed by name."""

from typing import Any

import torch
from torch import Tensor, nn

from engine import attention
from engine.batches import positions, texts
from engine.failure import Failure
from engine.layout.shard import inside

PROBE_LENGTHS = (7, 12)
PROBE_ANSWERS = ((), (3, 4))  # the second document ends in two answers to its first five tokens


def _tolerance(dtype: torch.dtype) -> float:
    """Largest relative difference that rounding explains; a leak between documents is some tens of percent."""
    return 0.08 if dtype == torch.bfloat16 else 1e-3


def _probe_ids(vocabulary: int, device: torch.device) -> Tensor:
    """A few spread token ids, (1, T)."""
    count = sum(PROBE_LENGTHS)
    return (torch.arange(1, count + 1, device=device) * 7919 % max(2, vocabulary - 1)).unsqueeze(0)


@torch.no_grad()
def why_not_packed(model: Any, trunk: nn.Module) -> str:
    """Why this model cannot run documents in one flat sequence with our attention; empty if it can."""
    native = model.config._attn_implementation
    if not model._can_set_attn_implementation():
        return "its attention cannot be replaced"
    model.set_attn_implementation(attention.NAME)
    ids = _probe_ids(_vocabulary(model), model.device)
    try:
        with attention.watched() as witness:
            packed = inside(model, lambda: _packed(trunk, ids))
    except (TypeError, ValueError, RuntimeError) as error:
        return f"its attention cannot be replaced ({type(error).__name__}: {error})"
    finally:
        model.set_attn_implementation(native)
    alone = inside(model, lambda: _one_by_one(trunk, ids))
    difference = float((packed - alone).float().norm() / alone.float().norm())
    if witness.complaint:
        return witness.complaint
    return "" if difference <= _tolerance(packed.dtype) else f"packed documents see each other ({difference:.2g})"


def _packed(trunk: nn.Module, ids: Tensor) -> Tensor:
    positions_1T = torch.from_numpy(positions(PROBE_LENGTHS, PROBE_ANSWERS)).to(ids.device)[None]
    documents = attention.Documents(PROBE_LENGTHS, PROBE_ANSWERS)
    out = trunk(input_ids=ids, position_ids=positions_1T, documents=documents, use_cache=False)
    hidden: Tensor = out.last_hidden_state
    return hidden


def _one_by_one(trunk: nn.Module, ids: Tensor) -> Tensor:
    return torch.cat([_alone(trunk, ids[:, at])[:, -new:] for at, new in texts(PROBE_LENGTHS, PROBE_ANSWERS)], 1)


def _alone(trunk: nn.Module, ids: Tensor) -> Tensor:
    positions_1T = torch.arange(ids.shape[1], device=ids.device).unsqueeze(0)
    hidden: Tensor = trunk(input_ids=ids, position_ids=positions_1T, use_cache=False).last_hidden_state
    return hidden


def _vocabulary(model: Any) -> int:
    return int(model.get_input_embeddings().weight.shape[0])


@torch.no_grad()
def check_head(model: Any, trunk: nn.Module, head: nn.Linear) -> None:
    """Compare our attached head with the model's own logits; Failure when the model ends in a way we do not know."""
    ids = _probe_ids(_vocabulary(model), model.device)[:, : PROBE_LENGTHS[0]]
    theirs = model(input_ids=ids, use_cache=False).logits.float().log_softmax(-1)
    targets_N = ids[0].roll(-1)
    ours = inside(model, lambda: head(_alone(trunk, ids)[0], targets_N=targets_N))
    expected = theirs[0].gather(1, targets_N[:, None]).squeeze(1)
    difference = float(((ours - expected).abs() / expected.abs().clamp_min(1.0)).max())
    if not difference <= _tolerance(head.weight.dtype):
        raise Failure(
            "head_not_understood",
            f"{type(model).__name__} computes its output in a way Atelier does not know yet "
            f"(log-probabilities differ by {difference:.2g}).",
            ["Choose another base model.", "Report the model's name so that it can be added."],
        )
