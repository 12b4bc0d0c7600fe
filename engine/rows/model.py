"""What a row is: the normalised form that training reads, and what can be wrong with one. No torch."""

from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

Kind = Literal["chat", "preference", "rated", "prompt", "text"]
Format = Literal["jsonl", "json", "csv", "parquet"]
FORMATS: tuple[Format, ...] = ("jsonl", "json", "csv", "parquet")

Message = dict[str, Any]
"""OpenAI's shape: `role`, `content` (text), and where present `reasoning_content`, `tool_calls`, `tool_call_id`,
`name`, `weight` (0 or 1, assistant only). Keys without a value are absent."""


class Problem(BaseModel):
    """Why a row cannot be used, for a person: where, what, and how to mend it."""

    model_config = ConfigDict(frozen=True)

    row: int = 0  # from 1; 0: the whole file
    line: int | None = None  # from 1, for formats that have lines
    code: str
    message: str
    fix: str = ""

    def at(self, row: int, line: int | None) -> "Problem":
        """The same problem, placed."""
        return self.model_copy(update={"row": row, "line": line})

    @property
    def place(self) -> str:
        """`row 3 (line 7)`."""
        return f"row {self.row}" + (f" (line {self.line})" if self.line and self.line != self.row else "")


@dataclass(frozen=True, slots=True)
class RawRow:
    """One row as the file has it: its columns, or the problem that kept them from being read."""

    number: int  # from 1
    line: int | None
    value: dict[str, Any] | None
    problem: Problem | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One usable row.

    `chat`: `messages` is the whole conversation. `preference`: `prompt`, then `chosen` or `rejected` (all messages).
    `rated`: `messages` ending in an answer, and whether it is a good one: `label`.
    `prompt`: `prompt`, and `answer` where the file has a reference answer. `text`: `text`.
    `shape` is the form it was written in; `tools` are the JSON schemas that the conversation may call;
    `chat_template_kwargs` is what the chat template is told for this row, whatever it is told for the others;
    `metadata` is what else the row says, for rewards.
    """

    kind: Kind
    shape: str
    messages: list[Message] = field(default_factory=list)
    prompt: list[Message] = field(default_factory=list)
    chosen: list[Message] = field(default_factory=list)
    rejected: list[Message] = field(default_factory=list)
    label: bool | None = None
    answer: str = ""
    text: str = ""
    tools: list[dict[str, Any]] = field(default_factory=list)
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    number: int = 0
    line: int | None = None


def cut(value: object, most: int = 60) -> str:
    """A value as short text for a message: never a dump of the whole row."""
    text = str(value).replace("\n", " ").strip()
    return text if len(text) <= most else text[: most - 1] + "…"


def name_of_type(value: object) -> str:
    """What a JSON value is, in a person's words."""
    names = {str: "text", bool: "true/false", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return "nothing" if value is None else names.get(type(value), type(value).__name__)
