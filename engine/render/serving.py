"""How an adapter is to be talked to: what its chat template was told in training, kept with it as its default."""

import copy
import datetime
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.render.sample import CannotRender
from engine.render.template import ChatTemplate, Variables

FILE = "chat.json"
PROBE = [{"role": "user", "content": "hi"}]
DAY = datetime.date(2026, 1, 1)


@dataclass(frozen=True)
class Serving:
    """`level`: what the template was told in every row, or in each alike; `date`: the day that it was told."""

    level: Variables = field(default_factory=dict)
    date: datetime.date | None = None


def save(tokenizer: Any, serving: Serving, folder: Path) -> None:
    """Write the tokenizer, its chat template with the level as its default, and both facts as `chat.json`.

    Whoever renders with the saved template and says nothing of a level gets this one; saying another still works.
    """
    saved = copy.copy(tokenizer)
    if serving.level and isinstance(tokenizer.chat_template, str):
        saved.chat_template = with_default(tokenizer.chat_template, serving.level)
        if _renders(saved, {}) != _renders(tokenizer, serving.level):
            saved.chat_template = tokenizer.chat_template
    saved.save_pretrained(str(folder))
    facts = {"chat_template_kwargs": dict(serving.level), "date": serving.date and serving.date.isoformat()}
    (folder / FILE).write_text(json.dumps(facts, indent=2), encoding="utf-8")


def load(folder: Path) -> Serving:
    """What an adapter was told in training; nothing for a folder that does not say."""
    try:
        facts = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return Serving()
    date = facts.get("date")
    return Serving(facts.get("chat_template_kwargs") or {}, datetime.date.fromisoformat(date) if date else None)


def with_default(source: str, level: Variables) -> str:
    """A chat template whose variables have these values where nobody says otherwise.

    Only plain names and values are written into it. The newline after the last tag is dropped by `trim_blocks`, so the
    template's own text begins as before.
    """
    plain = {name: json.dumps(value) for name, value in level.items() if name.isidentifier() and _is_plain(value)}
    sets = [f"{{%- set {name} = {name} if {name} is defined else {value} %}}" for name, value in plain.items()]
    return "".join(sets) + "\n" + source if sets else source


def _is_plain(value: Any) -> bool:
    return isinstance(value, bool | int | float | str)


def _renders(tokenizer: Any, level: Variables) -> str | None:
    """A question as it is sent; None where the template refuses."""
    try:
        return ChatTemplate(tokenizer, DAY).render(PROBE, [], cue=True, variables=level)
    except CannotRender:
        return None
