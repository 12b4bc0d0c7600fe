"""A preview as a worker stores it: tokens of every kind, a row with a refusal, and numbers."""

from typing import Any

Span = dict[str, Any]
FIRST = 151645


def span(kind: str, *texts: str, role: str = "assistant", trained: bool | None = None) -> Span:
    """Tokens of one kind, with made-up ids."""
    learned = kind not in ("prompt", "cue") if trained is None else trained
    ids = [FIRST + number for number in range(len(texts))]
    return {"kind": kind, "role": role, "turn": 1, "trained": learned, "ids": ids, "texts": list(texts)}


def rows(hostile: str) -> list[dict[str, Any]]:
    """Three rows."""
    asked = [
        span("prompt", "<|im_start|>", "system", "\n", role="template"),
        span("prompt", "Answer", " as", " JSON", ".", role="system"),
        span("prompt", "<|im_end|>", "\n", "<|im_start|>", "user", "\n", role="template"),
        span("prompt", "How", " do", " I", " return", " shoes", "?", role="user"),
        span("prompt", "<|im_end|>", "\n", role="template"),
        span("cue", "<|im_start|>", "assistant", "\n", role="template"),
    ]
    told = [
        span("frame", "<think>", "\n", role="template"),
        span("reasoning", "They", " want", " to", " send", " shoes", " back", "."),
        span("frame", "\n", "</think>", "\n\n", role="template"),
        span("answer", '{"', "intent", '":', ' "', "return", '",', "\n", ' "', "id", '":', " 4", "}"),
    ]
    called = span("tool_call", "<tool_call>", '{"name":', ' "label"', "}", "</tool_call>")
    stop = span("stop", "<|im_end|>", role="template")
    refusal = {
        "turn": 1,
        "code": "x",
        "message": "The chat template leaves out the tool call.",
        "fix": "Choose another.",
    }
    return [
        {"row": 1, "samples": [{"turn": 1, "spans": [*asked, *told, called, stop]}], "warnings": [], "refusals": []},
        {
            "row": 2,
            "samples": [{"turn": 1, "spans": [*asked[-1:], span("answer", hostile), {"left_out": 4096}, stop]}],
            "warnings": [{"code": "x", "message": hostile}],
            "refusals": [refusal],
        },
        {"row": 3, "samples": [], "warnings": [], "refusals": [refusal]},
        {
            "row": 4,
            "samples": [],
            "raw": {"messages": [], "source": hostile},
            "problems": [{"message": "The list of messages is empty.", "fix": "Write at least one turn."}],
        },
    ]


def pairs() -> list[dict[str, Any]]:
    """A preference row."""
    asked = span("prompt", "Write", " a", " haiku", role="user")
    stop = span("stop", "<|im_end|>", role="template")
    told = {"chosen": span("answer", "Soft", " rain"), "rejected": span("answer", "Haikus", " are", " short")}
    samples = [{"turn": 1, "side": side, "spans": [asked, answer, stop]} for side, answer in told.items()]
    return [{"row": 1, "kind": "preference", "samples": samples, "warnings": [], "refusals": []}]


def survey(count: int) -> dict[str, Any]:
    """Numbers of so many rows."""
    bars = [0, 4, 30, 75, 90, 50, 21, 10, 6, 8, 3, 1]
    return {
        "rendered": count,
        "cuts": {
            "every": 64,
            "total": [0, 18000, 23800, 24256],
            "trained": [0, 7000, 12500, 12818],
            "longest": [[100, count - 12], [140, 12]],
            "begins": [[30, count]],
        },
        "lengths": {
            "p50": 79,
            "p99": 134,
            "max": 143,
            "suggested": 192,
            "histogram": [{"from": 12 * at, "to": 12 * at + 12, "count": n} for at, n in enumerate(bars)],
        },
        "levels": [
            {"name": "default", "thinks": True, "cue": "<think>", "prompt_text": "", "samples": count},
            {"name": "low", "thinks": True, "prompt_text": "Reasoning: low", "samples": 0},
            {"name": "enable_thinking=False", "thinks": False, "prompt_text": "", "samples": 0},
        ],
        "bridge": {"opens": "<think>\n", "closes": "\n</think>\n\n"},
        "warnings": [
            {"code": "level_by_default", "rows": 12, "message": "How much reasoning?"},
            {"code": "date", "rows": count, "message": "The template was told the date. First in row 1."},
        ],
        "problems": [],
        "problem_counts": {},
    }
