"""The only place where the pages turn values into markup: every text is escaped unless it is already `Html`."""

from collections.abc import Iterable
from html import escape
from typing import TypeAlias
from urllib.parse import urlencode

VOID = frozenset({"br", "hr", "img", "input", "wbr"})
SHAPES = frozenset({"path", "circle", "line", "rect"})  # of SVG, which closes its own


class Html(str):
    """Markup made by `el`; plain `str` is always text."""

    __slots__ = ()


Child: TypeAlias = "str | int | float | Iterable[Child] | None"
Attribute: TypeAlias = "str | int | float | bool | None"


def render(child: Child) -> str:
    """One child as markup: `Html` as it is, a list piece by piece, None as nothing, anything else escaped."""
    if child is None:
        return ""
    if isinstance(child, Html):
        return str(child)
    if isinstance(child, (str, int, float)):
        return escape(str(child))
    return "".join(render(item) for item in child)


def attribute(name: str, value: Attribute) -> str:
    """`cls` becomes class, `data_id` becomes data-id; True is a bare attribute, False and None are left out."""
    if value is None or value is False:
        return ""
    name = "class" if name == "cls" else name.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'


def el(tag: str, *children: Child, **attributes: Attribute) -> Html:
    """An element with escaped children and attributes."""
    opening = tag + "".join(attribute(name, value) for name, value in attributes.items())
    if tag in SHAPES:
        return Html(f"<{opening}/>")
    if tag in VOID:
        return Html(f"<{opening}>")
    return Html(f"<{opening}>{''.join(render(child) for child in children)}</{tag}>")


def many(*children: Child) -> Html:
    """Several children side by side."""
    return Html("".join(render(child) for child in children))


def url(path: str, **query: str) -> str:
    """A link inside the studio; values are encoded, so an id can never leave its place."""
    pairs = {name: value for name, value in query.items() if value}
    return f"{path}?{urlencode(pairs, safe=',')}" if pairs else path


def link(label: Child, path: str, *, cls: str = "", **query: str) -> Html:
    """An anchor to a page of the studio."""
    return el("a", label, href=url(path, **query), cls=cls or None)
