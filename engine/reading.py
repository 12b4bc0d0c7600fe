"""How a chat template marks a thought: found by letting it write one."""

from engine.failure import Failure
from engine.prompts import Reader
from engine.render.renderer import Renderer
from engine.rows.model import Row


def reader_for(renderer: Renderer) -> Reader:
    """A reader that knows what this chat template writes around a thought."""
    tokenizer = renderer.tokenizer
    if not renderer.has_template:
        return Reader(tokenizer)
    thought = {"role": "assistant", "content": "zqanswerqz", "reasoning_content": "zqthoughtqz"}
    row = Row(kind="chat", shape="messages", messages=[{"role": "user", "content": "zqaskqz"}, thought])
    try:
        samples = renderer.render(row).samples
    except Failure:
        return Reader(tokenizer)
    for sample in samples:
        at = next((number for number, span in enumerate(sample.spans) if span.kind == "reasoning"), None)
        if at is None:
            continue
        around = [sample.spans[number] for number in (at - 1, at + 1) if number < len(sample.spans)]
        marks = [
            tokenizer.decode(sample.ids[span.start : span.end]).strip() if span.kind == "frame" else ""
            for span in around
        ]
        return Reader(tokenizer, *marks)
    return Reader(tokenizer)
