"""Reasoning levels: what a chat template can be told besides the conversation, found by asking it."""

import itertools
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from jinja2 import meta, nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.render.sample import CannotRender
from engine.render.template import ChatTemplate, Variables
from engine.rows.model import Message

ABOUT_REASONING = re.compile(r"think|reason|effort", re.IGNORECASE)
ORDINARY = {
    "messages",
    "tools",
    "documents",
    "add_generation_prompt",
    "bos_token",
    "eos_token",
    "pad_token",
    "unk_token",
}
NONSENSE = "zzbanana"
WORDS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
USUAL = ("low", "medium", "high")  # of a variable whose text is printed as it is, any word would be a level
MOST_LEVELS = 24
QUESTION, ANSWER, THOUGHT, SYSTEM, RESULT = (f"zq{word}zq" for word in ("quest", "answ", "thou", "syst", "resu"))

Signature = tuple[str | None, ...]
"""What each probe conversation renders to; None where the template refuses."""


@dataclass(frozen=True, eq=False)
class Level:
    """One way of asking the model to think. `variables` empty: the template's default.

    `alike`: other settings that render the same. `prompt_text`: what the level puts into the prompt, `cue`: how it
    makes the assistant begin, `thinks`: whether an answer with reasoning goes on from there, `frame`: characters of the
    template's own text before an answer without reasoning (None when such an answer does not go on from the cue).
    """

    variables: Variables
    alike: tuple[Variables, ...] = ()
    prompt_text: str = ""
    cue: str = ""
    thinks: bool = False
    frame: int | None = None

    @property
    def name(self) -> str:
        """`enable_thinking=False`, or `default`."""
        return ", ".join(f"{key}={value}" for key, value in sorted(self.variables.items())) or "default"

    @property
    def told(self) -> Variables:
        """What sets it: of the default its own value spelled out, where it has one."""
        return self.variables or next(iter(self.alike), {})

    @cached_property
    def key(self) -> str:
        """Equal for equal variables."""
        return json.dumps(dict(self.variables), sort_keys=True, default=str)


@dataclass(frozen=True, eq=False)
class Levels:
    """All that a template can be told. `levels`: default first, each rendering something else.

    `history`: switches that only change whether earlier reasoning stays. `free_text`: variables whose text is printed
    as it is, whatever it says. `refused`: values that the template raises on. `other`: variables that change the text
    but are no levels (a date, the model's identity). `names`: every variable that the template reads.
    """

    levels: list[Level] = field(default_factory=lambda: [Level({})])
    history: list[Level] = field(default_factory=list)
    free_text: tuple[str, ...] = ()
    refused: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    other: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()

    @property
    def variables(self) -> frozenset[str]:
        """Names of the variables that choose a level."""
        return frozenset(name for level in self.levels for name in level.variables)

    def by_cue(self) -> list[Level]:
        """The first level of every cue: levels that share one differ in the prompt only, not in what follows it."""
        return list({level.cue: level for level in reversed(self.levels)}.values())[::-1]


def levels(tokenizer_template: ChatTemplate) -> list[Level]:
    """The reasoning levels of a template, its default first; just the default when it has none."""
    return probe(tokenizer_template).levels


def probe(template: ChatTemplate) -> Levels:
    """Everything a template can be told, found by rendering. Failure when it does not end."""
    try:
        names, constants = read(str(template.tokenizer.get_chat_template()))
    except (TemplateError, ValueError, RecursionError):
        return Levels()
    return _Prober(template, constants).run(names)


class _Generation(Extension):
    """Lets templates with `{% generation %}` be parsed."""

    tags = frozenset({"generation"})  # type: ignore[assignment]

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The block's content as if it stood alone."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@lru_cache(maxsize=64)
def read(source: str) -> tuple[list[str], list[str]]:
    """Names that the template reads without setting them first, and the words it compares with. TemplateError."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    tree = environment.parse(source)
    names = meta.find_undeclared_variables(tree) - ORDINARY - set(environment.globals)
    names -= {"raise_exception", "strftime_now"}
    compared: Iterable[nodes.Node] = tree.find_all((nodes.Compare, nodes.Filter, nodes.Dict))
    words = {
        constant.value
        for node in compared
        for constant in node.find_all(nodes.Const)
        if isinstance(constant.value, str) and re.fullmatch(r"[a-z][a-z_-]{1,15}", constant.value)
    }
    return sorted(names), sorted(words)


class _Prober:
    """Renders the probes under one setting after another."""

    def __init__(self, template: ChatTemplate, constants: list[str]) -> None:
        self.template = template
        self.words = list(dict.fromkeys((*WORDS, *constants)))
        self.seen: dict[str, Signature] = {}
        self.plain = self.ask({})

    def ask(self, variables: Variables) -> Signature:
        """What the probes render to."""
        key = json.dumps(dict(variables), sort_keys=True)
        if key not in self.seen:
            self.seen[key] = tuple(
                self._render(messages, tools, cue=cue, variables=variables) for messages, tools, cue, _ in PROBES
            )
        return self.seen[key]

    def changes(self, variables: Variables) -> bool:
        """Whether a setting changes one of the telling probes; a quick look before all are rendered."""
        return any(
            self._render(*PROBES[at][:2], cue=PROBES[at][2], variables=variables) != self.plain[at] for at in TELLING
        )

    def _render(
        self, messages: list[Message], tools: list[dict[str, Any]], *, cue: bool, variables: Variables
    ) -> str | None:
        try:
            return self.template.render(messages, tools, cue=cue, variables=variables)
        except CannotRender:
            return None

    def raises(self, found: Signature) -> bool:
        """Whether the template refuses what it renders without the setting."""
        return any(new is None and old is not None for new, old in zip(found, self.plain, strict=True))

    def run(self, names: list[str]) -> Levels:
        """Sort the names into levels, history switches and others; put the levels together."""
        groups: dict[str, list[list[Any]]] = {}
        free: list[str] = []
        refused: dict[str, tuple[Any, ...]] = {}
        history: list[Level] = []
        other: list[str] = []
        for name in names:
            if not ABOUT_REASONING.search(name):
                other += [name] if any(self.changes({name: value}) for value in (True, False, NONSENSE)) else []
                continue
            nonsense = self.ask({name: NONSENSE})
            prints = any(text and NONSENSE in text for text in nonsense)
            found, raising = self._groups(name, USUAL if prints else self.words, None if prints else nonsense)
            if not found:
                continue
            if self._only_history([self.ask({name: group[0]}) for group in found]):
                history += [self._level({name: group[0]}, [{name: value} for value in group[1:]]) for group in found]
                continue
            groups[name] = found
            free += [name] if prints else []
            if raising:
                refused[name] = raising
        return Levels(self._product(groups), history, tuple(free), refused, tuple(other), frozenset(names))

    def _groups(
        self, name: str, words: Iterable[str], nonsense: Signature | None
    ) -> tuple[list[list[Any]], tuple[Any, ...]]:
        """Values that change something, those that render alike together; and the values that the template refuses."""
        by_text: dict[Signature, list[Any]] = {}
        refused: list[Any] = []
        for value in (True, False, *words):
            if isinstance(value, str) and not self.changes({name: value}):
                continue
            found = self.ask({name: value})
            if self.raises(found):
                refused += [value] if value in WORDS else []
            elif found == self.plain or (found == nonsense and not isinstance(value, bool)):
                continue  # the default, or what any unknown word does
            elif nonsense is None and isinstance(value, bool):
                continue  # printed as “True”
            else:
                by_text.setdefault(found, []).append(value)
        return list(by_text.values()), tuple(refused)

    def _only_history(self, found: list[Signature]) -> bool:
        """Whether just probes with earlier reasoning changed."""
        return all(
            new == old or is_history
            for signature in found
            for new, old, (_, _, _, is_history) in zip(signature, self.plain, PROBES, strict=True)
        )

    def _product(self, groups: dict[str, list[list[Any]]]) -> list[Level]:
        """Levels out of every combination that renders something of its own, the default first."""
        choices = [[None, *(group[0] for group in found)] for found in groups.values()]
        kept: dict[Signature, list[Variables]] = {self.plain: [{}]}
        for values in itertools.product(*choices):
            variables = {name: value for name, value in zip(groups, values, strict=True) if value is not None}
            found = self.ask(variables)
            if not self.raises(found) and len(kept) <= MOST_LEVELS:
                kept.setdefault(found, []).append(variables)
        for name, found_groups in groups.items():
            for group in found_groups:
                for value in group[1:]:
                    kept[self.ask({name: value})].append({name: value})
            words = self.words if self.ask({name: NONSENSE}) != self.plain else ()
            spellings = [value for value in (True, False, *words) if not self.changes({name: value})]
            kept[self.plain] += [{name: value} for value in spellings if self.ask({name: value}) == self.plain]
        unique = [
            list({json.dumps(one, sort_keys=True): one for one in settings}.values()) for settings in kept.values()
        ]
        return [self._level(one[0], one[1:]) for one in unique]

    def _level(self, variables: Variables, alike: list[Variables]) -> Level:
        """A level, with what it changes."""
        ask, open_ended, with_thought, without = (self.ask(variables)[at] for at in (0, 1, 2, 3))
        default = self.plain[0] or ""
        ask = ask or ""
        text, begins = _without_common(ask, default), ask[len(_common(ask, open_ended or "")) :]
        thinks = bool(with_thought and with_thought.startswith(ask) and THOUGHT in with_thought[len(ask) :])
        plain = without[len(ask) :] if without and without.startswith(ask) else ""
        frame = plain.find(ANSWER) if ANSWER in plain else None
        return Level(variables, tuple(alike), text, begins, thinks, frame)


def _common(one: str, other: str) -> str:
    """The beginning that two texts share."""
    for at, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return one[:at]
    return one[: min(len(one), len(other))]


def _without_common(text: str, other: str) -> str:
    """`text` without what it shares with `other` at both ends."""
    start = len(_common(text, other))
    end = min(len(_common(text[::-1], other[::-1])), len(text) - start, len(other) - start)
    return text[start : len(text) - end]


def _probes() -> list[tuple[list[Message], list[dict[str, Any]], bool, bool]]:
    """Conversations to ask with: (messages, tools, with cue, has earlier reasoning). The first four are also read."""
    tool = {
        "type": "function",
        "function": {
            "name": "lookup",
            "description": "Look up a key.",
            "parameters": {"type": "object", "properties": {"key": {"type": "string", "description": "The key."}}},
        },
    }
    asked: Message = {"role": "user", "content": QUESTION}
    thought: Message = {"role": "assistant", "content": ANSWER, "reasoning_content": THOUGHT}
    call = {"type": "function", "id": "call00001", "function": {"name": "lookup", "arguments": {"key": "zqkeyzq"}}}
    calling: Message = {"role": "assistant", "tool_calls": [call], "reasoning_content": THOUGHT}
    result: Message = {"role": "tool", "name": "lookup", "tool_call_id": "call00001", "content": RESULT}
    return [
        ([asked], [], True, False),
        ([asked], [], False, False),
        ([asked, thought], [], False, False),
        ([asked, {"role": "assistant", "content": ANSWER}], [], False, False),
        ([{"role": "system", "content": SYSTEM}, asked], [], True, False),
        ([asked], [tool], True, False),
        ([asked, thought, asked], [], True, True),
        ([asked, calling, result], [tool], True, True),
        ([asked, calling, result, {"role": "assistant", "content": ANSWER}, asked], [tool], True, True),
    ]


PROBES = _probes()
TELLING = (4, 5, 8)  # a system text, tools, a history with reasoning and calls
