"""How a chat template marks a thought: found by letting it write one."""

from engine.failure import Failure
from engine.prompts import Reader
from engine.render.renderer import Renderer
from engine.render.sample import Sample
from engine.rows.model import Row

ASKED = {"role": "user", "content": "zqaskqz"}
THOUGHT = {"role": "assistant", "content": "zqanswerqz", "reasoning_content": "zqthoughtqz"}


def reader_for(renderer: Renderer) -> Reader:
    """A reader that knows what this chat template writes around a thought, or its prompt before one."""
    tokenizer = renderer.tokenizer
    if not renderer.has_template:
        return Reader(tokenizer)
    try:
        samples = renderer.render(Row(kind="chat", shape="messages", messages=[ASKED, THOUGHT])).samples
    except Failure:
        return Reader(tokenizer)
    found = next((reader for sample in samples if (reader := _reader(renderer, sample))), None)
    bridge = renderer.offered_bridge
    if found is None and bridge is not None:  # a thought that only the prompt opens, and no row closes
        closes = tuple(tokenizer.encode(bridge.closes, add_special_tokens=False))
        return Reader(tokenizer, bridge.opens.strip(), bridge.closes.strip(), bridge.opens, closes)
    return found or Reader(tokenizer)


def _reader(renderer: Renderer, sample: Sample) -> Reader | None:
    """What stands around the reasoning of a sample; None where it has none."""
    at = next((number for number, span in enumerate(sample.spans) if span.kind == "reasoning"), None)
    if at is None or at + 1 == len(sample.spans):
        return None
    before, after = sample.spans[at - 1], sample.spans[at + 1]
    opens, closes = (sample.ids[span.start : span.end].tolist() for span in (before, after))
    opening, cue = (renderer.tokenizer.decode(opens) if before.kind == kind else "" for kind in ("frame", "cue"))
    closing = renderer.tokenizer.decode(closes).strip() if after.kind == "frame" else ""
    return Reader(renderer.tokenizer, opening.strip(), closing, cue, tuple(closes) if closing else ())
