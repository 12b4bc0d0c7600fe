"""Bridges: what closes a thought that the prompt opens and that no rendered row can contain.

Some templates end the prompt with `<think>`, yet delete reasoning from the rows that they render. What the model must
then write between its reasoning and the answer stands nowhere; a person confirms the likely text once.
"""

import re
from dataclasses import dataclass

from engine.render.levels import ANSWER, PROBES
from engine.render.sample import CannotRender
from engine.render.template import ChatTemplate
from engine.rows.model import Message

OPENS = re.compile(r"<([^<>/\s]+)>\s*")


@dataclass(frozen=True, slots=True)
class Bridge:
    """`opens`: how the prompt ends. `closes`: what the model writes after its reasoning, before the answer."""

    opens: str
    closes: str

    def over(self, message: Message, prompt: str, whole: str) -> str | None:
        """The completion of a turn whose row `whole` lacks the thought that `prompt` opens; None for any other."""
        before = prompt.removesuffix(self.opens)
        if before == prompt or not whole.startswith(before) or whole.startswith(prompt):
            return None
        return (message.get("reasoning_content") or "").strip() + self.closes + whole[len(before) :]


def offered(template: ChatTemplate) -> Bridge | None:
    """The bridge that this template needs, judged by its own text; None when rows go on from the prompt as they are."""
    messages, tools = PROBES[3][:2]
    try:
        prompt = template.render(messages[:1], tools, cue=True)
        whole = template.render(messages, tools, cue=False)
    except CannotRender:
        return None
    before, _, _ = whole.partition(ANSWER)
    found = OPENS.fullmatch(prompt[len(before) :]) if ANSWER in whole and prompt.startswith(before) else None
    if found is None or f"</{found[1]}>" not in template.source:
        return None
    return Bridge(found[0], f"\n</{found[1]}>\n\n")
