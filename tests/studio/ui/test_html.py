"""Markup: text stays text, whatever it holds."""

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from studio.ui import figures
from studio.ui.html import Html, el, link, many, url
from studio.ui.views import rows

ATTACKS = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "{{constructor}} ${value}",
    "' onmouseover='x",
]


class Tags(HTMLParser):
    """Collects the tags and attributes of markup."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, tuple[str, ...]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, tuple(name for name, _ in attrs)))


def tags(markup: str) -> list[tuple[str, tuple[str, ...]]]:
    parser = Tags()
    parser.feed(markup)
    return parser.found


@given(st.one_of(st.text(), st.sampled_from(ATTACKS)))
def test_text_never_becomes_markup(words: str) -> None:
    assert tags(el("p", words, title=words, data_x=words)) == [("p", ("title", "data-x"))]


def test_what_is_markup_already_is_left_alone() -> None:
    assert el("p", el("b", "<"), None, ["a", 1]) == "<p><b>&lt;</b>a1</p>"
    assert many("<", Html("<br>")) == "&lt;<br>"


def test_an_id_cannot_leave_its_place_in_a_link() -> None:
    assert url("/run", id='x" onclick="y&z=/../') == "/run?id=x%22+onclick%3D%22y%26z%3D%2F..%2F"
    assert url("/compare", runs="run-1,run-2") == "/compare?runs=run-1,run-2"
    assert tags(link("x", "/run", id=ATTACKS[1])) == [("a", ("href",))]


def test_rows_of_strangers_are_shown_as_text() -> None:
    for attack in ATTACKS:
        row = {"messages": [{"role": attack, "content": attack}, {"role": "assistant", "content": [{"type": attack}]}]}
        shown = rows.learned([row], 1) + rows.raw([{attack: attack}], [attack])
        names = {tag for tag, _ in tags(shown)}
        assert names <= {"section", "div", "h2", "span", "button", "table", "thead", "tbody", "tr", "th", "td"}


def test_figures_have_separators_and_units() -> None:
    assert figures.count(1234567) == "1,234,567"
    assert figures.size(int(5.1 * 1024**3)) == "5.1 GiB"
    assert figures.size(950) == "950 B"
    assert figures.parameters(134515008) == "135 M parameters"
    assert figures.parameters(1_720_574_976) == "1.72 B parameters"
    assert figures.scientific(0.00013) == "1.3e-4"
    assert figures.small(0.41234) == "0.412"
    assert figures.small(None) == figures.small(float("nan")) == "\N{EN DASH}"
    assert figures.duration(75.2) == "1 min 15 s"
    assert figures.roughly(200) == "3 min"
    assert figures.roughly(3) == "5 s"
