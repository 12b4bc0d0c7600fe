"""Chats to measure with: real sentences, lengths spread as in real data, the same on every machine."""

import json
from pathlib import Path

import numpy as np

from bench.versus import STARTER_ROWS

TOKENS_PER_WORD = 1.4  # of the starter model on these sentences; only to aim at a number of tokens


def write_chats(path: Path, tokens: int, longest: int, *, median: int = 200, seed: int = 0) -> int:
    """Write chats of one question and one answer, about `tokens` tokens in all; returns how many chats.

    Their lengths are log-normal around `median` tokens (sigma 0.8) and at most nine tenths of `longest`.
    """
    random = np.random.default_rng(seed)
    pairs = [json.loads(line)["messages"] for line in STARTER_ROWS.read_text(encoding="utf-8").splitlines()]
    rows = written = 0
    with path.open("w", encoding="utf-8") as file:
        while written < tokens:
            length = min(int(random.lognormal(np.log(median), 0.8)) + 16, int(longest * 0.9))
            question, answer = _chat(random, pairs, length)
            chat = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
            file.write(json.dumps({"messages": chat}) + "\n")
            rows += 1
            written += length
    return rows


def _chat(random: np.random.Generator, pairs: list[list[dict[str, str]]], length: int) -> tuple[str, str]:
    """A question, and answers one after another until about `length` tokens are there."""
    question: str = pairs[random.integers(len(pairs))][0]["content"]
    words = max(4, int(length / TOKENS_PER_WORD) - len(question.split()))
    answer: list[str] = []
    while len(answer) < words:
        answer += pairs[random.integers(len(pairs))][1]["content"].split(" ")
    return question, " ".join(answer[:words])
