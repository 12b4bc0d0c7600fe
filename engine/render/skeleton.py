"""Rendering without Jinja: conversations of one shape share one rendering, in which only their own texts differ.

A shape is the roles and fields of the messages, with what else the template is told. The template is run once per shape
with texts that note what it asks of them (`engine.render.traced`). Conversations whose texts meet what it was answered
are put together from the pieces; all others, and those with tools, are rendered. The first of every shape are rendered
in both ways, and a template that ever differs gets no skeletons any more.
"""

import json
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, Template, nodes
from transformers import PreTrainedTokenizerBase
from transformers.utils import chat_template_utils

from engine.render import traced
from engine.render.limits import bounded
from engine.render.template import TEMPLATE_ERRORS, ChatTemplate, Variables
from engine.render.traced import Guard, Part, Traced, Untraced
from engine.rows.model import Message

TEXTS = ("content", "reasoning_content")
PLAIN = frozenset((*TEXTS, "role", "weight"))
UNSEEN = frozenset(("int", "float", "wordcount", "format", "filesizeformat", "urlencode", "striptags", "escape", "e"))
"""Filters that read a text without asking it."""
RENDERED_FIRST = 2  # times that a shape is rendered before a skeleton is made for it
COMPARED = 2  # uses of a skeleton that are rendered, too
MOST_SHAPES = 1_000

Shape = tuple[Any, ...]


@dataclass
class Skeleton:
    """A rendering with places for texts, and what they must be like. `uses`: how often it was filled."""

    parts: tuple[Part, ...]
    guards: list[Guard]
    uses: int = 0

    def filled(self, texts: list[str]) -> str | None:
        """The rendering with these texts; None when one of them is not as the template was told."""
        for guard, text in zip(self.guards, texts, strict=True):
            if not guard.passes(text):
                return None
        return "".join([part if isinstance(part, str) else texts[part] for part in self.parts])


class Skeletons:
    """A template's renderings, out of skeletons where that is the same."""

    def __init__(self, template: ChatTemplate) -> None:
        self.template = template
        self.known: dict[Shape, int | Skeleton] = {}  # a number: how often it was rendered, below 0: has no skeleton
        applied = getattr(type(template.tokenizer), "apply_chat_template", None)
        self.possible = applied is PreTrainedTokenizerBase.apply_chat_template  # else it renders in a way of its own
        self._tracing: dict[str, Template] = {}

    def render(self, messages: list[Message], tools: list[dict[str, Any]], *, cue: bool, variables: Variables) -> str:
        """The same as `ChatTemplate.render`, sooner."""
        if self.possible and not tools and (texts := _texts(messages)) is not None:
            told = json.dumps(dict(variables), sort_keys=True, default=str) if variables else ""
            shape = (cue, told, *[(message["role"], *message) for message in messages])
            known = self.known.get(shape, 0)
            if isinstance(known, Skeleton):
                if (text := known.filled(texts)) is not None:
                    known.uses += 1
                    return text if known.uses > COMPARED else self._compared(text, messages, cue, variables)
            elif known == RENDERED_FIRST:
                self.known[shape] = self._made(messages, cue, variables) or -1
            elif known >= 0:
                if len(self.known) >= MOST_SHAPES:
                    self.known.clear()
                self.known[shape] = known + 1
        return self.template.render(messages, tools, cue=cue, variables=variables)

    def of(self, messages: list[Message], *, cue: bool, variables: Variables) -> Skeleton | None:
        """The skeleton of such conversations; None when there is none."""
        return self._made(messages, cue, variables) if self.possible else None

    def _compared(self, text: str, messages: list[Message], cue: bool, variables: Variables) -> str:
        """The real rendering; when it is another than `text`, skeletons do not work for this template."""
        real = self.template.render(messages, [], cue=cue, variables=variables)
        self.possible = real == text
        return real

    def _made(self, messages: list[Message], cue: bool, variables: Variables) -> Skeleton | None:
        """The skeleton of this shape; None when the rendering depends on the texts, or is refused."""
        guards: list[Guard] = []
        unknown: list[Message] = []
        for message in messages:
            stand_ins = {}
            for key in TEXTS:
                if key in message:
                    stand_ins[key] = Traced.of([len(guards)], guards)
                    guards.append(Guard())
            unknown.append({**message, **stand_ins})
        try:
            text = self._trace(unknown, cue, variables)
        except (Untraced, *TEMPLATE_ERRORS):
            return None
        return Skeleton(text.parts if isinstance(text, Traced) else (text,), guards)

    def _trace(self, messages: list[Message], cue: bool, variables: Variables) -> str:
        """Run the template on traced texts, with what transformers gives it when it renders."""
        tokenizer, source = self.template.tokenizer, self.template.text([])
        if source not in self._tracing:
            environment = chat_template_utils._compile_jinja_template(source).environment.overlay()
            if not _traceable(environment, source):
                raise Untraced
            environment.concat = traced.joined
            environment.filters = {**environment.filters, "length": traced.length, "count": traced.length}
            template = environment.from_string(source)
            template.root_render_func.__globals__["str_join"] = traced.joined
            self._tracing[source] = template
        given = chat_template_utils._alias_reasoning_fields([self.template.fitted(one) for one in messages])
        with bounded(self.template.limits):
            return self._tracing[source].render(
                messages=given,
                tools=None,
                documents=None,
                add_generation_prompt=cue,
                **{**tokenizer.special_tokens_map, **variables},
            )


def _traceable(environment: Environment, source: str) -> bool:
    """Whether what the template asks of a text is asked of the text itself: no `text in "words"`, no `text | int`."""
    tree = environment.parse(source)
    if any(one.name in UNSEEN for one in tree.find_all(nodes.Filter)):
        return False
    return not any(
        operand.op in ("in", "notin")
        and isinstance(operand.expr, nodes.Const)
        and not isinstance(one.expr, nodes.Const)
        for one in tree.find_all(nodes.Compare)
        for operand in one.ops
    )


def _texts(messages: list[Message]) -> list[str] | None:
    """The texts of a conversation, in order; None when there is more to it than texts."""
    found = []
    for message in messages:
        if not message.keys() <= PLAIN:
            return None
        found += [message[key] for key in TEXTS if key in message]
    return found
