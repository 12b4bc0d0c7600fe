"""Tiny random twins of model families: small enough for any machine, with every part that makes a family itself."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

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
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
SHARED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_shared_experts": 1}
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8}
LATENT_ALL = {
    **LATENT,
    "head_dim": 4,
    "num_key_value_heads": 4,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
LINEAR = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    "qwen3": {},
    "mistral": {"sliding_window": 5},
    "gemma3_text": {**WINDOWS, "query_pre_attn_scalar": 8},
    "gpt_oss": {**WINDOWS, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {**EXPERTS},
    "deepseek_v3": {**SHARED, **LATENT_ALL},
    "glm4_moe": {**SHARED, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
    "mistral_large4": {
        **SHARED,
        **LATENT,
        **{"head_dim": 4, "num_key_value_heads": 4, "index_n_heads": 16, "index_head_dim": 8, "index_topk": 6},
    },
    "qwen3_5_text": {**LINEAR},
    "qwen3_5_moe_text": {**LINEAR, **EXPERTS, "shared_expert_intermediate_size": 16},
}


ROUTED = {
    "gpt_oss",
    "qwen3_moe",
    "deepseek_v3",
    "glm4_moe",
    "mistral_large4",
    "qwen3_5_moe_text",
}  # families with routed experts
LIFTED = {"gemma3_text", "deepseek_v3", "glm4_moe", "mistral_large4"}  # whose float32 parts add up over devices
ALONE = {"qwen3_5_text", "qwen3_5_moe_text", "mistral_large4"}  # whose documents run one by one


VISION = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 32,
}
NESTED = {"mistral_large4": {"vision_config": VISION}}  # families whose text model is a part of another


def make_twin(
    family: str, folder: Path, *, dtype: torch.dtype = torch.float64, own: dict[str, Any] | None = None
) -> Path:
    """A random two-layer model of a family, saved as an ordinary model folder without a tokenizer.

    `own`: its part of the config, for a family that is not listed here.
    """
    text = {**SMALL, **(FAMILIES[family] if own is None else own)}
    whole = {"text_config": text, **NESTED[family]} if family in NESTED else text
    config = AutoConfig.for_model(family, **whole)
    torch.manual_seed(0)
    made: Any = AutoModelForImageTextToText if family in NESTED else AutoModelForCausalLM
    model = made.from_config(config, dtype=dtype)
    for name, value in model.named_parameters():
        if value.dim() == 1 and "sinks" in name:
            torch.nn.init.normal_(value)
    model.save_pretrained(folder)
    return folder


BLOCK = (4, 16)  # rows and columns of a twin's matrix that share a scale
LARGEST = 448.0  # of the 8-bit floats
WIDE = ("lm_head", "vision", "projector", "weights_proj")  # in names of what is not published in them


def publish_in_float8(folder: Path) -> Path:
    """Turn a twin's folder into one that was published in 8-bit floats: all matrices of its layers but the routers."""
    path, config = folder / "model.safetensors", folder / "config.json"
    stored: dict[str, Tensor] = {}
    for name, value in load_file(path).items():
        inside = "layers." in name and not any(part in name for part in WIDE)
        if value.dim() == 2 and inside and not name.endswith(".gate.weight"):
            stored |= _in_blocks(name, value)
        else:
            stored[name] = value
    save_file(stored, path, metadata={"format": "pt"})
    wide = [f".*{part}.*" for part in WIDE]
    told = {"quant_method": "fp8", "weight_block_size": list(BLOCK), "modules_to_not_convert": wide}
    kept = json.loads(config.read_text(encoding="utf-8"))
    config.write_text(json.dumps({**kept, "quantization_config": told}), encoding="utf-8")
    return folder


def _in_blocks(name: str, value: Tensor) -> dict[str, Tensor]:
    """A matrix in 8-bit floats, and what each block is to be multiplied by."""
    rows, columns = (size // block for size, block in zip(value.shape, BLOCK, strict=True))
    blocks = value.float().view(rows, BLOCK[0], columns, BLOCK[1])
    scale = blocks.abs().amax((1, 3)) / LARGEST
    small = (blocks / scale[:, None, :, None]).to(torch.float8_e4m3fn).view(value.shape)
    return {name: small, f"{name}_scale_inv": scale}
