"""A status as word, shape and colour, and the colour that a run keeps on every page."""

import zlib

from studio.ui.html import Html, el
from studio.ui.texts import text

SHAPES = {
    "draft": "◇",
    "queued": "○",
    "preparing": "◔",
    "running": "●",
    "succeeded": "✓",
    "failed": "✕",
    "cancelled": "⊘",
    "paused": "‖",
    "checking": "◔",
    "fetching": "◔",
    "converting": "◔",
    "ready": "✓",
    "unusable": "✕",
    "deleted": "⊘",
}
BUSY = frozenset({"checking", "fetching", "converting"})
COLOURS = 12
DASHES = ("", "6 4", "2 3", "9 3 2 3")


def badge(status: str, word: str = "") -> Html:
    """The status of a run, dataset or model; the shape is decoration for the word."""
    return el(
        "span",
        el("span", SHAPES.get(status, "◇"), cls="shape", aria_hidden="true"),
        word or text(f"status.{status}"),
        cls=f"badge is-{status}",
    )


def colour(run_id: str) -> int:
    """A number in 0..11 that depends on the run's id alone, so that a run looks the same on every page."""
    return zlib.crc32(run_id.encode()) % COLOURS


def swatch(run_id: str, dash: str = "") -> Html:
    """A short line in the run's colour, as in the chart."""
    return el("span", cls=f"swatch run-{colour(run_id)}{' dashed' if dash else ''}", aria_hidden="true")


def lines(run_ids: list[str]) -> dict[str, tuple[str, str]]:
    """Colour and dash of each run; two runs that share a colour differ by their dash."""
    taken: dict[int, int] = {}
    styles: dict[str, tuple[str, str]] = {}
    for run_id in run_ids:
        number = colour(run_id)
        styles[run_id] = (f"var(--run-{number})", DASHES[taken.get(number, 0) % len(DASHES)])
        taken[number] = taken.get(number, 0) + 1
    return styles
