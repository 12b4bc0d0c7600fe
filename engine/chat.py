"""A conversation with a run's result: a JSON line of messages in, the answer as JSON lines out, piece by piece.

In: `{"messages": [...]}`. Out: first `{"ready": true, "level": ...}`; for each question `{"piece": ...}` as it is
written, then `{"done": true, "truncated": ...}`; or `{"error": {"code", "message", "advice"}}`. It ends with its input.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.generation.streamers import BaseStreamer

from engine.build import quieten
from engine.failure import Failure
from engine.render import tokenizer as tokenizers
from engine.render.renderer import Renderer
from engine.render.settings import RenderSettings, renderer_for

SPEC = "atelier.json"


@dataclass(frozen=True)
class Talk:
    """How answers are written: `temperature` 0 takes the likeliest token always; tokens at most."""

    temperature: float = 0.0
    max_new_tokens: int = 512


class Pieces(BaseStreamer):
    """Hands text on as soon as its characters are whole."""

    def __init__(self, tokenizer: Any, say: Callable[[str], None]) -> None:
        self.tokenizer = tokenizer
        self.say = say
        self.ids: list[int] = []
        self.told = ""
        self.asked = False

    def put(self, value: torch.Tensor) -> None:
        """The prompt first, then one token at a time."""
        if not self.asked:
            self.asked = True
            return
        self.ids += value.flatten().tolist()
        text = self.tokenizer.decode(self.ids, skip_special_tokens=True)
        if text.startswith(self.told) and not text.endswith("\N{REPLACEMENT CHARACTER}"):
            self.say(text[len(self.told) :])
            self.told = text

    def end(self) -> None:
        """What was held back."""
        text = self.tokenizer.decode(self.ids, skip_special_tokens=True)
        if text.startswith(self.told) and text != self.told:
            self.say(text[len(self.told) :])


class Partner:
    """A loaded result: its base model with the adapter on it, or the whole model that it is."""

    def __init__(self, result: Path, base: str, level: str | None) -> None:
        """`level`: a reasoning level by name, None: the one that the run was trained at. Raises Failure."""
        quieten()
        self.tokenizer, self.stops = _tokenizer(result, base)
        self.level = trained_level(result) if level is None else level
        self.renderer: Renderer = renderer_for(self.tokenizer, self.stops, RenderSettings(self.level))
        self.model = _model(result, base)

    @torch.inference_mode()
    def answer(self, messages: list[dict[str, Any]], how: Talk, say: Callable[[str], None]) -> bool:
        """Say the answer to a conversation in pieces; whether the limit ended it."""
        ids = self.renderer.prompt_ids(messages)
        prompt = torch.from_numpy(ids).long()[None].to(self.model.device)
        drawn = {"do_sample": True, "temperature": how.temperature} if how.temperature else {"do_sample": False}
        config = GenerationConfig(
            max_new_tokens=how.max_new_tokens, eos_token_id=self.stops, pad_token_id=self.stops[0], **drawn
        )
        out = self.model.generate(
            input_ids=prompt,
            attention_mask=torch.ones_like(prompt),
            generation_config=config,
            streamer=Pieces(self.tokenizer, say),
        )
        return int(out[0, -1]) not in self.stops


def trained_level(result: Path) -> str:
    """The reasoning level that the run behind a result set for all rows; '' when it set none, or nobody knows."""
    try:
        spec = json.loads((result / SPEC).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    return str((spec.get("data") or {}).get("reasoning_level") or "")


def _tokenizer(result: Path, base: str) -> tuple[Any, list[int]]:
    """The result's own tokenizer; the stop tokens also from the base model's config, where that is a folder."""
    tokenizer, stops = tokenizers.load(result)
    if Path(base).is_dir():
        stops = list(dict.fromkeys([*tokenizers.load(Path(base))[1], *stops]))
    return tokenizer, stops


def _model(result: Path, base: str) -> Any:
    """The model on the device that there is, in the precision of its weights."""
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    whole = not (result / "adapter_config.json").is_file()
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(result if whole else base, dtype="auto")
        model = model if whole else PeftModel.from_pretrained(model, str(result))
    except (OSError, ValueError) as error:
        raise Failure("result_unreadable", f"The result cannot be loaded: {error}", ["Run it again."]) from error
    return model.to(device).eval()


def main(result: Path, base: str, level: str | None, how: Talk) -> int:
    """Answer until stdin ends."""
    try:
        partner = Partner(result, base, level)
    except Failure as failure:
        return _say_failure(failure)
    _say({"ready": True, "level": partner.level})
    for line in sys.stdin:
        try:
            truncated = partner.answer(_messages(line), how, lambda piece: _say({"piece": piece}))
        except Failure as failure:
            _say_failure(failure)
            continue
        _say({"done": True, "truncated": truncated})
    return 0


def _messages(line: str) -> list[dict[str, Any]]:
    """The conversation in a line. Raises Failure for anything else."""
    try:
        found = json.loads(line)["messages"]
    except (ValueError, KeyError, TypeError) as error:
        raise Failure("bad_question", "A question is one JSON object with messages.") from error
    if not isinstance(found, list) or not all(isinstance(message, dict) for message in found):
        raise Failure("bad_question", "The messages are a list of objects with role and content.")
    return found


def _say_failure(failure: Failure) -> int:
    _say({"error": {"code": failure.code, "message": failure.message, "advice": list(failure.advice)}})
    return 1


def _say(value: Any) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()
