"""Which column is which, asked in plain words where the rows of a file are of no known shape."""

from collections.abc import Mapping
from typing import Any

import gradio as gr

from engine.rows import AS_SEEN, Declared
from studio.datasets import declarable
from studio.db.tables import Dataset
from studio.ui import chrome
from studio.ui.html import el
from studio.ui.texts import label, text

HOLDS: dict[str, tuple[str, ...]] = {
    "chat": ("prompt", "completion"),
    "preference": ("prompt", "chosen", "rejected"),
    "rated": ("prompt", "completion", "label"),
    "prompt": ("prompt", "ground_truth"),
    "text": ("text",),
}
"""What the columns of a file have to hold, by the kind of its rows, in the engine's words."""
MAY_LACK = ("ground_truth",)
MOST = max(map(len, HOLDS.values()))


class Columns:
    """The components: the kind of the rows, and a column for each thing that such rows hold."""

    def draw(self) -> None:
        """Inside whatever container is open; hidden until they are needed."""
        with gr.Column(visible=False, elem_classes=["columns"], elem_id="columns") as self.body:
            self.head = chrome.sheet(chrome.note("warn", text("columns.title"), el("p", text("columns.help"))))
            self.kind = gr.Dropdown(
                choices=[(text(f"columns.{kind}"), kind) for kind in HOLDS],
                value="chat",
                label=label("columns.kind"),
                elem_id="columns-kind",
            )
            self.chosen = [gr.Dropdown(choices=[], value=None, min_width=140) for _ in range(MOST)]
        for one in (self.kind, *self.chosen):
            chrome.open_choice(one)

    def components(self) -> list[Any]:
        """Everything that an event may change."""
        return [self.body, *self.inputs]

    @property
    def inputs(self) -> list[gr.Dropdown]:
        """What a person chooses."""
        return [self.kind, *self.chosen]

    def kind_in(self, given: Mapping[Any, Any]) -> str:
        """The kind that is chosen."""
        kind = str(given.get(self.kind))
        return kind if kind in HOLDS else "chat"

    def read(self, given: Mapping[Any, Any]) -> Declared:
        """What was chosen, once it is enough to read rows by; until then rows are what they show."""
        kind = self.kind_in(given)
        names = {holds: given.get(one) for holds, one in zip(HOLDS[kind], self.chosen, strict=False)}
        columns = {holds: str(name) for holds, name in names.items() if name}
        lacking = [holds for holds in names if holds not in columns and holds not in MAY_LACK]
        return AS_SEEN if lacking else Declared(kind, columns)  # type: ignore[arg-type]

    def show(self, dataset: Dataset | None, declared: Declared, kind: str = "") -> dict[Any, Any]:
        """Asked of a file without usable rows; `declared` is shown as chosen, else a `kind` that was just chosen."""
        known = [str(name) for name in ((dataset.report if dataset else None) or {}).get("columns") or ()]
        known = [name for name in known if "," not in name]  # which the setting's text cannot hold
        wanted = dataset is not None and dataset.status == "unusable" and declarable(dataset) and bool(known)
        fresh = bool(declared) or not kind
        kind = declared.kind or kind or "chat"
        return {
            self.body: gr.update(visible=wanted),
            self.kind: gr.update(value=kind),
            **{one: self._asked(number, kind, known, declared, fresh=fresh) for number, one in enumerate(self.chosen)},
        }

    def _asked(self, number: int, kind: str, known: list[str], declared: Declared, *, fresh: bool) -> Any:
        """One column to choose; what was chosen stays while a person is at it."""
        if number >= len(HOLDS[kind]):
            return gr.update(visible=False, value=None)
        holds = HOLDS[kind][number]
        held = {"value": declared.columns.get(holds)} if fresh else {}
        return gr.update(visible=True, choices=known, label=text(f"columns.{kind}_{holds}"), **held)
