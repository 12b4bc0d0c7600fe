"""A model's own chat template: rendered through transformers, sandboxed, with the date frozen, and asked what it shows.

A template is code from a stranger. It runs in transformers' immutable sandbox on plain JSON values only.
"""

import datetime
import inspect
import json
import re
from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Any

from jinja2 import Environment
from jinja2.exceptions import TemplateError

from engine.failure import Failure
from engine.render.limits import ADVICE, Limits, bounded, checked
from engine.render.sample import CannotRender
from engine.rows.model import Message

Variables = Mapping[str, Any]
"""What a template is told besides the conversation, such as `{"enable_thinking": False}`."""

TEMPLATE_ERRORS = (
    TemplateError,
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    AttributeError,
    RecursionError,
    NotImplementedError,
)
GIVEN = {"messages", "bos_token", "eos_token", "pad_token", "unk_token"}  # what a template has besides arguments
DIRECTIVES = "aAwdbBmyYHIpMSfjUWcxXeFDTRuGV"
INLINE_REASONING = re.compile(r"\s*<think>(.*?)</think>(.*)", re.DOTALL)
NAME, VALUE, RESULT, ANSWER, THOUGHT, QUESTION = (f"zq{word}qz" for word in ("nam", "val", "res", "ans", "tho", "que"))


def frozen_clock(date: datetime.date) -> str:
    """A jinja macro `strftime_now` that always tells the start of `date`.

    It stands before the template's own text without changing it: the newline after the last tag is dropped by
    `trim_blocks`, and the template begins at the start of a line as before.
    """
    moment = datetime.datetime.combine(date, datetime.time())
    chain = "".join(
        f"|replace({json.dumps(f'%{flag}{letter}')}, {json.dumps(moment.strftime(f'%{flag}{letter}'))})"
        for flag in ("-", "")
        for letter in DIRECTIVES
    )
    return "{%- macro strftime_now(format) -%}{{- format" + chain + "|replace('%%', '%') -}}{%- endmacro %}\n"


class ChatTemplate:
    """Renders conversations as serving would, and knows which fields the template shows."""

    def __init__(self, tokenizer: Any, frozen_date: datetime.date, limits: Limits | None = None) -> None:
        self.tokenizer = tokenizer
        self.limits = limits or Limits()
        self._clock = frozen_clock(frozen_date)
        self._screened: set[str] = set()
        self.bridged = False  # a bridge carries reasoning that the template itself does not
        self.reserved = set(inspect.signature(tokenizer.apply_chat_template).parameters) - {"kwargs"} | GIVEN

    @cached_property
    def source(self) -> str:
        """The template's own text (of all of them, where a model has several)."""
        found = self.tokenizer.chat_template
        return "\n".join(found.values()) if isinstance(found, dict) else str(found or "")

    def render(
        self, messages: list[Message], tools: list[dict[str, Any]], *, cue: bool, variables: Variables | None = None
    ) -> str:
        """The conversation as text, with the generation prompt when `cue`.

        Raises CannotRender when the template refuses the conversation, Failure when it does not end.
        """
        return self._apply([self.fitted(message) for message in messages], tools, cue=cue, variables=variables)

    def _apply(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]],
        *,
        cue: bool,
        variables: Variables | None = None,
    ) -> str:
        """The same, with messages already in the form that the template wants."""
        told = dict(variables or {})
        if taken := self.reserved & told.keys():
            message = f"{sorted(taken)[0]} is no variable of a chat template."
            raise Failure("bad_level", message, ["Set one of the levels that the template has."])
        try:
            with bounded(self.limits):
                text = self.tokenizer.apply_chat_template(
                    messages,
                    tools=tools or None,
                    chat_template=self.text(tools),
                    tokenize=False,
                    add_generation_prompt=cue,
                    **told,
                )
        except TEMPLATE_ERRORS as error:
            raise CannotRender("template_refuses", f"The chat template refuses it: {error}") from error
        return checked(str(text), self.limits)

    def text(self, tools: list[dict[str, Any]]) -> str:
        """The template's text, with the clock in front where it asks for one.

        Failure for one that raises to a power: working that out can take hours, and nothing could stop it.
        """
        source = str(self.tokenizer.get_chat_template(None, tools or None))
        if source not in self._screened:
            if raises_to_a_power(source):
                raise Failure(
                    "template_limit", "The chat template raises numbers to a power, which may never end.", ADVICE
                )
            self._screened.add(source)
        return self._clock + source if "strftime_now" in source else source

    def fitted(self, message: Message) -> Message:
        """A message in the form that this template shows: content as text or parts, arguments as object or text."""
        fitted = {key: value for key, value in message.items() if key != "weight"}
        if "tool_calls" in fitted:
            as_text, with_content = self.calls_form
            fitted["tool_calls"] = [_call(call, as_text=as_text) for call in fitted["tool_calls"]]
            if with_content:
                fitted.setdefault("content", "")
            elif not fitted.get("content"):
                fitted.pop("content", None)
        if self.content_in_parts and isinstance(fitted.get("content"), str):
            fitted["content"] = [{"type": "text", "text": fitted["content"]}]
        return fitted

    def split(self, message: Message) -> Message:
        """The message with an inline `<think>` block moved to its reasoning, where the template knows reasoning."""
        content = message.get("content")
        if message["role"] != "assistant" or message.get("reasoning_content"):
            return message
        if not self.bridged and not self.carries_reasoning:
            return message
        found = INLINE_REASONING.fullmatch(content or "")
        if not found or not found[1].strip():
            return message
        # the newlines around the block belong to the way it is written, which the template writes itself
        return {**message, "reasoning_content": found[1].strip("\n"), "content": found[2].lstrip("\n")}

    @cached_property
    def content_in_parts(self) -> bool:
        """Whether text shows only when it is given as a list of parts (some templates silently drop plain text)."""
        wanted = (QUESTION, ANSWER)
        plain = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]
        parts = [{**turn, "content": [{"type": "text", "text": turn["content"]}]} for turn in plain]
        return not _all_in(wanted, self._probe(plain)) and _all_in(wanted, self._probe(parts))

    @cached_property
    def calls_form(self) -> tuple[bool, bool]:
        """How tool calls show whole: (arguments as JSON text, empty content beside them)."""
        forms = [(False, True), (False, False), (True, True), (True, False)]
        shown = [(form, self._probe(self._call_probe(*form), [_PROBE_TOOL])) for form in forms]
        whole = [(form, text) for form, text in shown if _all_in((NAME, VALUE, RESULT), text)]
        clean = [form for form, text in whole if "None" not in text and '\\"' not in text and '"{' not in text]
        return next(iter(clean + [form for form, _ in whole]), (False, True))

    @cached_property
    def carries_reasoning(self) -> bool:
        """Whether reasoning shows in a final answer or beside a tool call."""
        thought = {"role": "assistant", "content": ANSWER, "reasoning_content": THOUGHT}
        if THOUGHT in self._probe([{"role": "user", "content": QUESTION}, thought]):
            return True
        beside = self._call_probe(*self.calls_form)[:2]
        beside[1] = {**beside[1], "reasoning_content": THOUGHT}
        return THOUGHT in self._probe(beside, [_PROBE_TOOL])

    def _call_probe(self, as_text: bool, with_content: bool) -> list[Message]:
        """A question, a call and its result."""
        call = {"type": "function", "id": "call00001", "function": {"name": NAME, "arguments": {"key": VALUE}}}
        asking: Message = {"role": "assistant", "tool_calls": [_call(call, as_text=as_text)]}
        if with_content:
            asking["content"] = ""
        result = {"role": "tool", "name": NAME, "tool_call_id": "call00001", "content": RESULT}
        return [{"role": "user", "content": QUESTION}, asking, result]

    def _probe(self, messages: list[Message], tools: list[dict[str, Any]] | None = None) -> str:
        """The rendered text, or '' when the template refuses."""
        try:
            return self._apply(messages, tools or [], cue=False)
        except CannotRender:
            return ""


_PROBE_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Look up a key.",
        "parameters": {
            "type": "object",
            "properties": {"key": {"type": "string", "description": "The key."}},
            "required": ["key"],
        },
    },
}


@lru_cache(maxsize=64)
def raises_to_a_power(source: str) -> bool:
    """Whether `**` stands between two values (and not before the named arguments of a call)."""
    before = ""
    for _, kind, word in Environment().lex(source):
        if kind == "operator" and word == "**" and before not in ("(", ","):
            return True
        before = before if kind == "whitespace" else word
    return False


def _all_in(wanted: tuple[str, ...], text: str) -> bool:
    return all(word in text for word in wanted)


def _call(call: dict[str, Any], *, as_text: bool) -> dict[str, Any]:
    """A tool call with its arguments in one form; text that is no JSON object stays text."""
    arguments = call["function"]["arguments"]
    if as_text and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    elif not as_text and isinstance(arguments, str):
        try:
            parsed = json.loads(arguments)
        except (ValueError, RecursionError):
            parsed = None
        arguments = parsed if isinstance(parsed, dict) else arguments
    return {**call, "function": {**call["function"], "arguments": arguments}}
