"""Answers from the model as it stands: greedy, bounded, several prompts at once."""

from collections.abc import Sequence

import torch
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
    longest = max(len(prompt) for prompt in prompts)
    ids_BT = torch.tensor([[pad] * (longest - len(prompt)) + list(prompt) for prompt in prompts], device=built.device)
    mask_BT = torch.tensor(
        [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=built.device
    )
    config = GenerationConfig(
        do_sample=False, max_new_tokens=max_new_tokens, eos_token_id=list(stop_ids), pad_token_id=pad
    )
    trained_with = model.config._attn_implementation
    was_training = model.training
    model.eval()
    model.set_attn_implementation(built.native_attention)
    try:
        out_BT = model.generate(input_ids=ids_BT, attention_mask=mask_BT, generation_config=config)
    finally:
        model.set_attn_implementation(trained_with)
        model.train(was_training)
    return [_until_stop(row, stop_ids) for row in out_BT[:, longest:].tolist()]


def _until_stop(ids: list[int], stop_ids: Sequence[int]) -> list[int]:
    """The ids before the first stop token."""
    return next((ids[:at] for at, token in enumerate(ids) if token in stop_ids), ids)
