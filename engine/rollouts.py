"""Rollouts: groups of answers to one prompt each, what they are worth, and the micro-batch that learns from them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from engine.batches import Drawn, Floats, MicroBatch, positions
from engine.prompts import Prompt
from engine.rewards import Grade
from engine.sampling import Sampled

Scale = Literal["group", "batch", "none"]
ENOUGH = 1e-4  # added to a deviation before it divides


@dataclass(frozen=True, eq=False)
class Answer:
    """A sampled answer as text and as tokens, with its grade and how much better it is than its group."""

    sampled: Sampled
    text: str
    grade: Grade
    advantage: float = 0.0
    reasoning_tokens: int | None = None  # of `sampled`, None where the template knows no reasoning


@dataclass(frozen=True, eq=False)
class Group:
    """The answers to one prompt."""

    prompt: Prompt
    answers: list[Answer]

    @property
    def rewards(self) -> Floats:
        """Reward of each answer; NaN where none of its parts could be had."""
        found = [answer.grade.reward for answer in self.answers]
        return np.array([np.nan if reward is None else reward for reward in found], dtype=np.float32)

    def compared(self, advantages: Sequence[float]) -> "Group":
        """The same answers, each knowing how much better it is than the group."""
        better = zip(self.answers, advantages, strict=True)
        return replace(self, answers=[replace(answer, advantage=one) for answer, one in better])

    @property
    def has_signal(self) -> bool:
        """Whether any answer is better than another."""
        return any(answer.advantage for answer in self.answers)


def advantages(rewards_GA: Floats, scale: Scale) -> Floats:
    """How much better each answer is than its group's mean (groups, answers); 0 where it has no reward.

    Divided by the deviation of the group or of the whole batch, or not at all (Liu et al. 2025: dividing favours
    prompts that are nearly always or nearly never answered).
    """
    there_GA = np.isfinite(rewards_GA)
    counts_G1 = np.maximum(there_GA.sum(1, keepdims=True), 1)
    means_G1 = np.where(there_GA, rewards_GA, 0.0).sum(1, keepdims=True) / counts_G1
    apart_GA = np.where(there_GA, rewards_GA - means_G1, 0.0)
    if scale == "group":
        apart_GA = apart_GA / (np.sqrt((apart_GA**2).sum(1, keepdims=True) / np.maximum(counts_G1 - 1, 1)) + ENOUGH)
    elif scale == "batch":
        deviation = float(np.std(rewards_GA[there_GA], ddof=1)) if there_GA.sum() > 1 else 0.0
        apart_GA = apart_GA / (deviation + ENOUGH)
    return apart_GA.astype(np.float32)


def gather(groups: Sequence[Group], temperature: float, *, mask_truncated: bool) -> MicroBatch:
    """Groups as one flat micro-batch: every prompt once, its answers after it, all tokens that were drawn trained.

    `mask_truncated`: an answer that the limit ended is not learned from.
    """
    ids: list[int] = []
    trained: list[bool] = []
    learned: list[Sampled] = []
    for group in groups:
        ids += group.prompt.ids
        trained += [False] * len(group.prompt.ids)
        for answer in group.answers:
            taken = not (mask_truncated and answer.sampled.truncated)
            ids += answer.sampled.ids
            trained += [taken and drawn for drawn in answer.sampled.drawn]
            learned += [answer.sampled] if taken else []
    answers = [tuple(len(answer.sampled.ids) for answer in group.answers) for group in groups]
    lengths = [len(group.prompt.ids) + sum(own) for group, own in zip(groups, answers, strict=True)]
    sets = [kept for sampled in learned for kept in sampled.kept if kept is not None]
    drawn = Drawn(
        temperature=temperature,
        logprobs_N=np.array([each for sampled in learned for each in sampled.logprobs], dtype=np.float32),
        advantages_A=np.array([answer.advantage for group in groups for answer in group.answers], dtype=np.float32),
        kept=np.concatenate(sets) if sets else None,
        kept_offsets=np.concatenate([[0], np.cumsum([len(each) for each in sets])]).astype(np.int64),
    )
    return MicroBatch(
        ids_T=np.array(ids, dtype=np.int64),
        position_ids_T=positions(lengths, answers),
        trained_T=np.array(trained, dtype=np.bool_),
        lengths=lengths,
        rows=[group.prompt.row for group in groups],
        answers=answers,
        drawn=drawn,
    )


def measured(groups: Sequence[Group]) -> dict[str, float]:
    """What a batch of rollouts looks like, in the names of the field: rewards, lengths, entropy, what was left out."""
    answers = [answer for group in groups for answer in group.answers]
    rewards_GA = np.stack([group.rewards for group in groups])
    lengths = [len(answer.sampled.ids) for answer in answers]
    found = {
        "reward": mean(rewards_GA),
        "reward_std": mean([float(np.nanstd(row)) for row in rewards_GA if np.isfinite(row).any()]),
        "frac_reward_zero_std": mean([float(not group.has_signal) for group in groups]),
        "completions/mean_length": mean(lengths),
        "completions/max_length": float(max(lengths)),
        "completions/clipped_ratio": mean([float(answer.sampled.truncated) for answer in answers]),
        "entropy": mean([each for answer in answers for each in answer.sampled.entropy]),
        "kept_mass": mean(np.exp([each for answer in answers for each in answer.sampled.mass])),
    }
    thoughts = [answer.reasoning_tokens for answer in answers if answer.reasoning_tokens is not None]
    if thoughts:
        found["completions/mean_reasoning_length"] = mean(thoughts)
        found["completions/mean_answer_length"] = mean(lengths) - mean(thoughts)
    for name in answers[0].grade.parts:
        parts = [answer.grade.parts[name] for answer in answers]
        found[f"rewards/{name.partition(':')[0]}"] = mean([part for part in parts if part is not None])
    apart = told_apart([answer.sampled for answer in answers])
    found |= {"sampling/logp_difference": apart} if np.isfinite(apart) else {}
    missing = sum(answer.grade.reward is None for answer in answers)
    return found | ({"rewards/missing": missing / len(answers)} if missing else {})


def told_apart(answers: Sequence[Sampled]) -> float:
    """Mean distance of what a server told of its draws from what the engine thinks, nats; NaN where none drew."""
    return mean([abs(mine - told) for one in answers for mine, told in zip(one.logprobs, one.told, strict=False)])


def mean(values: Any) -> float:
    """The mean of what is there; NaN when nothing is."""
    there = np.asarray(values, dtype=np.float64)
    there = there[np.isfinite(there)]
    return float(there.mean()) if there.size else float("nan")
