"""Rewards: what an answer is worth, by pure functions with names. No torch."""

from engine.rewards.case import Case
from engine.rewards.grader import Grade, Grader, known, unknown

__all__ = ["Case", "Grade", "Grader", "known", "unknown"]
