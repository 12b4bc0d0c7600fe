"""Answers drawn from the weights being trained: a group shares its prompt, a token knows what it was drawn among.

Every token carries its log-probability under the distribution that it really came from: temperature first, then the
set that top-k, top-p and min-p keep, normalised over that set. The set itself is carried too, so that training can
normalise over the very same tokens instead of guessing them again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.build import Built
from engine.failure import Failure
from engine.generate import generating, left_padded

CANDIDATES = 1024  # likeliest tokens among which a nucleus is looked for before the whole vocabulary is sorted
FEWER = 0.75  # share of answers still growing below which the finished ones leave the batch


@dataclass(frozen=True)
class Thinking:
    """A limit on reasoning: a thought that is open after `budget` tokens is ended by the tokens `closes`.

    `is_open` tells of a prompt and what was written after it.
    """

    budget: int
    closes: tuple[int, ...]
    is_open: Callable[[Sequence[int], Sequence[int]], bool]

    def end(self, prompt: Sequence[int], answer: "Sampled") -> None:
        """Have an open thought closed from here on, going on from what is written of the closing already."""
        if not answer.truncated or not self.is_open(prompt, answer.ids):
            return
        at, most = len(answer.ids), len(self.closes)
        there = max(count for count in range(most) if self.closes[:count] == tuple(answer.ids[at - count :][:count]))
        answer.forced = range(at, at + most - there)


@dataclass(frozen=True)
class Draw:
    """How tokens are drawn; `top_k` 0, `top_p` 1 and `min_p` 0 keep every token."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    thinking: Thinking | None = None

    @property
    def truncates(self) -> bool:
        """Whether any token may be left out."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0


@dataclass(eq=False)
class Sampled:
    """One answer: `ids` with the stop token that ended it, and per drawn token what it was drawn under.

    `logprobs`: over the kept set, nats; `mass`: log of the kept set's probability; `entropy`: of what was drawn from;
    `kept`: the kept ids, None where nothing was left out. `truncated`: it reached the limit without a stop token.
    `told`: log-probabilities as the server tells them that drew the tokens, where one did; `entropy` is then unknown.
    `forced`: the places in `ids` of tokens that were not drawn but put there, to close a thought; nothing is learned
    from them.
    """

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    mass: list[float] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)
    kept: list[NDArray[np.int32] | None] = field(default_factory=list)
    told: list[float] = field(default_factory=list)
    truncated: bool = True
    forced: range = range(0)

    @property
    def drawn(self) -> list[bool]:
        """Of each token whether it was drawn."""
        return [at not in self.forced for at in range(len(self.ids))]


@torch.no_grad()
def sample(
    built: Built,
    prompts: Sequence[Sequence[int]],
    seeds: Sequence[Sequence[int]],
    draw: Draw,
    stop_ids: Sequence[int],
    max_new_tokens: int,
) -> list[list[Sampled]]:
    """One group of answers per prompt, one answer per seed of the prompt's row in `seeds` (rows of equal length).

    A prompt is computed once for its group. An answer depends on its seed and the weights only, not on what else is in
    the batch. On several processes all of them call this, each with prompts of its own, and end together. Raises
    Failure for a model whose cache cannot be shared.
    """
    if not prompts:
        return []
    count = len(seeds[0])
    answers = [Sampled() for group in seeds for _ in group]
    noise_BT = _noise([seed for group in seeds for seed in group], max_new_tokens).to(built.device)
    with generating(built):
        state = _prefill(built, prompts, count, stop_ids[0])
        for step in range(max_new_tokens):
            if draw.thinking and step == draw.thinking.budget:
                for at, answer in enumerate(answers):
                    draw.thinking.end(prompts[at // count], answer)
            tokens_B = _choose(state, answers, noise_BT[:, step], draw, stop_ids)
            growing = [answers[row].truncated for row in state.rows]
            if step + 1 == max_new_tokens or not built.mesh.anywhere(any(growing)):
                break
            state.advance(built.model, state.without_finished(tokens_B, growing))
    return [answers[first : first + count] for first in range(0, len(answers), count)]


def _noise(seeds: Sequence[int], length: int) -> Tensor:
    """Uniform numbers (B, T), each row from its own seed alone."""
    return torch.stack([torch.rand(length, generator=torch.Generator().manual_seed(seed)) for seed in seeds])


class _State:
    """The answers still in the batch (`rows`: their places), their cache, and the logits of their next token."""

    def __init__(self, cache: Any, mask_BT: Tensor, logits_BV: Tensor) -> None:
        self.cache, self.mask_BT, self.logits_BV = cache, mask_BT, logits_BV
        self.rows = list(range(len(logits_BV)))

    def without_finished(self, tokens_B: Tensor, growing: Sequence[bool]) -> Tensor:
        """Let the finished answers leave the batch once they are many; the tokens of those that stay.

        Where all have finished they stay, so that this process keeps in step with others.
        """
        if sum(growing) > FEWER * len(growing) or not any(growing):
            return tokens_B
        stay = [at for at, grows in enumerate(growing) if grows]
        at_B = torch.tensor(stay, device=tokens_B.device)
        self.rows = [self.rows[at] for at in stay]
        self.cache.batch_select_indices(at_B)
        self.mask_BT = self.mask_BT[at_B]
        return tokens_B[at_B]

    def advance(self, model: Any, tokens_B: Tensor) -> None:
        """One token further."""
        self.mask_BT = torch.cat([self.mask_BT, self.mask_BT.new_ones(len(tokens_B), 1)], 1)
        self.logits_BV = model(
            input_ids=tokens_B[:, None],
            attention_mask=self.mask_BT,
            position_ids=self.mask_BT.sum(1, keepdim=True) - 1,
            cache=self.cache,
            use_cache=True,
        ).logits[:, -1]


def _prefill(built: Built, prompts: Sequence[Sequence[int]], count: int, pad: int) -> _State:
    """Every prompt once, then as many copies of its cache as answers are wanted."""
    ids_BT, mask_BT = left_padded(prompts, pad, built.device)
    positions_BT = (mask_BT.cumsum(1) - 1).clamp(min=0)
    out = built.model(
        input_ids=ids_BT, attention_mask=mask_BT, position_ids=positions_BT, use_cache=True, logits_to_keep=1
    )
    cache: Any = getattr(out, "past_key_values", None)
    if not hasattr(cache, "batch_repeat_interleave"):
        name = type(built.model).__name__
        message = f"Answers cannot be sampled from {name} yet: it keeps its memory of a text in a way of its own."
        raise Failure("cannot_sample", message, ["Choose another base model, or another method."])
    cache.batch_repeat_interleave(count)
    return _State(cache, mask_BT.repeat_interleave(count, 0), out.logits[:, -1].repeat_interleave(count, 0))


def _choose(state: _State, answers: Sequence[Sampled], noise_B: Tensor, draw: Draw, stop_ids: Sequence[int]) -> Tensor:
    """Draw the next token of every answer in the batch, note it, and return it (B,)."""
    rows = torch.tensor(state.rows, device=noise_B.device)
    scores_BV = (state.logits_BV.float() / draw.temperature).log_softmax(-1)
    keep_BV = kept(scores_BV, draw)
    mass_B = torch.zeros(len(rows), device=scores_BV.device)
    if keep_BV is not None:
        scores_BV = scores_BV.masked_fill(~keep_BV, float("-inf"))
        mass_B = scores_BV.logsumexp(-1)
        scores_BV = scores_BV - mass_B[:, None]
    chances_BV = scores_BV.exp()
    steps_BV = chances_BV.double().cumsum(-1)
    tokens_B = torch.searchsorted(steps_BV, noise_B[rows, None].double() * steps_BV[:, -1:], right=True).squeeze(1)
    tokens_B = tokens_B.clamp(max=scores_BV.shape[1] - 1)
    found = (
        tokens_B.tolist(),
        scores_BV.gather(1, tokens_B[:, None]).squeeze(1).tolist(),
        mass_B.tolist(),
        torch.special.entr(chances_BV).sum(-1).tolist(),
    )
    for at, (token, logprob, mass, entropy) in enumerate(zip(*found, strict=True)):
        answer = answers[state.rows[at]]
        if not answer.truncated:
            continue  # it has ended and waits in the batch for the others
        if draw.thinking and len(answer.ids) in answer.forced:
            tokens_B[at] = forced = draw.thinking.closes[len(answer.ids) - answer.forced.stop]
            answer.ids.append(forced)
            continue
        answer.ids.append(token)
        answer.logprobs.append(logprob)
        answer.mass.append(mass)
        answer.entropy.append(entropy)
        answer.kept.append(None if keep_BV is None else keep_BV[at].nonzero().squeeze(1).int().cpu().numpy())
        answer.truncated = token not in stop_ids
    return tokens_B


def kept(scores_BV: Tensor, draw: Draw) -> Tensor | None:
    """Which tokens are kept (B, V), given log-probabilities at the temperature; None when all are.

    top-k, then top-p of what it leaves, then min-p, as transformers applies them; tokens as likely as the k-th stay.
    """
    if not draw.truncates:
        return None
    keep_BV = torch.ones_like(scores_BV, dtype=torch.bool)
    if draw.top_k:
        keep_BV = scores_BV >= scores_BV.topk(min(draw.top_k, scores_BV.shape[1])).values[:, -1:]
    if draw.top_p < 1.0:
        keep_BV &= _nucleus(scores_BV.masked_fill(~keep_BV, float("-inf")).log_softmax(-1).exp(), draw.top_p)
    if draw.min_p:
        keep_BV &= scores_BV >= scores_BV.max(-1, keepdim=True).values + float(np.log(draw.min_p))
    return keep_BV


def _nucleus(chances_BV: Tensor, top_p: float) -> Tensor:
    """The fewest likeliest tokens whose chances reach `top_p`, as a mask (B, V)."""
    count = min(CANDIDATES, chances_BV.shape[1])
    top_BK, at_BK = chances_BV.topk(count)
    if bool((top_BK.sum(-1) < top_p).any()):
        top_BK, at_BK = chances_BV.sort(-1, descending=True)
    before_BK = top_BK.cumsum(-1) - top_BK
    return torch.zeros_like(chances_BV, dtype=torch.bool).scatter_(1, at_BK, before_BK < top_p)
