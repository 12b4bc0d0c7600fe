"""How a base model's weights were published, by its config.json alone. No torch."""

from collections.abc import Mapping
from typing import Any

FLOAT8 = "fp8"  # transformers' name for matrices of 8-bit floats in blocks, each with a scale


def in_float8(config: Mapping[str, Any]) -> bool:
    """Whether they are 8-bit floats in blocks (DeepSeek-V3, Mistral Large 4)."""
    told = config.get("quantization_config") or (config.get("text_config") or {}).get("quantization_config") or {}
    return bool(told.get("quant_method") == FLOAT8)
