"""Answers from the model as it stands: greedy, bounded, several prompts at once."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import GenerationConfig

from engine.build import Built


@torch.no_grad()
def greedy(
    built: Built, prompts: Sequence[Sequence[int]], stop_ids: Sequence[int], max_new_tokens: int
) -> list[list[int]]:
    """The most likely continuation of each prompt (token ids), without its stop token; at most `max_new_tokens` long.

    Runs on the model's native attention with left padding, so that every family generates the way transformers does.
    """
    if not prompts:
        return []
    model, pad = built.model, stop_ids[0]
    ids_BT, mask_BT = left_padded(prompts, pad, built.device)
    longest = ids_BT.shape[1]
    config = GenerationConfig(
        do_sample=False, max_new_tokens=max_new_tokens, eos_token_id=list(stop_ids), pad_token_id=pad
    )
    with generating(built):
        out_BT = model.generate(input_ids=ids_BT, attention_mask=mask_BT, generation_config=config)
    return [_until_stop(row, stop_ids) for row in out_BT[:, longest:].tolist()]


@contextmanager
def generating(built: Built) -> Iterator[None]:
    """The model as it generates: evaluating, on its native attention."""
    model = built.model
    trained_with, was_training = model.config._attn_implementation, model.training
    model.eval()
    model.set_attn_implementation(built.native_attention)
    try:
        yield
    finally:
        model.set_attn_implementation(trained_with)
        model.train(was_training)


def left_padded(prompts: Sequence[Sequence[int]], pad: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Prompts of any length as one batch that ends together: ids and mask, both (B, T)."""
    longest = max(len(prompt) for prompt in prompts)
    ids = [[pad] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
    mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


def _until_stop(ids: list[int], stop_ids: Sequence[int]) -> list[int]:
    """The ids before the first stop token."""
    return next((ids[:at] for at, token in enumerate(ids) if token in stop_ids), ids)
