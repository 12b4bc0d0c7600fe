"""Facts about a model folder, from its config and the real model class on the meta device: no weights are read."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig
from transformers.utils import logging as transformers_logging

from engine.auto import class_of

WEIGHTS = ("*.safetensors", "pytorch_model*.bin")


def describe(folder: Path) -> dict[str, Any]:
    """Architecture, sizes and whether it can be trained; `why_not` is a sentence for a person, empty if it can."""
    transformers_logging.set_verbosity_error()
    facts: dict[str, Any] = {"trainable": False, "why_not": _why_not(folder)}
    if facts["why_not"]:
        return facts
    try:
        config = AutoConfig.from_pretrained(folder)
        with torch.device("meta"):
            model = class_of(config.model_type).from_config(config)
    except (OSError, ValueError, KeyError, ImportError, AttributeError, TypeError) as error:
        return facts | {"why_not": f"transformers cannot build this model: {str(error).splitlines()[0][:300]}"}
    text = config.get_text_config()
    head = model.get_output_embeddings()
    is_linear = isinstance(head, nn.Linear)
    return facts | {
        "architecture": type(model).__name__,
        "model_type": config.model_type,
        "parameters": sum(value.numel() for value in model.parameters()),
        "context_length": getattr(text, "max_position_embeddings", None),
        "dtype": str(config.dtype or "float32").removeprefix("torch."),
        "hidden_size": getattr(text, "hidden_size", None),
        "layers": getattr(text, "num_hidden_layers", None),
        "vocabulary": getattr(text, "vocab_size", None),
        "tied_embeddings": bool(getattr(text, "tie_word_embeddings", False)),
        "has_chat_template": has_chat_template(folder),
        "bytes": sum(path.stat().st_size for pattern in WEIGHTS for path in folder.glob(pattern)),
        "trainable": is_linear,
        "why_not": "" if is_linear else "It has no language-model head to train with.",
    }


def _why_not(folder: Path) -> str:
    """What is missing from the folder before anything is loaded; empty if nothing."""
    if not folder.is_dir():
        return "There is no such folder."
    if not (folder / "config.json").is_file():
        if (folder / "adapter_config.json").is_file():
            return "This folder holds an adapter, not a model. Choose its base model."
        if any(folder.glob("*.gguf")):
            return "GGUF files cannot be trained. Use the original safetensors model."
        return "It has no config.json, so it is not a model folder."
    if not any(path for pattern in WEIGHTS for path in folder.glob(pattern)):
        return "It has a config.json but no weights (*.safetensors)."
    return ""


def has_chat_template(folder: Path) -> bool:
    """Whether the tokenizer brings a chat template, in any of the places where it may be."""
    if (folder / "chat_template.jinja").is_file() or (folder / "chat_template.json").is_file():
        return True
    config = folder / "tokenizer_config.json"
    return config.is_file() and bool(json.loads(config.read_text(encoding="utf-8")).get("chat_template"))


def main(folder: Path) -> int:
    """Print the facts as JSON; 0 also for a model that cannot be trained: that is an answer."""
    print(json.dumps(describe(folder)))  # noqa: T201
    return 0
