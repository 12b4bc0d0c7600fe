"""Names that people give: free text, shown and never used as a path."""

import math
import unicodedata
from typing import Any

from studio.errors import Invalid

LONGEST = 300


def label(text: str, param: str = "name") -> str:
    """The text on one line, without control characters (PostgreSQL stores no NUL); Invalid above 300 characters."""
    clean = "".join(" " if unicodedata.category(character) in ("Cc", "Cs") else character for character in text).strip()
    if len(clean) > LONGEST:
        raise Invalid(f"The name has {len(clean)} characters; at most {LONGEST} are kept.", param=param)
    return clean


def shortened(text: str) -> str:
    """The text as a label, cut where it is too long: for names that a program made or a file brought along."""
    return label(text[: 4 * LONGEST])[:LONGEST] if len(text) <= LONGEST else label(text[: LONGEST - 1]) + "…"


def storable(text: str) -> str:
    """Text of a program's output without what a database refuses."""
    return text.replace("\x00", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode("utf-8")


def storable_json(value: Any) -> Any:
    """A JSON value that every database takes: no NaN, no infinity, no NUL, no half characters."""
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {storable(str(key)): storable_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [storable_json(item) for item in value]
    return value
