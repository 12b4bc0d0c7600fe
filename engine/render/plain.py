"""Rows without a chat template: plain text, and a prompt with its completion."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.failure import Failure
from engine.render.sample import Sample, Span
from engine.rows.model import Message, Row

PLAIN_SHAPES = ("prompt_completion", "instruction", "question_answer")
EXACT = ("prompt_completion", "prompt")  # the prompt is the column as it is


def plain_text(tokenizer: Any, text: str, end_id: int) -> Sample:
    """All of `text` is trained (but the first token, which nothing predicts), and that it ends there."""
    ids = begun(tokenizer, text, end_id)
    ids = np.append(ids, np.int32(end_id)).astype(np.int32)
    trained = np.ones(len(ids), dtype=np.bool_)
    trained[0] = False
    spans = [Span("answer", "assistant", 0, 0, len(ids) - 1), Span("stop", "assistant", 0, len(ids) - 1, len(ids))]
    return Sample(ids, trained, [span for span in spans if span.end > span.start])


def joined(tokenizer: Any, row: Row, end_id: int) -> Sample:
    """Prompt and completion one after the other; only the completion is trained. Failure for real conversations."""
    if row.shape not in PLAIN_SHAPES or len(row.messages) != 2 or not row.messages[0].get("content"):
        message = (
            f"The model has no chat template, so the conversation in row {row.number} has no form to be trained in."
        )
        advice = [
            "Choose an instruct or chat version of the model.",
            "Or give the rows as “text”, or as “prompt” and “completion”.",
        ]
        raise Failure("no_chat_template", message, advice)
    prompt = begun(tokenizer, plain_prompt(row.messages[:1], row.shape), end_id)
    written = tokenizer(str(row.messages[1].get("content") or ""), add_special_tokens=False, verbose=False)
    completion = np.asarray([*written["input_ids"], end_id], dtype=np.int32)
    ids = np.concatenate([prompt, completion])
    trained = np.arange(len(ids)) >= max(1, len(prompt))
    borders = [0, len(prompt), len(ids) - 1, len(ids)]
    spans = [
        Span("prompt", "user", 1, borders[0], borders[1]),
        Span("answer", "assistant", 1, borders[1], borders[2]),
        Span("stop", "assistant", 1, borders[2], borders[3]),
    ]
    return Sample(ids, trained, [span for span in spans if span.end > span.start])


def asked(tokenizer: Any, row: Row, end_id: int) -> Sample:
    """A prompt alone, nothing of it trained."""
    ids = begun(tokenizer, plain_prompt(row.prompt, row.shape), end_id)
    return Sample(ids, np.zeros(len(ids), np.bool_), [Span("prompt", "user", len(row.prompt), 0, len(ids))])


def plain_prompt(messages: list[Message], shape: str) -> str:
    """The text before the completion: exactly the prompt column; a question or instruction gets a line of its own."""
    text = "\n".join(str(message.get("content") or "") for message in messages)
    return text if shape in EXACT else f"{text}\n"


def begun(tokenizer: Any, text: str, end_id: int) -> NDArray[np.int32]:
    """Ids of text that begins a sequence, as the tokenizer begins one (with its BOS, if any) but without an end."""
    ids = np.asarray(tokenizer(text, verbose=False)["input_ids"], dtype=np.int32)
    added = np.asarray(tokenizer("", verbose=False)["input_ids"], dtype=np.int32)
    return ids[:-1] if len(added) and added[-1] == end_id and len(ids) and ids[-1] == end_id else ids
