"""Which of the shapes in use a row has, decided by its content, and the row in the one form that training reads."""

import difflib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from engine.rows.beside import Columns, system_of, template_kwargs_of, tools_of
from engine.rows.declared import AS_SEEN, BESIDE, Declared
from engine.rows.messages import (
    Faults,
    check_conversation,
    check_turns,
    checked_text,
    from_json_text,
    read_messages,
)
from engine.rows.model import Kind, Message, Problem, Row, cut

CONVERSATIONS = ("messages", "conversations", "conversation", "dialogue", "dialog", "turns", "chat")
PAIRS = (
    ("prompt", "completion"),
    ("prompt", "response"),
    ("prompt", "output"),
    ("prompt", "answer"),
    ("instruction", "output"),
    ("instruction", "response"),
    ("instruction", "answer"),
    ("question", "answer"),
    ("question", "response"),
    ("query", "response"),
    ("query", "answer"),
    ("input", "output"),
)
PROMPTS = ("prompt", "question", "query", "instruction", "problem", "input")
REFERENCES = ("ground_truth", "solution", "reference", "answer", "target")
KNOWN = {"chosen", "rejected", "text", *CONVERSATIONS, *(name for pair in PAIRS for name in pair)}
RATING = "label"
RATINGS = {"true": True, "false": False, "1": True, "0": False}
HOLDS = frozenset({*KNOWN, *PROMPTS, *REFERENCES, *BESIDE, RATING})
"""Everything that a column can be declared to hold."""
Present = Callable[..., bool]
SHAPES_HELP = (
    "Name the columns “messages”, “conversations”, “instruction” and “output”, “prompt” and “completion”, "
    "“question” and “answer”, “chosen” and “rejected”, “prompt”, or “text”; “label” rates an answer true or false."
)


def normalise(value: dict[str, Any], declared: Declared = AS_SEEN) -> Row | list[Problem]:
    """The row, or everything that is wrong with it (not yet placed: `row` is 0).

    Read as `declared` where the row has what that needs, else by what it holds.
    """
    faults = Faults()
    row = None
    if declared and not declared.missing(value):
        row = _by_shape(declared.of(value), faults, declared.kind)
    if row is None:
        row = _by_content(AS_SEEN.of(value), faults)
    return faults.problems if faults.problems or row is None else row


def fits(value: dict[str, Any], declared: Declared) -> bool:
    """Whether a row has what is declared, be it right or wrong."""
    return not declared.missing(value) and _by_shape(declared.of(value), Faults(), declared.kind) is not None


def _by_content(columns: Columns, faults: Faults) -> Row | None:
    """A row as its columns show; None with a fault noted when they show nothing known."""
    row = _by_shape(columns, faults, None)
    if row is not None:
        return row
    unnamed = _unnamed_conversation(columns)
    if unnamed:
        return _conversation(columns, unnamed, faults)
    _unknown(columns, faults)
    return None


def _by_shape(columns: Columns, faults: Faults, kind: Kind | None) -> Row | None:
    """Columns that are null count only when nothing else fits."""
    readers = [reader for of, reader in READERS.items() if kind in (None, of)]
    for present in (columns.filled, columns.named):
        for reader in readers:
            row = reader(columns, present, faults)
            if row is not None:
                return row
    if kind == "prompt":  # rows that hold more than a prompt, of which it is declared to be what matters
        asked = next((name for name in (*PROMPTS, *CONVERSATIONS) if columns.filled(name)), "")
        return _prompt(columns, asked, faults) if asked else None
    return None


def _chat(columns: Columns, present: Present, faults: Faults) -> Row | None:
    """A conversation, else a question with its answer."""
    for name in filter(present, CONVERSATIONS):
        return _conversation(columns, name, faults)
    for pair in PAIRS:
        if present(*pair):
            return _pair(columns, pair, faults)
    return None


def _rated(columns: Columns, present: Present, faults: Faults) -> Row | None:
    """A chat whose last answer is marked as good or bad; a label that says neither marks nothing."""
    label = RATINGS.get(str(columns.values[RATING]).strip().lower()) if present(RATING) else None
    row = None if label is None else _chat(columns, present, faults)
    if row is None:
        return None
    if row.messages and row.messages[-1]["role"] != "assistant":
        faults.add("no_answer", "The conversation does not end with the answer that is rated.", "End it with one.")
    return replace(row, kind="rated", label=label)


def _alone(columns: Columns, present: Present, faults: Faults) -> Row | None:
    """A prompt without an answer beside it."""
    found = next(filter(present, ("prompt", "question", "query")), "")
    return _prompt(columns, found, faults) if found else None


def _unnamed_conversation(columns: Columns) -> str:
    """A column of another name that clearly holds a conversation, or ''."""
    for name, value in columns.values.items():
        value = from_json_text(value)
        if isinstance(value, list) and value and isinstance(value[0], dict):
            first = value[0]
            if {"role", "content"} <= first.keys() or {"from", "value"} <= first.keys():
                return name
    return ""


def _unknown(columns: Columns, faults: Faults) -> None:
    """No shape fits: say what is there and what comes close."""
    names = [name for name in columns.values if name]
    missing = [pair[1] for pair in PAIRS if columns.filled(pair[0])]
    if missing:
        have = next(pair[0] for pair in PAIRS if columns.filled(pair[0]))
        message = f"There is “{have}” but no answer beside it."
        faults.add("no_answer", message, f"Add a column “{missing[0]}”.")
        return
    close = ((name, difflib.get_close_matches(name, KNOWN, n=1, cutoff=0.75)) for name in names)
    hint = next((f"Did you mean “{found[0]}” instead of “{cut(name, 40)}”? " for name, found in close if found), "")
    listed = ", ".join(f"“{cut(name, 40)}”" for name in names[:8]) + (" …" if len(names) > 8 else "")
    message = f"No known columns; found {listed}." if names else "The row has no columns."
    faults.add("unknown_columns", message, hint + SHAPES_HELP)


def _conversation(columns: Columns, name: str, faults: Faults) -> Row:
    """`messages` or `conversations`, under whatever name."""
    messages = read_messages(columns.values[name], columns.said(name), faults)
    if messages and messages[0]["role"] not in ("system", "developer"):
        messages = system_of(columns, faults) + messages
    if messages:
        check_conversation(messages, faults)
    shape = "messages" if name == "messages" else "conversations"
    return Row(kind="chat", shape=shape, messages=messages, **_beside(columns, faults))


def _beside(columns: Columns, faults: Faults) -> dict[str, Any]:
    """What any row but plain text may have besides its turns, as fields of Row."""
    held = from_json_text(columns.values.get("metadata"))
    return {
        "tools": tools_of(columns, faults),
        "chat_template_kwargs": template_kwargs_of(columns, faults),
        "metadata": held if isinstance(held, dict) else {},
    }


def _turns(value: Any, where: str, role: str, faults: Faults) -> list[Message]:
    """A prompt or answer as turns: text becomes one turn of `role`, a list of messages stays one."""
    held = from_json_text(value)
    if isinstance(held, list) and held and isinstance(held[0], dict) and ("role" in held[0] or "from" in held[0]):
        return read_messages(held, where, faults)
    if value is None:
        faults.add(f"empty_{'answer' if role == 'assistant' else 'prompt'}", f"{where} is empty.", "Fill it in.")
        return []
    text = checked_text(value, where, faults)
    if text is None:
        return []
    if not text.strip():
        code = "empty_answer" if role == "assistant" else "empty_prompt"
        faults.add(code, f"{where} is empty.", "Fill it in, or remove the row.")
        return []
    return [{"role": role, "content": text}]


def _pair(columns: Columns, pair: tuple[str, str], faults: Faults) -> Row:
    """A question column and an answer column; Alpaca's `input` goes below its `instruction`."""
    asked, answered = pair
    question = columns.values[asked]
    extra = columns.values.get("input") if asked == "instruction" else None
    if extra is not None and extra != "":
        text = checked_text(extra, columns.said("input"), faults)
        if text and text.strip() and isinstance(question, str):
            question = f"{question}\n\n{text}" if question.strip() else text
    prompt = _turns(question, columns.said(asked), "user", faults)
    answer = _turns(columns.values[answered], columns.said(answered), "assistant", faults)
    if prompt and answer:
        # only the answer column is learned, also when the prompt column is a conversation with answers of its own
        prompt = [{**turn, "weight": 0} if turn["role"] == "assistant" else turn for turn in prompt]
        system = [] if prompt[0]["role"] == "system" else system_of(columns, faults)
        prompt = system + prompt
        check_conversation(prompt + answer, faults)
    shape = {"instruction": "instruction", "prompt": "prompt_completion"}.get(asked, "question_answer")
    return Row(kind="chat", shape=shape, messages=prompt + answer, **_beside(columns, faults))


def _text(columns: Columns, present: Present, faults: Faults) -> Row | None:
    """Plain text to continue."""
    if not present("text"):
        return None
    value = columns.values["text"]
    text = checked_text(value, columns.said("text"), faults) if value is not None else ""
    if text is not None and not text.strip():
        faults.add("empty_text", "“text” is empty.", "Fill it in, or remove the row.")
    return Row(kind="text", shape="text", text=text or "")


def _prompt(columns: Columns, name: str, faults: Faults) -> Row:
    """A prompt that is answered by sampling, with a reference answer where there is one."""
    prompt = _turns(columns.values[name], columns.said(name), "user", faults)
    if prompt:
        prompt = ([] if prompt[0]["role"] == "system" else system_of(columns, faults)) + prompt
        check_turns([{**turn, "weight": 0} if turn["role"] == "assistant" else turn for turn in prompt], faults)
        if prompt[-1]["role"] == "assistant":
            faults.add("ends_in_answer", f"“{name}” ends with an assistant turn.", "End it with the user's turn.")
    answer = next((columns.values[key] for key in REFERENCES if columns.filled(key)), "")
    return Row(kind="prompt", shape="prompt", prompt=prompt, answer=str(answer), **_beside(columns, faults))


def _preference(columns: Columns, present: Present, faults: Faults) -> Row | None:
    """A better and a worse answer to the same prompt; shared first turns become the prompt."""
    if not present("chosen", "rejected"):
        return None
    chosen = _turns(columns.values["chosen"], columns.said("chosen"), "assistant", faults)
    rejected = _turns(columns.values["rejected"], columns.said("rejected"), "assistant", faults)
    asked = next((name for name in ("prompt", "question", "instruction", "query") if columns.filled(name)), "")
    prompt = _turns(columns.values[asked], columns.said(asked), "user", faults) if asked else []
    if faults.problems:
        return Row(kind="preference", shape="preference")
    prompt, chosen, rejected = _split(prompt, chosen, rejected)
    if not prompt:
        message = "There is no prompt: “chosen” and “rejected” share no first turns."
        faults.add("no_prompt", message, "Add a column “prompt”, or begin both with the same user turn.")
    elif prompt[0]["role"] != "system":
        prompt = system_of(columns, faults) + prompt
    for name, answer in (("chosen", chosen), ("rejected", rejected)):
        if not answer or answer[0]["role"] != "assistant":
            message = f"“{name}” does not go on with an assistant turn after the shared prompt."
            faults.add("no_assistant", message, "Let “chosen” and “rejected” differ in the answer only.")
        else:
            check_turns(answer, faults)
    if chosen and chosen == rejected:
        faults.add("same_answers", "“chosen” and “rejected” are the same.", "Remove the row.")
    if prompt:
        check_turns([{**turn, "weight": 0} if turn["role"] == "assistant" else turn for turn in prompt], faults)
    return Row("preference", "preference", prompt=prompt, chosen=chosen, rejected=rejected, **_beside(columns, faults))


def _split(
    prompt: list[Message], chosen: list[Message], rejected: list[Message]
) -> tuple[list[Message], list[Message], list[Message]]:
    """Prompt and the two answers. Turns that both sides share go to the prompt, up to the last turn of either."""
    shared = 0
    while shared < min(len(chosen), len(rejected)) - 1 and chosen[shared] == rejected[shared]:
        shared += 1
    common, chosen, rejected = chosen[:shared], chosen[shared:], rejected[shared:]
    repeats = [turn for turn in common if turn["role"] not in ("system", "developer")]
    asked = [turn for turn in prompt if turn["role"] not in ("system", "developer")]
    if common and repeats[: len(asked)] == asked:
        system = prompt[: len(prompt) - len(asked)] if len(repeats) == len(common) else []
        return system + common, chosen, rejected  # the prompt column only repeats the shared turns
    return prompt + common, chosen, rejected


READERS: dict[Kind, Callable[[Columns, Present, Faults], Row | None]] = {
    "preference": _preference,
    "rated": _rated,
    "chat": _chat,
    "text": _text,
    "prompt": _alone,
}
"""How rows of each kind are read where their columns are there; those that say more come first."""
