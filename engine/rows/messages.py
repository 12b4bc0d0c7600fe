"""Conversations: from the spellings in use (OpenAI, ShareGPT) to one, with every fault named by turn."""

import difflib
import json
from typing import Any

from engine.rows.model import Message, Problem, cut, name_of_type

ROLES = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "function_call": "assistant",
    "tool_call": "assistant",
    "tool": "tool",
    "function": "tool",
    "ipython": "tool",
    "observation": "tool",
    "function_response": "tool",
    "tool_response": "tool",
}
CALLS = ("function_call", "tool_call")
REASONING = ("reasoning_content", "thinking", "reasoning")
CONTENT_PARTS = "Only text can be learned from; remove the other parts."


class Faults:
    """Collects what is wrong with one row, all of it."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def add(self, code: str, message: str, fix: str = "") -> None:
        """Note a fault."""
        self.problems.append(Problem(code=code, message=message, fix=fix))

    def wrong_type(self, where: str, value: object, expected: str = "text") -> None:
        """Note a value of the wrong type, and offer the text form of one that has an obvious one."""
        fix = f"Write {expected} there."
        if expected == "text" and isinstance(value, int | float | bool):
            fix = f"Put it in quotes to use it as text: {json.dumps(str(value))}."
        elif expected == "text" and isinstance(value, list | dict):
            fix = "Turn it into text (join a list, or write an object as JSON text)."
        self.add("wrong_type", f"{where} is {name_of_type(value)}, not {expected}.", fix)


def valid_text(value: str) -> bool:
    """Whether text is Unicode that can be written to a file; broken bytes and half characters are not."""
    if value.isascii():
        return True
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def from_json_text(value: Any) -> Any:
    """A list or object that was stored as JSON text (in a CSV cell) as that list or object; anything else as it is."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("[", "{"):
        return value
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return value
    return found if isinstance(found, list | dict) else value


def read_messages(value: Any, where: str, faults: Faults) -> list[Message]:
    """The turns of a conversation, normalised; faults go to `faults`."""
    value = from_json_text(value)
    if not isinstance(value, list):
        faults.wrong_type(where, value, "a list of messages")
        return []
    if not value:
        faults.add("no_turns", f"{where} is empty.", "Write at least one user and one assistant turn.")
        return []
    messages = [_message(turn, f"Turn {number}", faults) for number, turn in enumerate(value, start=1)]
    return [message for message in messages if message]


def _message(turn: Any, where: str, faults: Faults) -> Message:
    """One turn, or {} with a fault noted."""
    if not isinstance(turn, dict):
        faults.wrong_type(where, turn, "an object with role and content")
        return {}
    written = turn.get("role", turn.get("from"))
    role = _role(written, where, faults)
    if not role:
        return {}
    content = turn.get("content", turn.get("value"))
    message: Message = {"role": role}
    calls = turn.get("tool_calls")
    if str(written).lower() in CALLS:
        calls, content = _calls_of_text(content), None
    text = _content(content, where, faults, needed=role != "assistant" or not calls)
    if text is not None:
        message["content"] = text
    weight = _weight(turn.get("weight"), where, faults)
    if role == "assistant":
        _assistant(message, turn, calls, where, faults)
        if weight is not None:
            message["weight"] = weight
    for key in ("name", "tool_call_id"):
        if isinstance(turn.get(key), str):
            message[key] = turn[key]
    return message


def _role(written: Any, where: str, faults: Faults) -> str:
    """The role in OpenAI's words, or '' with a fault noted."""
    if not isinstance(written, str):
        what = "has no role" if written is None else f"has {name_of_type(written)} as its role"
        faults.add("unknown_role", f"{where} {what}.", "Write “user”, “assistant”, “system” or “tool”.")
        return ""
    role = ROLES.get(written.strip().lower(), "")
    if not role:
        close = difflib.get_close_matches(written.strip().lower(), ROLES, n=1)
        fix = f"Did you mean “{close[0]}”?" if close else "Write “user”, “assistant”, “system” or “tool”."
        faults.add("unknown_role", f"{where} has the unknown role “{cut(written, 40)}”.", fix)
    return role


def _content(content: Any, where: str, faults: Faults, *, needed: bool) -> str | None:
    """A turn's text; OpenAI's text parts are joined."""
    if content is None:
        if needed:
            faults.add("no_content", f"{where} has no content.", "Write its text under “content”.")
        return None
    if isinstance(content, list) and content and all(isinstance(part, dict) and "type" in part for part in content):
        other = next((part["type"] for part in content if not isinstance(part.get("text"), str)), None)
        if other is not None:
            faults.add("not_text", f"{where} holds a part of type “{cut(other, 40)}”.", CONTENT_PARTS)
            return None
        content = "".join(part["text"] for part in content)
    return checked_text(content, f"The content of {where[0].lower()}{where[1:]}", faults)


def checked_text(value: Any, where: str, faults: Faults) -> str | None:
    """`value` when it is valid text, else None with a fault noted."""
    if not isinstance(value, str):
        faults.wrong_type(where, value)
        return None
    if not valid_text(value):
        faults.add("not_utf8", f"{where} is not valid Unicode text.", "Save the file as UTF-8.")
        return None
    return value


def _assistant(message: Message, turn: Message, calls: Any, where: str, faults: Faults) -> None:
    """What only assistant turns have: reasoning and tool calls."""
    reasoning = next((turn[key] for key in REASONING if turn.get(key) not in (None, "")), None)
    if reasoning is not None:
        text = checked_text(reasoning, f"The reasoning of {where[0].lower()}{where[1:]}", faults)
        if text is not None:
            message["reasoning_content"] = text
    if calls is not None and calls != []:
        found = _tool_calls(calls, where, faults)
        if found:
            message["tool_calls"] = found


def _weight(weight: Any, where: str, faults: Faults) -> int | None:
    """0 or 1, or None where there is no weight or a wrong one."""
    if weight is None or (weight in (0, 1) and not isinstance(weight, bool)):
        return None if weight is None else int(weight)
    fix = "Write 1 to learn this turn, 0 to only read it."
    faults.add("bad_weight", f"{where} has the weight {cut(weight, 20)}, not 0 or 1.", fix)
    return None


def _calls_of_text(content: Any) -> Any:
    """ShareGPT's `function_call` turn: the calls as JSON text."""
    value = from_json_text(content)
    return [value] if isinstance(value, dict) else value


def _tool_calls(calls: Any, where: str, faults: Faults) -> list[dict[str, Any]]:
    """Tool calls in OpenAI's shape; arguments stay text or object as they are written."""
    calls = from_json_text(calls)
    if not isinstance(calls, list):
        faults.wrong_type(f"tool_calls of {where[0].lower()}{where[1:]}", calls, "a list of calls")
        return []
    found = []
    for number, call in enumerate(calls, start=1):
        place = f"Call {number} of {where[0].lower()}{where[1:]}"
        function = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
            faults.add("bad_tool_call", f"{place} has no function name.", 'Write {"function": {"name", "arguments"}}.')
            continue
        arguments = function.get("arguments", function.get("parameters"))
        if arguments is None:
            arguments = {}
        if not isinstance(arguments, str | dict):
            faults.wrong_type(
                f"The arguments of {place[0].lower()}{place[1:]}", arguments, "an object or its JSON text"
            )
            continue
        one: dict[str, Any] = {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
        if isinstance(call.get("id"), str):
            one = {"id": call["id"], **one}
        found.append(one)
    return found


def check_conversation(messages: list[Message], faults: Faults) -> None:
    """What must hold for a conversation to be learned from."""
    answers = [message for message in messages if message["role"] == "assistant"]
    if not answers:
        faults.add("no_assistant", "The conversation has no assistant turn.", "Add the answer that is to be learned.")
    elif all(message.get("weight") == 0 for message in answers):
        faults.add("nothing_trained", "Every assistant turn has weight 0.", "Give one that is to be learned weight 1.")
    check_turns(messages, faults)


def check_turns(messages: list[Message], faults: Faults) -> None:
    """Empty turns, and the same side speaking twice in a row."""
    before = ""
    for number, message in enumerate(messages, start=1):
        role = message["role"]
        if role == before and role in ("user", "assistant"):
            text = f"Turns {number - 1} and {number} are both from the {role}."
            faults.add("repeated_role", text, "Join them into one turn.")
        before = role
        if "content" not in message or message["content"].strip():
            continue  # content that is missing or wrong was noted before
        if role == "user":
            faults.add("empty_prompt", f"Turn {number} (user) is empty.", "Write its text, or remove the row.")
        if role == "assistant" and "tool_calls" not in message and message.get("weight") != 0:
            faults.add("empty_answer", f"Turn {number} (assistant) is empty.", "Write the answer, or remove the row.")
