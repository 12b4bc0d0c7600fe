"""One assistant turn: what serving sends before it, what the model must write, and which part of that is whose."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from engine.render.bridge import Bridge
from engine.render.levels import Level, Levels, probe
from engine.render.own import OWN_ANSWER, Piece, locate, own_pieces
from engine.render.sample import CannotRender
from engine.render.skeleton import Skeletons
from engine.render.template import ChatTemplate, Variables
from engine.rows.model import Message


@dataclass(frozen=True, slots=True)
class Turn:
    """`prompt` is what serving sends, from `cue_start` on its cue; `completion` ends with the stop, at `stop_start`.

    `donor`: the completion was read from a conversation with a shorter history, as the template writes the turn
    differently after the real one.
    """

    prompt: str
    cue_start: int
    completion: str
    pieces: list[Piece]  # own text, in order, not overlapping
    stop_start: int
    level: Level
    donor: bool


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A way to read the turn: after `history`, whose prompt is `base`, stands `rest`."""

    level: Level
    history: list[Message]
    base: str
    rest: str
    donor: bool = False


class TurnReader:
    """Reads turns out of rendered differences; one per run, as it remembers what the template's cues look like."""

    def __init__(
        self, template: ChatTemplate, stops: list[str], markers: list[str], bridge: Bridge | None = None
    ) -> None:
        """`stops`: the texts of the stop tokens; `markers`: those of all control tokens."""
        self.bridge = bridge
        self.template = template
        self.skeletons = Skeletons(template)
        self.stops = sorted(stops, key=len, reverse=True)
        self.markers = markers
        self._cues: dict[tuple[str, ...], str] = {}
        self._given: dict[str, list[Level]] = {}

    @cached_property
    def levels(self) -> Levels:
        """What the template can be told."""
        return probe(self.template)

    def read(self, messages: list[Message], k: int, tools: list[dict[str, Any]], given: Variables) -> Turn:
        """Turn `k` (an assistant's) after `messages[:k]`; `given` fixes the level or switches. Raises CannotRender."""
        if k == 0:
            raise CannotRender("assistant_first", "The conversation starts with this turn, so nothing asks for it.")
        found = self._choose(messages, k, tools, given)
        level = found.level
        prompt = self._render(messages[:k], tools, level, cue=True) if found.donor else found.base
        if not prompt:
            raise CannotRender("empty_prompt", "The chat template shows nothing of what comes before this turn.")
        rest = found.rest
        try:
            pieces = own_pieces(messages[k], rest, self.template.source, lambda turn: self._again(found, turn, tools))
        except CannotRender as error:
            code, why = error.code, error.message
            if code == "reasoning_not_rendered" and self._is_conflict(given, messages[k]):
                code, why = "level_conflict", f"With {level.name} this turn cannot have its reasoning."
            raise CannotRender(code, why, prompt, prompt + rest) from error
        if not pieces:
            raise CannotRender("nothing_to_say", "This turn has no text of its own.", prompt, prompt + rest)
        after = pieces[-1].end
        ends = [(at, -len(stop), stop) for stop in self.stops if (at := rest.find(stop, after)) >= 0]
        if ends:
            at, _, stop = min(ends)
            rest = rest[: at + len(stop)]
        else:
            at, rest = self._stop_of_next(found, messages[k], tools)
        return Turn(prompt, self.cue_start(messages[:k], tools, prompt, level), rest, pieces, at, level, found.donor)

    def candidates(self, message: Message, given: Variables) -> list[Level]:
        """The levels to try for a turn, the likeliest first; one when the level is given."""
        thinks = bool((message.get("reasoning_content") or "").strip())
        key = json.dumps([dict(given), thinks], sort_keys=True, default=str)
        if key not in self._given:
            if given.keys() & self.levels.variables:
                found = [Level(dict(given))]
            else:
                found = self.levels.by_cue()
                if not thinks:  # where the prompt closes the thought, nothing empty is learned
                    found = sorted(found, key=lambda level: (level.frame is None, level.frame))
                found = [Level({**level.variables, **given}, cue=level.cue) for level in found] if given else found
            self._given[key] = found
        return self._given[key]

    def _is_conflict(self, given: Variables, message: Message) -> bool:
        """Whether a given level is what stands in the way of a turn that another level can have."""
        if not given.keys() & self.levels.variables:
            return False
        return not (message.get("reasoning_content") or "").strip() or any(one.thinks for one in self.levels.levels)

    def _render(self, messages: list[Message], tools: list[dict[str, Any]], level: Level, *, cue: bool) -> str:
        return self.skeletons.render(messages, tools, cue=cue, variables=level.variables)

    def _choose(self, messages: list[Message], k: int, tools: list[dict[str, Any]], given: Variables) -> _Candidate:
        """The level whose prompt this turn goes on from; else a donor with a reduced history. Raises CannotRender."""
        levels = self.candidates(messages[k], given)
        refused: CannotRender | None = None
        apart: tuple[str, str] | None = None
        kept: list[_Candidate] = []
        for level in levels:
            try:
                prompt = self._render(messages[:k], tools, level, cue=True)
                whole = self._render(messages[: k + 1], tools, level, cue=False)
            except CannotRender as error:
                refused = refused or error
                continue
            if not whole.startswith(prompt):
                apart = apart or (prompt, whole)
                continue
            found = _Candidate(level, messages[:k], prompt, whole[len(prompt) :])
            if fits(messages[k], found.rest):
                return found
            kept.append(found)
        if kept:
            return min(kept, key=lambda one: frame(messages[k], one.rest))  # the first of equals
        if apart is None and refused is not None:
            raise refused
        donor = self._donor(messages, k, tools, levels) or self._bridged(messages, k, tools, levels)
        if donor is not None:
            return donor
        why = "What serving sends before this turn is not how the conversation with it begins."
        code = "level_conflict" if self._is_conflict(given, messages[k]) else "cue_not_in_rows"
        if code == "level_conflict":
            why = f"With {levels[0].name} serving asks in a way that this turn does not go on from."
        raise CannotRender(code, why, *(apart or ("", "")))

    def _donor(
        self, messages: list[Message], k: int, tools: list[dict[str, Any]], levels: list[Level]
    ) -> _Candidate | None:
        """The turn read after a reduced history, where the prompt still ends as the real one does."""
        kept: list[_Candidate] = []
        for history in reduced(messages[:k]):
            for level in levels:
                try:
                    real = self._render(messages[:k], tools, level, cue=True)
                    base = self._render(history, tools, level, cue=True)
                    whole = self._render([*history, messages[k]], tools, level, cue=False)
                except CannotRender:
                    continue
                cue = base[self.cue_start(history, tools, base, level) :]
                if not base or not whole.startswith(base) or not real.endswith(cue):
                    continue
                found = _Candidate(level, history, base, whole[len(base) :], donor=True)
                if fits(messages[k], found.rest):
                    return found
                kept.append(found)
        return min(kept, key=lambda one: frame(messages[k], one.rest)) if kept else None

    def _bridged(
        self, messages: list[Message], k: int, tools: list[dict[str, Any]], levels: list[Level]
    ) -> _Candidate | None:
        """The turn with its reasoning put where the prompt opens a thought, if a person has agreed to that."""
        for level in levels if self.bridge else []:
            try:
                prompt = self._render(messages[:k], tools, level, cue=True)
                whole = self._render(messages[: k + 1], tools, level, cue=False)
            except CannotRender:
                continue
            rest = self.bridge.over(messages[k], prompt, whole) if self.bridge else None
            if rest is not None:
                return _Candidate(level, messages[:k], prompt, rest)
        return None

    def _again(self, found: _Candidate, turn: Message, tools: list[dict[str, Any]]) -> str | None:
        """What stands in the place of `found.rest` when the turn is another; None when the prompt changes too."""
        try:
            whole = self._render([*found.history, turn], tools, found.level, cue=False)
        except CannotRender:
            return None
        return whole[len(found.base) :] if whole.startswith(found.base) else None

    def cue_start(self, before: list[Message], tools: list[dict[str, Any]], prompt: str, level: Level) -> int:
        """Where the generation prompt begins in `prompt`."""
        key = (level.key, *(one["role"] for one in before[-2:]))
        cue = self._cues.get(key)
        if cue is None:
            try:
                without = self._render(before, tools, level, cue=False)
            except CannotRender:
                without = ""
            cue = prompt[self._edge(prompt, common(prompt, without)) :] if without else ""
            self._cues[key] = cue
        return len(prompt) - len(cue) if prompt.endswith(cue) else len(prompt)

    def _edge(self, text: str, at: int) -> int:
        """`at`, moved back to the start of the marker that it cuts."""
        starts = [text.rfind(marker, max(0, at - len(marker) + 1), at + len(marker) - 1) for marker in self.markers]
        return min([at, *(start for start in starts if 0 <= start < at)])

    def _stop_of_next(self, found: _Candidate, message: Message, tools: list[dict[str, Any]]) -> tuple[int, str]:
        """The stop of a template that closes a turn with the header of the next: (where it starts, completion)."""
        calls = message.get("tool_calls")
        follow: Message = {"role": "user", "content": "zqnextqz"}
        if calls:
            follow = {"role": "tool", "name": calls[0]["function"]["name"], "content": "zqnextqz"}
            follow |= {"tool_call_id": calls[0]["id"]} if "id" in calls[0] else {}
        said = found.base + found.rest
        header = ""
        try:
            longer = self._render([*found.history, message, follow], tools, found.level, cue=False)
            header = longer[len(said) :] if longer.startswith(said) else ""
            if not header and not calls:  # the next turn changes this one (its reasoning is dropped): ask a plain one
                plain: list[Message] = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": OWN_ANSWER}]
                header = self._render([*plain, follow], [], found.level, cue=False).partition(OWN_ANSWER)[2]
        except CannotRender:
            header = ""
        blank = len(header) - len(header.lstrip())
        for stop in self.stops:
            if header.startswith(stop, blank):
                return len(found.rest) + blank, found.rest + header[: blank + len(stop)]
        why = f"Nothing ends this turn: none of the stop tokens ({', '.join(self.stops)}) follows its text."
        raise CannotRender("no_stop_token", why, found.base, said)


def fits(message: Message, rest: str) -> bool:
    """Whether a completion is as good as it gets: it holds the reasoning, or has none and starts with the answer."""
    thought, answer = message.get("reasoning_content") or "", message.get("content") or ""
    if thought.strip():
        return locate(thought, rest) is not None
    place = locate(answer, rest) if answer.strip() else None
    return place is not None and not rest[: place[0]].strip()


def frame(message: Message, rest: str) -> int:
    """Characters of the template's own text before the turn's, all of it when nothing of the turn shows."""
    answer = message.get("content") or ""
    place = locate(answer, rest) if answer.strip() else None
    if place is not None:
        return place[0]
    calls = message.get("tool_calls") or []
    at = rest.find(calls[0]["function"]["name"]) if calls else -1
    return at if at >= 0 else len(rest)


def reduced(history: list[Message]) -> Iterable[list[Message]]:
    """Histories with less in them: no reasoning; no text beside calls either; only what follows the last question."""
    bare = [{key: value for key, value in one.items() if key != "reasoning_content"} for one in history]
    silent = [{**one, "content": ""} if one.get("tool_calls") else one for one in bare]
    asked = max((at for at, one in enumerate(history) if one["role"] == "user"), default=0)
    seen = [history]
    for made in (bare, silent, history[asked:], silent[asked:]):
        if made and made not in seen:
            seen.append(made)
            yield made


def common(one: str, other: str) -> int:
    """How many characters two texts share at their start."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low
