"""The catalogue: every text that a page uses is in it, and nothing that no page uses."""

import re
import string
from pathlib import Path

import pytest

from studio import runs
from studio.ui import status, texts

UI = Path(texts.__file__).parent
SOURCE = {path: path.read_text(encoding="utf-8") for path in UI.rglob("*.py") if not path.name.startswith("texts")}
CODE = "\n".join(SOURCE.values())
CODE = re.sub(r"\s+", " ", CODE).replace("'", '"')
USED = set(re.findall(r'(?<![.\w])(?:text|label)\( ?"([^"{}]+)"', CODE))
COMPOSED = {pattern.split("{")[0] for pattern in re.findall(r'f"([a-z]+\.[a-z_]*\{[^"]*)"', CODE)}
COMPOSED |= {f"{prefix}." for prefix in re.findall(r'\bwords\( ?"([a-z]+)"', CODE)}


def test_every_key_that_a_page_uses_is_in_the_catalogue() -> None:
    assert set(texts.EN) >= USED


def test_the_catalogue_holds_nothing_that_no_page_uses() -> None:
    named = {key for key in texts.EN if f'"{key}"' in CODE or key.startswith(tuple(COMPOSED))}
    assert set(texts.EN) - named - {"train.drop_click"} == set()


def test_every_status_has_a_word_and_a_shape() -> None:
    for one in (*runs.STATUSES, *status.BUSY, "ready", "unusable", "deleted"):
        assert texts.text(f"status.{one}")
        assert status.SHAPES[one]


def test_labels_that_the_browser_translates_have_no_values_to_fill_in() -> None:
    labels = set(re.findall(r'(?<![.\w])label\(\s*"([^"]+)"', CODE))
    assert labels
    for key in labels:
        assert not [name for _, name, _, _ in string.Formatter().parse(texts.EN[key]) if name], key
    with pytest.raises(KeyError):
        texts.label("no.such.key")


def test_pages_hold_no_sentences_of_their_own() -> None:
    """Text that a person reads starts with a capital and has a space: such a literal belongs in the catalogue."""
    allowed = re.compile(r"^(SSR mode|Segoe UI|SF Mono|Cascadia Code|Roboto Mono|Noto Sans|Input should|Value error)")
    for path, source in SOURCE.items():
        code = re.sub(r'"""[\s\S]*?"""', "", source)
        code = re.sub(r"#.*", "", code)
        found = [literal for literal in re.findall(r'"([A-Z][a-z]+ [^"\\]*)"', code) if not allowed.match(literal)]
        assert found == [], path
