"""What a row says besides its turns: system text, tools, and what the chat template is told for it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.rows.messages import Faults, checked_text, from_json_text
from engine.rows.model import Message, cut

SYSTEMS = ("system", "system_prompt")
KWARGS = "chat_template_kwargs"
EFFORT, THINKING = "reasoning_effort", "enable_thinking"
SWITCHES = {"true": True, "false": False}


@dataclass(frozen=True)
class Columns:
    """A row's columns by lower-case name; `names`: what the file calls those that it calls otherwise."""

    values: Mapping[str, Any]
    names: Mapping[str, str] = field(default_factory=dict)

    def filled(self, *names: str) -> bool:
        """All of them are there and hold something."""
        return all(self.values.get(name) is not None for name in names)

    def named(self, *names: str) -> bool:
        """All of them are there, if only as null."""
        return all(name in self.values for name in names)

    def said(self, name: str) -> str:
        """A column as the file names it."""
        return f"“{cut(self.names.get(name, name), 40)}”"


def system_of(columns: Columns, faults: Faults) -> list[Message]:
    """The system turn of a `system` column, if it says anything."""
    for name in SYSTEMS:
        value = columns.values.get(name)
        if value is not None and value != "":
            text = checked_text(value, columns.said(name), faults)
            return [{"role": "system", "content": text}] if text and text.strip() else []
    return []


def tools_of(columns: Columns, faults: Faults) -> list[dict[str, Any]]:
    """Tool schemas, as a list or its JSON text."""
    value = columns.values.get("tools")
    if value is None or value in ("", [], "[]"):
        return []
    value = from_json_text(value)
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        faults.wrong_type(columns.said("tools"), value, "a list of JSON schemas")
        return []
    return value


def template_kwargs_of(columns: Columns, faults: Faults) -> dict[str, Any]:
    """What the template is told for this row: `chat_template_kwargs` with `reasoning_effort` and `enable_thinking`."""
    told = _object(columns, faults)
    effort, thinking = columns.values.get(EFFORT), columns.values.get(THINKING)
    found: dict[str, Any] = {}
    if isinstance(effort, str | int | float) and effort != "":
        found[EFFORT] = effort
    elif effort not in (None, ""):
        faults.wrong_type(columns.said(EFFORT), effort)
    if isinstance(thinking, str):
        thinking = SWITCHES.get(thinking.strip().lower(), thinking) if thinking.strip() else None
    if isinstance(thinking, bool):
        found[THINKING] = thinking
    elif thinking is not None:
        faults.wrong_type(columns.said(THINKING), thinking, "true or false")
    for name, value in found.items():
        if name in told and told[name] != value:
            message = f"{columns.said(name)} says {cut(value, 20)}, {columns.said(KWARGS)} says {cut(told[name], 20)}."
            faults.add("level_twice", message, "Keep one of the two.")
    return {**told, **found}


def _object(columns: Columns, faults: Faults) -> dict[str, Any]:
    """`chat_template_kwargs`, as an object or its JSON text; what is null there is not told."""
    value = from_json_text(columns.values.get(KWARGS))
    if value is None or value == "":
        return {}
    if not isinstance(value, dict):
        faults.wrong_type(columns.said(KWARGS), value, "an object")
        return {}
    return {str(name): one for name, one in value.items() if one is not None}
