"""`python docs/chitchat.py FILE.jsonl`: the conversations of the package chitchat-dataset as a chat dataset.

Two people talk; whoever speaks first becomes the user, the other one the assistant. What one says in several messages
before the other answers is one turn of several lines. Messages without text are left out, and what nobody answered at
the end. `--rows` takes only the first conversations.
"""

import argparse
import json
from collections.abc import Iterable
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import chitchat_dataset


def messages(conversation: dict[str, Any]) -> list[dict[str, str]]:
    """One conversation in OpenAI's shape; empty when nobody answered."""
    said = [one for block in conversation["messages"] for one in block if one["text"].strip()]
    turns = [(who, "\n".join(one["text"] for one in of)) for who, of in groupby(said, key=lambda one: one["sender"])]
    pairs = len(turns) // 2 * 2
    return [{"role": "assistant" if at % 2 else "user", "content": text} for at, (_, text) in enumerate(turns[:pairs])]


def write(path: Path, conversations: Iterable[dict[str, Any]]) -> int:
    """Write a row per conversation that has an answer; how many there are."""
    rows = [found for one in conversations if (found := messages(one))]
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"messages": row}, ensure_ascii=False) + "\n" for row in rows)
    return len(rows)


def main() -> None:
    """Convert."""
    asked = argparse.ArgumentParser(prog="python docs/chitchat.py", description=(__doc__ or "").split("\n")[0])
    asked.add_argument("file", type=Path)
    asked.add_argument("--rows", type=int, help="conversations to take; all by default")
    given = asked.parse_args()
    conversations: dict[str, dict[str, Any]] = chitchat_dataset.Dataset()
    count = write(given.file, islice(conversations.values(), given.rows))
    print(f"{count} conversations in {given.file}")  # noqa: T201


if __name__ == "__main__":
    main()
