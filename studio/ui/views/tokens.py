"""Rows as the tokens that a model would learn, and the whole dataset as a line of figures and a histogram."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from studio import previews
from studio.db.tables import Dataset, Preview
from studio.ui import figures
from studio.ui.chrome import note
from studio.ui.html import Child, Html, el, many
from studio.ui.texts import text, words
from studio.ui.views import rows

KINDS = ("prompt", "cue", "reasoning", "answer", "tool_call", "frame", "stop")
WIDE, HIGH = 480, 72  # of the histogram, in its own units
MOST_PROBLEMS = 5
NEWLINE = "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}"


def learned(preview: Preview, total: int, at: int = 1) -> Html:
    """Rows as tokens, page by page, with a legend of their kinds; `at` is the row that is open."""
    found = preview.rows or []
    leaves = [row(one) for one in found]
    there = {span["kind"] for span in _spans(found) if "kind" in span}
    return many(
        rows.pager(text("learn.title"), leaves, total, [one["row"] for one in found], open_at=at),
        legend([kind for kind in KINDS if kind in there]),
    )


def _spans(found: Sequence[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    return (span for one in found for sample in one["samples"] for span in sample["spans"])


def row(one: Mapping[str, Any]) -> Html:
    """One row: its samples, what is not learned of it, and what to know."""
    if "raw" in one:
        return aside(one)
    samples = one["samples"]
    parts: list[Child] = []
    if not samples:
        parts.append(note("bad", text("learn.nothing")))
    if len(samples) > 1 and not samples[0].get("side"):
        parts.append(el("p", text("learn.sample", n=len(samples)), cls="quiet small"))
    parts += [sequence(sample) for sample in samples]
    if one.get("expected"):
        said = el("div", rows.cut(str(one["expected"])), cls="tokens expected", tabindex="0")
        parts.append(many(el("h3", text("learn.expected")), said))
    parts += [
        note("bad", text("learn.refused", turn=each["turn"] + 1), each["message"], each.get("fix") or "")
        for each in one.get("refusals") or ()
    ]
    parts += [note("warn", el("span", each["message"])) for each in one.get("warnings") or ()]
    return el("div", parts, cls="stack-8")


def sequence(sample: Mapping[str, Any]) -> Html:
    """A sample's tokens, one of two answers under the name of its side."""
    side = sample.get("side") or ""
    shown = el("div", [tokens(span) for span in sample["spans"]], cls=f"tokens {side}".strip(), tabindex="0")
    return many(el("h3", words("side", side)), shown) if side else shown


def aside(one: Mapping[str, Any]) -> Html:
    """A row that is set aside: why, and how the file has it."""
    why = [el("li", many(each["message"], " ", each.get("fix") or "")) for each in one.get("problems") or ()]
    pairs = [many(el("dt", name), el("dd", rows.cell(value))) for name, value in one["raw"].items()]
    said = note("bad", text("learn.aside"), el("ul", why) if why else None)
    return el("div", said, el("dl", pairs, cls="pairs raw") if pairs else None, cls="stack-8")


def tokens(span: Mapping[str, Any]) -> Html:
    """Tokens of one kind; the browser adds the id of the one that is pointed at."""
    if "left_out" in span:
        return el("span", text("learn.left_out", n=figures.count(span["left_out"])), cls="left-out")
    trained = bool(span["trained"])
    said = text("learn.trained") if trained else text("learn.not_trained")
    about = text("learn.token", kind=words("token", span["kind"]), role=words("role", span["role"]), trained=said)
    known = span["kind"] if span["kind"] in KINDS else "prompt"
    pieces = [el("i", visible(piece), data_t=number) for number, piece in zip(span["ids"], span["texts"], strict=False)]
    return el("span", pieces, cls=f"tok {known}{' trained' if trained else ''}", data_about=about)


def visible(piece: str) -> Html:
    """A token's text with its line breaks to be seen."""
    lines = [many(line) for line in piece.split("\n")]
    broken = many(el("u", NEWLINE, aria_hidden="true"), "\n")
    return Html(broken.join(lines))


def legend(kinds: Sequence[str]) -> Html:
    """What the looks mean, for the kinds that occur."""
    items = [
        el("li", el("span", words("token", kind), cls=f"tok {kind}{'' if kind in ('prompt', 'cue') else ' trained'}"))
        for kind in kinds
    ]
    return el("ul", items, cls="legend", aria_label=text("learn.legend")) if items else many()


def survey(
    preview: Preview,
    dataset: Dataset,
    max_length: int | None,
    *,
    drop: bool = False,
    unsaid: Sequence[str] = (),
) -> Html:
    """The dataset in a line, its lengths, and what to know about it, but for remarks with a code that is `unsaid`."""
    found = preview.survey or {}
    if "cuts" not in found:
        return many()
    max_length = previews.length_of(found, max_length)
    kept = previews.kept(found, max_length, drop=drop)
    cut = longer(kept)
    line = el(
        "p",
        el("b", trained(found, kept)),
        " · ",
        el("span", cut, cls="warned" if kept.cut + kept.dropped else None),
        " · ",
        text("learn.longest", n=figures.count(kept.longest)),
        cls="words",
        role="status",
    )
    of = previews.usable(dataset, found)
    partly = text("learn.first_rows", n=figures.count(kept.rows), of=figures.count(of))
    return el(
        "div",
        line,
        el("p", partly, cls="quiet small") if kept.rows < of else None,
        lengths(found["lengths"], max_length),
        notes(found, dataset, kept, max_length),
        remarks([one for one in found.get("warnings") or () if one["code"] not in unsaid]),
        cls="survey stack-8",
    )


def trained(found: Mapping[str, Any], kept: previews.Kept) -> str:
    """How much of it is trained; of prompts nothing is, their answers are sampled."""
    total = figures.count(kept.total)
    if found.get("kind") == "prompt":
        return text("learn.asked", total=total)
    share = f"{100 * kept.trained / kept.total:.0f} %" if kept.total else text("figure.none")
    return text("learn.share", share=share, total=total)


def longer(kept: previews.Kept) -> str:
    """What becomes of the rows above the maximum length."""
    if kept.dropped:
        return text("learn.dropped_one") if kept.dropped == 1 else text("learn.dropped", n=figures.count(kept.dropped))
    return text("learn.cut_one") if kept.cut == 1 else text("learn.cut", n=figures.count(kept.cut))


def lengths(found: Mapping[str, Any], max_length: int) -> Child:
    """The histogram of lengths, with the maximum drawn in where it falls within."""
    bars = found["histogram"]
    if not bars:
        return None
    bars = bars[max(next(number for number, bar in enumerate(bars) if bar["count"]) - 1, 0) :]
    start, end = bars[0]["from"], bars[-1]["to"]
    most, step = max(bar["count"] for bar in bars), WIDE / len(bars)
    drawn = [_bar(bar, number * step, step, HIGH * bar["count"] / most, max_length) for number, bar in enumerate(bars)]
    said = text("learn.lengths_words", **{name: figures.count(found[name]) for name in ("p50", "p99", "max")})
    svg = el("svg", drawn, viewBox=f"0 0 {WIDE} {HIGH}", preserveAspectRatio="none", aria_hidden="true")
    marked = _maximum((max_length - start) / (end - start), max_length) if start < max_length < end else None
    axis = el("div", el("span", figures.count(start)), el("span", figures.count(end)), cls="axis", aria_hidden="true")
    head = el("h3", text("learn.lengths"), " ", el("span", text("learn.lengths_unit"), cls="quiet small"))
    return el("figure", head, el("div", svg, marked, cls="plot"), axis, el("figcaption", said), cls="lengths")


def _bar(bar: Mapping[str, Any], x: float, width: float, height: float, max_length: int) -> Html:
    """One bar; those beyond the maximum look cut."""
    about = text("learn.bar", low=bar["from"], high=bar["to"] - 1, n=figures.count(bar["count"]))
    height = max(height, 1.5) if bar["count"] else 0
    path = f"M{x + 1:.1f} {HIGH}v{-height:.1f}h{width - 2:.1f}v{height:.1f}z"
    return el("g", el("title", about), el("path", d=path), cls="over" if bar["from"] >= max_length else None)


def _maximum(share: float, max_length: int) -> Html:
    side = "maximum left" if share > 0.5 else "maximum"
    label = el("span", text("learn.maximum", n=figures.count(max_length)))
    return el("div", label, cls=side, style=f"left:{100 * share:.2f}%")


def notes(found: Mapping[str, Any], dataset: Dataset, kept: previews.Kept, max_length: int) -> list[Child]:
    """What is not learned, and why."""
    made: list[Child] = []
    if kept.empty:
        key = "learn.empty_row" if kept.empty == 1 else "learn.empty_rows"
        made.append(note("warn", text(key, n=figures.count(kept.empty), length=figures.count(max_length))))
    counted = (dataset.report or {}).get("problem_counts") or {}
    refused = {code: n for code, n in (found.get("problem_counts") or {}).items() if code not in counted}
    if refused:
        n = sum(refused.values())
        title = text("learn.refusals_one") if n == 1 else text("learn.refusals", n=figures.count(n))
        listed = [one for one in found["problems"] if one["code"] in refused][:MOST_PROBLEMS]
        items = [el("li", rows.turn_to(one["row"]), f": {one['message']} {one['fix']}") for one in listed]
        made.append(note("bad", title, el("ul", items)))
    return made


def remarks(found: Sequence[Mapping[str, Any]]) -> list[Child]:
    """What rendering remarked, with the number of rows that it is about."""
    keys = ["learn.in_row" if one["rows"] == 1 else "learn.in_rows" for one in found]
    return [
        note("warn", text(key, n=figures.count(one["rows"])), one["message"])
        for key, one in zip(keys, found, strict=True)
    ]
