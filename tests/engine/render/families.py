"""The chat templates of the installed trl wheel, each with a small tokenizer that knows its markers."""

import importlib.util
import re
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

FOLDER = Path(importlib.util.find_spec("trl").submodule_search_locations[0]) / "chat_templates"
PATHS = {path.stem: path for path in sorted(FOLDER.glob("*.jinja"))}
MARKER = re.compile(
    r"<\|[^<>|\s'\"]{1,40}\|>|<\uff5c[^<>\s'\"]{1,40}\uff5c>|<\|[a-z_]+>|<[a-z_]+\|>|<(?:start|end)_of_\w+>|</s>|<image>|<sop>"
    r"|\[gMASK\]|\[/?INST\]"
)
WORDLIKE = ["<think>", "</think>", "<tool_call>", "</tool_call>"]  # tokens of their own, but text
BOS = "<|bos|>"
STOPS = {
    "cohere": ["<|END_OF_TURN_TOKEN|>"],
    "deepseek": ["<\uff5cend\u2581of\u2581sentence\uff5c>"],
    "diffusion_gemma": ["<turn|>", "<|tool_response>"],
    "gemma4": ["<turn|>", "<|tool_response>"],
    "gemma": ["<end_of_turn>"],
    "glm": ["<|user|>", "<|observation|>", "<|endoftext|>"],
    "gptoss": ["<|return|>", "<|call|>", "<|endoftext|>"],
    "idefics": ["<end_of_utterance>"],
    "lfm2": ["<|im_end|>"],
    "llama3": ["<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"],
    "llava": ["</s>"],
    "muse": ["<|eot|>"],
    "nemotron": ["<|im_end|>"],
    "phi": ["<|end|>", "<|endoftext|>"],
    "qwen": ["<|im_end|>", "<|endoftext|>"],
    "smolvlm": ["<end_of_utterance>"],
}
TEXT = """The quick brown fox jumps over the lazy dog. What is the answer? First, we have to look at the weather in
Paris, then say that it is sunny. I think the user wants a short answer. Second question: how many letters
has the word?"""


@cache
def vocabulary():
    """A byte-level BPE tokenizer as JSON text, trained on the templates themselves."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1200, initial_alphabet=alphabet, show_progress=False)
    literal = [re.sub(r"\{[%{#].*?[%}#]\}", " ", PATHS[name].read_text()) for name in ("qwen3_8", "gptoss", "phi3")]
    backend.train_from_iterator([*literal, *[TEXT] * 20], trainer)
    return backend.to_str()


def stops_of(name):
    return next(stops for prefix, stops in STOPS.items() if name.startswith(prefix))


def tokenizer_for(source, stops):
    """A tokenizer for a template, with the markers in its text as special tokens."""
    backend = Tokenizer.from_str(vocabulary())
    markers = sorted({BOS, *stops, *MARKER.findall(source)})
    backend.add_special_tokens([AddedToken(marker, special=True, normalized=False) for marker in markers])
    backend.add_tokens([AddedToken(word, normalized=False) for word in WORDLIKE if word in source])
    made = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=BOS, eos_token=stops[-1])
    made.chat_template = source
    return made


@cache
def tokenizer_of(name):
    return tokenizer_for(PATHS[name].read_text(encoding="utf-8"), stops_of(name))
