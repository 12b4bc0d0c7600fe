"""Which of transformers' auto classes a model folder is for: text models, and those that read images besides."""

from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)


def class_for(model: str) -> Any:
    """The auto class that makes a model out of a folder or Hub id; it is trained and asked with text only.

    Raises OSError, ValueError or KeyError where there is no readable config.
    """
    return class_of(AutoConfig.from_pretrained(model).model_type)


def class_of(kind: str) -> Any:
    """The auto class for models of this `model_type`."""
    images_only = kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and kind in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    return AutoModelForImageTextToText if images_only else AutoModelForCausalLM
