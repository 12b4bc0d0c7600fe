"""A model folder's tokenizer and stop tokens, without its weights and without torch."""

import json
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer
from transformers.utils import logging as transformers_logging

from engine.failure import Failure

ADVICE = ["Check the model on the Models page, or choose another one."]


def load(folder: Path) -> tuple[Any, list[int]]:
    """(tokenizer, ids of the tokens that end an answer: the generation config's and the tokenizer's own).

    Raises Failure when the folder has no tokenizer, or names no such token.
    """
    transformers_logging.set_verbosity_error()
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError, KeyError) as error:
        message = f"The tokenizer of {folder.name} could not be loaded: {error}"
        raise Failure("tokenizer_unreadable", message, ADVICE) from error
    ids = _eos(folder / "generation_config.json")
    if ids is None:
        ids = _eos(folder / "config.json")
    return tokenizer, ends_of(tokenizer, ids, folder.name)


def ends_of(tokenizer: Any, ids: int | list[int] | None, model: str) -> list[int]:
    """The ids that end an answer: those the model's config names, and the tokenizer's own. Raises Failure if none."""
    found = dict.fromkeys([ids] if isinstance(ids, int) else ids or [])
    if tokenizer.eos_token_id is not None:
        found[int(tokenizer.eos_token_id)] = None
    if not found:
        raise Failure("no_stop_token", f"{model} names no token that ends an answer.", ADVICE)
    return list(found)


def _eos(path: Path) -> int | list[int] | None:
    """`eos_token_id` of a config file; None without the file or the key."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    value = found.get("eos_token_id", found.get("text_config", {}).get("eos_token_id"))
    return value if isinstance(value, int | list) else None
