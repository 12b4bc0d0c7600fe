"""A text that stands for any text: it goes through a chat template and notes what the template asks of it.

A chat template is run once with such texts in place of a row's own. Whatever it asks (“is there a `</think>` in it?”,
“cut the white space off”) is answered as for an ordinary text, and the answer becomes a condition (`Guard`): the
rendering is that of every row whose texts meet the conditions. What cannot be answered without knowing the text ends
the attempt with `Untraced`.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

MARK = "zqslot"
Part = str | int
"""A piece of a rendered text: the template's own, or the number of the row's text that stands there."""


class Untraced(BaseException):
    """The template does something with a text that depends on which text it is.

    Not an Exception, as Jinja's tests (`is sequence`) answer with False whatever goes wrong inside them.
    """


@dataclass
class Guard:
    """What a text must be like for the answers that a template was given to be true of it. It is never empty."""

    absent: set[str] = field(default_factory=set)  # words that do not stand in it
    first: set[str] = field(default_factory=set)  # characters that it does not begin with; " " stands for white space
    last: set[str] = field(default_factory=set)

    def passes(self, text: str) -> bool:
        """Whether a text meets the conditions."""
        return (
            bool(text)
            and not (self.first and _is_one(text[0], self.first))
            and not (self.last and _is_one(text[-1], self.last))
            and not any(word in text for word in self.absent)
        )


def _is_one(letter: str, of: set[str]) -> bool:
    return letter in of or (" " in of and letter.isspace())


def _may_cross(part: tuple[Part, ...], piece: str, meets: Callable[[str, str], bool], text: str) -> bool:
    """Whether `piece` of `text` may stand at the border of a neighbour: another slot, or words that have it there."""
    return any(isinstance(one, int) or one in text or meets(one, piece) for one in part)


def word(slot: int) -> str:
    """What stands for a slot in the buffer of a traced text."""
    return f"{MARK}{slot}zq"


class Traced(str):
    """Text made of the template's words and of slots; a slot's `Guard` collects what was answered about it."""

    __slots__ = ("guards", "parts")
    parts: tuple[Part, ...]
    guards: list[Guard]

    @classmethod
    def of(cls, parts: Iterable[Part], guards: list[Guard]) -> str:
        """The text that these parts make; an ordinary one when no slot is among them."""
        merged: list[Part] = []
        for part in parts:
            if isinstance(part, str) and merged and isinstance(merged[-1], str):
                merged[-1] += part
            elif part != "":
                merged.append(part)
        text = "".join(part if isinstance(part, str) else word(part) for part in merged)
        if all(isinstance(part, str) for part in merged):
            return text
        made = str.__new__(cls, text)
        made.parts, made.guards = tuple(merged), guards
        return made

    def _holds(self, text: str) -> bool:
        """Whether `text` stands in it: certain where it stands in the template's words, else a condition."""
        certain = any(isinstance(part, str) and text in part for part in self.parts)
        return certain or self.only_in_words(text)

    def only_in_words(self, text: str) -> bool:
        """Make it a condition that `text` stands nowhere but in the template's words; False."""
        if isinstance(text, Traced) or MARK in text or not text:
            raise Untraced
        for at, part in enumerate(self.parts):
            if isinstance(part, int):
                guard = self.guards[part]
                guard.absent.add(text)
                before, after = self.parts[max(0, at - 1) : at], self.parts[at + 1 : at + 2]
                guard.first |= {
                    text[i] for i in range(1, len(text)) if _may_cross(before, text[:i], str.endswith, text)
                }
                guard.last |= {
                    text[i - 1] for i in range(1, len(text)) if _may_cross(after, text[i:], str.startswith, text)
                }
        return False

    def _stripped(self, chars: str | None, *, left: bool, right: bool) -> str:
        parts, cut = list(self.parts), set(" " if chars is None else chars)
        if chars is not None and " " in cut:
            raise Untraced  # would be taken for all white space
        for side, at, sides in ((left, 0, "first"), (right, -1, "last")):
            while side:
                part = parts[at]
                if isinstance(part, int):
                    guard = self.guards[part]
                    (guard.first if sides == "first" else guard.last).update(cut)
                    break
                parts[at] = part.lstrip(chars) if at == 0 else part.rstrip(chars)
                if parts[at]:
                    break
                del parts[at]
        return Traced.of(parts, self.guards)

    def strip(self, chars: str | None = None, /) -> str:
        """As of any text that neither begins nor ends with what is cut."""
        return self._stripped(chars, left=True, right=True)

    def lstrip(self, chars: str | None = None, /) -> str:
        """The same, at the beginning."""
        return self._stripped(chars, left=True, right=False)

    def rstrip(self, chars: str | None = None, /) -> str:
        """The same, at the end."""
        return self._stripped(chars, left=False, right=True)

    def startswith(self, prefix: Any, *_: Any) -> bool:
        """False, unless the template's words decide it."""
        return self._begins(prefix, self.parts[0], str.startswith)

    def endswith(self, suffix: Any, *_: Any) -> bool:
        """False, unless the template's words decide it."""
        return self._begins(suffix, self.parts[-1], str.endswith)

    def _begins(self, text: Any, edge: Part, asked: Callable[[str, str], bool]) -> bool:
        if not isinstance(text, str) or isinstance(text, Traced):
            raise Untraced
        if isinstance(edge, str) and len(edge) >= len(text):
            return asked(edge, text)
        if self._holds(text):
            raise Untraced
        return False

    def split(self, sep: str | None = None, maxsplit: Any = -1) -> list[str]:
        """As of any text that has the separator only where the template's words have it."""
        if sep is None or (self._holds(sep) and maxsplit != -1):
            raise Untraced
        self.only_in_words(sep)
        found: list[list[Part]] = [[]]
        for part in self.parts:
            first, *others = part.split(sep) if isinstance(part, str) else [part]
            found[-1].append(first)
            found += [[other] for other in others]
        return [Traced.of(parts, self.guards) for parts in found]

    rsplit = split

    def replace(self, old: str, new: str, count: Any = -1, /) -> str:
        """The whole, as of any text without what is replaced."""
        if self._holds(old):
            raise Untraced
        return self

    def find(self, sub: str, *_: Any) -> int:
        """-1, as of any text without it."""
        if self._holds(sub):
            raise Untraced
        return -1

    rfind = find

    def __contains__(self, text: object) -> bool:
        if not isinstance(text, str):
            raise Untraced
        return self._holds(text)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Traced) and self.parts == other.parts:
            return True
        if not isinstance(other, str) or other == "":
            return False
        if isinstance(other, Traced) or len(self.parts) > 1 or self._holds(other):
            raise Untraced
        return False

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        return self

    def __iter__(self) -> Iterator[str]:
        return iter(_unknown, None)  # there is an iterator, but its first letter cannot be told

    def __add__(self, other: str) -> str:
        return joined([self, other])

    def __radd__(self, other: str) -> str:
        return joined([other, self])


class Length:
    """That of a traced text: more than 0, and no more can be said."""

    def __gt__(self, other: int) -> bool:
        return self != other

    def __eq__(self, other: object) -> bool:
        if other != 0:
            raise Untraced
        return False

    __hash__ = None  # type: ignore[assignment]


def length(value: Any) -> Any:
    """What Jinja's filter of this name gives."""
    return Length() if isinstance(value, Traced) else len(value)


def _unknown(*_: Any, **__: Any) -> NoReturn:
    raise Untraced


for _name in set(dir(str)) - set(vars(Traced)) - set(dir(object)) | {"__hash__", "__format__", "__lt__", "__gt__"}:
    setattr(Traced, _name, _unknown)  # everything else that a text can be asked


def joined(pieces: Iterable[Any]) -> str:
    """One text out of many. Raises Untraced when a slot's word stands in a text that is not traced any more."""
    parts: list[Part] = []
    guards: list[Guard] = []
    for piece in map(str, pieces):
        if isinstance(piece, Traced):
            parts += piece.parts
            guards = piece.guards
        elif MARK in piece.lower():
            raise Untraced
        else:
            parts.append(piece)
    return Traced.of(parts, guards)
