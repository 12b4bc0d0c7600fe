"""What sampling takes on a device: the keys and values of all answers, and what one more token of each needs."""

from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from engine.exam import AT_ONCE
from engine.method import GRPO
from engine.methods.grpo import EVAL_ANSWERS
from engine.plan.activations import Live
from engine.plan.pretence import META, Pretence
from engine.plan.rows import Rows
from engine.plan.twin import Twin
from engine.spec import RunSpec

CHOICE = 24  # bytes for an answer and a word while a token is drawn: two float32 numbers, and two of float64 summed up


@dataclass(frozen=True)
class Sampling:
    """Bytes on one device when the last token is sampled.

    `cache`: keys and values of every prompt and answer; `working`: on top of them while a token of each is computed;
    `choice`: while it is drawn.
    """

    cache: int
    working: int
    choice: int


def at_once(spec: RunSpec, rows: Rows | None, batches: int) -> int:
    """Answers that grow together on a device, of a step or of an evaluation; 0 where the method samples none."""
    if not isinstance(spec.method, GRPO):
        return 0
    count, training = spec.method.num_generations, spec.training
    asked = training.per_device_train_batch_size * training.gradient_accumulation_steps
    held = round(spec.data.eval_fraction * rows.usable) if rows else AT_ONCE
    return max(_together(asked, count, 1), _together(held, EVAL_ANSWERS, batches))


def _together(prompts: int, count: int, batches: int) -> int:
    """As `Trainer.spread` portions them."""
    return count * max(min(prompts, 1), min(AT_ONCE // count, -(-prompts // batches)))


@torch.no_grad()
def measure(twin: Twin, answers: int, tokens: int, *, kind: str) -> Sampling:
    """Sampling as the engine does it: so many texts of so many tokens, the last of which is about to be computed."""
    model = twin.model.eval()
    trained_with = model.config._attn_implementation
    model.set_attn_implementation(twin.native)
    live = Live(model)
    try:
        with ExitStack() as stack:
            stack.enter_context(Pretence(kind))
            stack.enter_context(live)
            ids_1T = torch.zeros(1, tokens - 1, dtype=torch.long, device=META)
            cache = model(input_ids=ids_1T, use_cache=True, logits_to_keep=1).past_key_values
            cache.batch_repeat_interleave(answers)
            live.peak = before = live.now
            ids_B1 = torch.zeros(answers, 1, dtype=torch.long, device=META)
            windows = "sliding_attention" in (getattr(model.config.get_text_config(), "layer_types", None) or ())
            shape = (answers, tokens) if windows else (answers, 1, 1, tokens)  # whole: prompts differ in length
            seen = torch.ones(shape, dtype=torch.bool, device=META)
            model(input_ids=ids_B1, attention_mask=seen, position_ids=ids_B1, cache=cache, use_cache=True)
            working = live.peak - before
    finally:
        model.set_attn_implementation(trained_with)
    kept = [sum(one.nbytes for one in tree_leaves(vars(layer)) if isinstance(one, Tensor)) for layer in cache.layers]
    times = [group.layers for group in twin.groups] or [1] * len(kept)
    return Sampling(
        cache=sum(size * layers for size, layers in zip(kept, times, strict=True)),
        working=working,
        choice=answers * twin.head.out_features * CHOICE,
    )
