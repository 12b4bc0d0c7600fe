"""`python -m engine.render.survey`: what each chat template in a folder can carry, found with the renderer itself."""

import argparse
import datetime
import importlib.util
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from engine.failure import Failure
from engine.render.levels import Level, Levels
from engine.render.renderer import Renderer
from engine.render.sample import CannotRender
from engine.render.template import ChatTemplate
from engine.rows.model import Message, Row

DAY = datetime.date(2026, 1, 1)
MARKER = re.compile(r"</?[^<>\s/=]{1,40}>")
ANSWER, NEXT, VALUE = "zqanswerqz", "zqnextqz", "zqvalueqz"
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Looks up a key.",
        "parameters": {"type": "object", "properties": {"key": {"type": "string", "description": "The key."}}},
    },
}
HEADER = """# What chat templates can carry

Every row was made by rendering conversations through the template with the product's own renderer, and asking it what
it can be told. `python -m engine.render.survey --write docs/templates.md` makes this page; without `--write` the
command prints the table, also for template files or folders of your own.

- **Plain**, **system**, **reasoning**, **tool call**, **words + call**, **two calls**: whether a conversation with it
  is learned; otherwise the reason by name. A turn that cannot be rendered faithfully is never learned in another form.
- **Samples**: how many training samples a conversation of three plain turns and one of three turns with reasoning
  become. One when the template leaves earlier turns as they are, three when serving shows each of them differently.
- **Levels**: what the template can be told about reasoning, its default first; a star marks a variable that takes any
  text. **History**: switches that only decide whether earlier reasoning stays.
- **Ends with**: the text that ends an answer, as the template writes it. What really stops a model is in its own
  generation config.

"""
COLUMNS = (
    "Template",
    "Plain",
    "System",
    "Reasoning",
    "Tool call",
    "Words + call",
    "Two calls",
    "Samples",
    "Levels",
    "History",
    "Ends with",
)


@dataclass(frozen=True)
class Support:
    """One template: what became of each conversation, what it can be told, and how it ends an answer."""

    name: str
    carries: dict[str, str]  # conversation -> "yes" or the code of the first refusal
    samples: tuple[int, int]
    levels: Levels
    stop: str

    def cells(self) -> list[str]:
        """The table's row."""
        names = ["yes" if code == "yes" else code.replace("_", " ") for code in self.carries.values()]
        levels = ", ".join(_named(one, self.levels) for one in self.levels.levels) if self.levels.variables else "-"
        history = ", ".join(f"`{one.name}`" for one in self.levels.history) or "-"
        ends = f"`{self.stop}`".replace("|", "\\|") if self.stop else "-"
        return [f"`{self.name}`", *names, " / ".join(map(str, self.samples)), levels, history, ends]


def _named(level: Level, levels: Levels) -> str:
    star = "*" if level.variables.keys() & set(levels.free_text) else ""
    return f"`{level.name}`{star}" if level.variables else "default"


def survey(name: str, source: str) -> Support:
    """Render conversations of every kind through a template. Failure when it does not end."""
    stops = ends_of(ChatTemplate(byte_tokenizer(source, []), DAY))
    tokenizer = byte_tokenizer(source, stops)
    ids: Any = tokenizer.convert_tokens_to_ids(stops)
    renderer = Renderer(tokenizer, ids or [tokenizer.eos_token_id], frozen_date=DAY)
    carries: dict[str, str] = {}
    samples: dict[str, int] = {}
    for kind, row in conversations().items():
        rendered = renderer.render(row)
        samples[kind] = len(rendered.samples)
        carries[kind] = rendered.refusals[0].code if rendered.refusals else "yes"
    shown = {kind: code for kind, code in carries.items() if not kind.startswith("three")}
    three = samples["three plain turns"], samples["three thoughts"]
    return Support(name, shown, three, renderer.levels, stops[0] if stops else "")


def byte_tokenizer(source: str, stops: list[str]) -> PreTrainedTokenizerFast:
    """One token per byte, and one for each stop."""
    vocabulary = {letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(stop, special=True, normalized=False) for stop in stops])
    made = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<bos>", eos_token="<eos>")
    made.chat_template = source
    return made


def ends_of(template: ChatTemplate) -> list[str]:
    """Markers that end an answer and a tool call, as far as rendered text tells."""
    asked: Message = {"role": "user", "content": "hi"}
    answered: list[Message] = [asked, {"role": "assistant", "content": ANSWER}]
    call = {"type": "function", "id": "call00001", "function": {"name": "lookup", "arguments": {"key": VALUE}}}
    calling: list[Message] = [asked, {"role": "assistant", "tool_calls": [call]}]
    result: Message = {"role": "tool", "name": "lookup", "tool_call_id": "call00001", "content": NEXT}
    found: list[str] = []
    for talk, follow, word in ((answered, {"role": "user", "content": NEXT}, ANSWER), (calling, result, VALUE)):
        own = _after(template, talk, word)
        markers = MARKER.findall(own.strip().partition("\n")[0] if talk is answered else own)
        if talk is calling and found and found[0] in markers:
            continue
        if markers:
            found.append(markers[-1])
            continue
        header = _after(template, [*talk, follow], word).partition(NEXT)[0]
        found += MARKER.findall(header)[:1]
    return list(dict.fromkeys(found))


def _after(template: ChatTemplate, messages: list[Message], word: str) -> str:
    """What follows the last `word` in the rendered text."""
    try:
        return template.render(messages, [TOOL] if word == VALUE else [], cue=False).rpartition(word)[2]
    except CannotRender:
        return ""


def conversations() -> dict[str, Row]:
    """A row of each kind."""

    def user(text: str) -> Message:
        return {"role": "user", "content": text}

    def said(text: str, thought: str = "") -> Message:
        return {"role": "assistant", "content": text} | ({"reasoning_content": thought} if thought else {})

    def called(*keys: str, content: str = "") -> Message:
        calls = [
            {"type": "function", "id": f"call0000{at}", "function": {"name": "lookup", "arguments": {"key": key}}}
            for at, key in enumerate(keys, start=1)
        ]
        return {"role": "assistant", "tool_calls": calls} | ({"content": content} if content else {})

    def result(text: str, at: int = 1) -> Message:
        return {"role": "tool", "name": "lookup", "tool_call_id": f"call0000{at}", "content": text}

    ends = [said("The answer is blue.")]
    plain = [
        user("Ask one?"),
        said("Say one."),
        user("Ask two?"),
        said("Say two."),
        user("Ask three?"),
        said("Say three."),
    ]
    thoughts = [
        one if one["role"] == "user" else {**one, "reasoning_content": f"Why {one['content']}"} for one in plain
    ]
    made = {
        "plain": [user("Which colour?"), *ends],
        "system": [{"role": "system", "content": "Be brief."}, user("Which colour?"), *ends],
        "reasoning": [user("Which colour?"), said("It is blue.", "Skies look that way.")],
        "tool call": [user("Which colour?"), called("sky"), result("blue"), *ends],
        "words and a call": [user("Which colour?"), called("sky", content="Wait a bit."), result("blue"), *ends],
        "two calls": [user("Which colours?"), called("sky", "sea"), result("blue"), result("green", 2), *ends],
        "three plain turns": plain,
        "three thoughts": thoughts,
    }
    return {
        kind: Row(kind="chat", shape="messages", messages=messages, tools=[TOOL] if "call" in kind else [])
        for kind, messages in made.items()
    }


def installed() -> list[Path]:
    """The templates that come with the installed trl, without the variants that it patches for its own training."""
    found = importlib.util.find_spec("trl")
    if found is None or not found.submodule_search_locations:
        advice = ["Name a folder of .jinja files.", "Or install the packages that the tests need."]
        raise Failure("no_templates", "There are no templates to look at.", advice)
    folder = Path(found.submodule_search_locations[0]) / "chat_templates"
    return [path for path in folder.glob("*.jinja") if not path.stem.endswith("_training")]


def table(paths: Iterable[Path]) -> str:
    """The survey of these files as a Markdown table."""
    rows = [survey(path.stem, path.read_text(encoding="utf-8")).cells() for path in sorted(paths)]
    lines = [list(COLUMNS), ["---"] * len(COLUMNS), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def main(arguments: list[str] | None = None) -> int:
    """Print the table, write the page, or say whether the page is as it would be written (exit status 1: it is not)."""
    asked = argparse.ArgumentParser(prog="python -m engine.render.survey", description=__doc__)
    asked.add_argument("templates", nargs="*", type=Path, help="template files or folders; those of trl by default")
    asked.add_argument("--write", type=Path, help="write the page to this file")
    asked.add_argument("--check", type=Path, help="compare the page with this file")
    given = asked.parse_args(arguments)
    named = [file for path in given.templates for file in (path.glob("*.jinja") if path.is_dir() else [path])]
    try:
        text = table(named or installed())
    except Failure as failure:
        sys.stderr.write(f"{failure}\n")
        return 1
    if given.check:
        fresh = given.check.is_file() and given.check.read_text(encoding="utf-8") == HEADER + text
        sys.stderr.write("" if fresh else f"{given.check} is out of date; run the same with --write.\n")
        return 0 if fresh else 1
    if given.write:
        given.write.write_text(HEADER + text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
