"""The settings form, derived from the RunSpec: a new field of the spec is a new field here, and nothing to write.

Values travel by dotted name (`lora.r`), never by position. Settings of one method only carry its name too
(`method.dpo.beta`), so that the form holds those of every method and shows those of the chosen one.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
import gradio as gr
from gradio.components import Component
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from engine.rows.declared import columns_of
from engine.spec import METHODS, RunSpec, sections_in, settings
from studio.ui import chrome, figures
from studio.ui.html import el, many
from studio.ui.texts import label, text

ELSEWHERE = frozenset({"version", "name", "model", "adapter_from", "data.dataset", "data.sha256", "method.type"})
METHOD, START = "method.type", "adapter_from"
Kind = Literal["switch", "choice", "whole", "number", "names", "pairs", "ways", "weights", "text"]
Values = dict[str, Any]
SAID = ("names", "pairs", "ways", "weights")  # kinds that need a word on how they are written


@dataclass(frozen=True)
class Setting:
    """One leaf of the spec, as the form needs it."""

    name: str
    title: str
    help: str
    kind: Kind
    choices: tuple[str, ...] = ()
    optional: bool = False  # may be left empty
    method: str = ""  # the only one that has it; empty: all of them

    @property
    def leaf(self) -> str:
        """Its name in a spec."""
        return self.name.replace(f".{self.method}.", ".", 1) if self.method else self.name

    def asked(self, method: str) -> bool:
        """Whether it means something to a method."""
        return self.method in ("", method) and self.name not in METHODS[method].unused

    def shown(self, value: Any) -> Any:
        """A value of the spec as its widget holds it."""
        if self.kind == "weights":
            return "\n".join(
                f"{name} = {int(weight) if weight.is_integer() else weight}" for name, weight in value.items()
            )
        if self.kind == "pairs":
            return ", ".join(f"{left}={right}" for left, right in value.items())
        return ", ".join(value) if self.kind == "names" and isinstance(value, list) else value

    def read(self, raw: Any) -> Any:
        """What the widget holds as a value of the spec; the spec itself judges it."""
        if self.kind == "names":
            words = str(raw or "").strip()
            return words if words in self.choices else [word.strip() for word in words.split(",") if word.strip()]
        if self.kind == "weights":
            return dict(weight_of(line) for line in str(raw or "").splitlines() if line.strip())
        if self.kind == "pairs":
            return columns_of(pair for pair in str(raw or "").split(",") if pair.strip())
        if self.kind == "ways":
            return int(raw) if str(raw).strip().isdecimal() else str(raw or "").strip() or self.choices[0]
        if self.kind == "whole" and isinstance(raw, float) and raw.is_integer():
            return int(raw)
        return raw


def weight_of(line: str) -> tuple[str, float | str]:
    """`name = 0.5`, or a name alone for 1; what is no number is left for the spec to refuse."""
    name, given, weight = line.rpartition("=")
    if not given:
        return line.strip(), 1.0
    try:
        return name.strip(), float(weight)
    except ValueError:
        return (line.strip(), 1.0) if ":" in name else (name.strip(), weight.strip())


@dataclass(frozen=True)
class Group:
    """The settings of one section of the spec."""

    name: str
    title: str
    help: str
    settings: tuple[Setting, ...]

    def asked(self, method: str) -> bool:
        """Whether any of it means something to a method."""
        return any(one.asked(method) for one in self.settings)


def groups(spec: type[BaseModel] = RunSpec) -> list[Group]:
    """Every section of the spec with the settings that the form asks for, in reading order."""
    found = []
    for name, info in spec.model_fields.items():
        for section in sections_in(info.annotation):
            method = str(section.model_fields["type"].default) if "type" in section.model_fields else ""
            prefix = f"{name}.{method}" if method else name
            leaves = [_setting(f"{prefix}.{leaf}", inner, method) for leaf, inner in section.model_fields.items()]
            asked = tuple(leaf for leaf in leaves if leaf.leaf not in ELSEWHERE)
            if asked:
                title = text(f"method.{method}") if method else info.title or section.__name__
                found.append(Group(name, title, (section.__doc__ or "").split("\n")[0], asked))
    return found


def titles(method: str = "") -> dict[str, str]:
    """What each leaf of a spec is called on the pages; of two methods with the same leaf, as `method` calls it."""
    every = sorted(_asked(), key=lambda one: one.method == method)
    return {one.leaf: one.title for one in every}


def _setting(name: str, info: FieldInfo, method: str) -> Setting:
    kind, choices = _kind(info.annotation)
    optional = NoneType in get_args(info.annotation)
    help_ = " ".join(
        part for part in (info.description or "", _bounds(info), text(f"form.{kind}") if kind in SAID else "") if part
    )
    return Setting(name, info.title or name.rpartition(".")[2], help_, kind, choices, optional, method)


def _kind(annotation: Any) -> tuple[Kind, tuple[str, ...]]:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _kind(get_args(annotation)[0])
    if origin is dict:
        return "pairs" if get_args(annotation)[1] is str else "weights", ()
    if origin is Literal:
        return "choice", tuple(str(choice) for choice in get_args(annotation))
    if origin in (Union, UnionType) and NoneType in get_args(annotation):
        return _kind(next(part for part in get_args(annotation) if part is not NoneType))
    if origin in (Union, UnionType):
        words = [choice for part in get_args(annotation) if get_origin(part) is Literal for choice in get_args(part)]
        numbers = any(int in (part, *get_args(part)) for part in get_args(annotation))
        return "ways" if numbers else "names", tuple(str(word) for word in words)
    simple: dict[Any, Kind] = {bool: "switch", int: "whole", float: "number"}
    return simple.get(annotation, "text"), ()


def _bounds(info: FieldInfo) -> str:
    """The limits in words, as far as they say something."""
    low: Any = None
    high: Any = None
    strict = False
    for rule in info.metadata:
        if isinstance(rule, annotated_types.Ge):
            low = rule.ge
        elif isinstance(rule, annotated_types.Gt):
            low, strict = rule.gt, True
        elif isinstance(rule, annotated_types.Le):
            high = rule.le
        elif isinstance(rule, annotated_types.Lt):
            high = rule.lt
    if low is not None and high is not None:
        return text("form.range", low=figures.value(low), high=figures.value(high))
    if strict:
        return text("form.above", low=figures.value(low))
    return "" if low is None or low == -1 else text("form.at_least", low=figures.value(low))


def values_of(spec: RunSpec) -> Values:
    """The spec as the widgets hold it, by name, other methods at their defaults; the run's name is among them."""
    leaves = settings(spec)
    others = {name: settings(made(), "method.") for name, made in METHODS.items() if name != spec.method.type}
    values = {one.name: one.shown(others.get(one.method, leaves)[one.leaf]) for one in _asked()}
    return values | {"name": spec.name, METHOD: spec.method.type, START: spec.adapter_from}


def _asked() -> list[Setting]:
    return [one for group in groups() for one in group.settings]


def read(values: Mapping[str, Any], *, model: str, dataset: str) -> tuple[RunSpec | None, dict[str, str]]:
    """The spec that the widgets describe, or what is wrong, by setting. What the method does not use stays default."""
    method = str(values.get(METHOD) or RunSpec.model_fields["method"].default.type)
    known = {one.name: one for one in _asked() if one.asked(method)}
    tree: dict[str, Any] = {"model": model, "name": str(values.get("name") or ""), "data": {"dataset": dataset}}
    tree |= {"method": {"type": method}, START: str(values.get(START) or "")}
    missing: dict[str, str] = {}
    for name, one in known.items():
        if name not in values:
            continue
        section, _, leaf = one.leaf.partition(".")
        value = one.read(values[name])
        if value is None and not one.optional:
            missing[name] = text("form.whole" if one.kind == "whole" else "form.number")
            continue
        tree.setdefault(section, {})[leaf] = value
    try:
        spec = RunSpec.model_validate(tree)
    except ValidationError as error:
        return None, _faults(error, known) | missing
    return (None, missing) if missing else (spec, {})


def _faults(error: ValidationError, known: Mapping[str, Setting]) -> dict[str, str]:
    """Each fault beside the setting that it is about."""
    faults: dict[str, str] = {}
    for fault in error.errors():
        message = fault["msg"].removeprefix("Value error, ").replace("Input should", "Must", 1)
        faults.setdefault(place(fault["loc"], message, known), message[:1].upper() + message[1:] + ".")
    return faults


def place(where: tuple[int | str, ...], message: str, known: Mapping[str, Setting]) -> str:
    """The setting that a fault is shown beside; a rule of a whole section names its setting in the message."""
    path = [str(part) for part in where]
    for name, one in known.items():
        section, _, leaf = one.leaf.partition(".")
        if path and path[0] == section and leaf in path[1:]:
            return name
    of_section = [name for name in known if path and name.startswith(f"{path[0]}.")]
    return next((name for name in of_section if name.rpartition(".")[2] in message), (of_section or ["name"])[0])


@dataclass
class Form:
    """The widgets on a page, by the name of their setting."""

    fields: dict[str, Component] = field(default_factory=dict)
    errors: dict[str, gr.HTML] = field(default_factory=dict)
    places: list[tuple[Group | Setting, gr.Column]] = field(default_factory=list)  # what surrounds them

    def values(self, given: Mapping[Any, Any]) -> Values:
        """What the widgets hold, out of an event's inputs (by component)."""
        return {name: given[component] for name, component in self.fields.items() if component in given}

    def show(self, values: Mapping[str, Any]) -> dict[Any, Any]:
        """Updates that put values into the widgets."""
        return {component: gr.update(value=values[name]) for name, component in self.fields.items() if name in values}

    def suit(self, method: str) -> dict[Any, Any]:
        """Updates that leave only what means something to a method."""
        return {place: gr.update(visible=what.asked(method)) for what, place in self.places}

    def offer(self, name: str, *, there: bool) -> dict[Any, Any]:
        """Updates that show a setting, or leave it out."""
        return {place: gr.update(visible=there) for what, place in self.places if what.name == name}

    def blame(self, faults: Mapping[str, str]) -> dict[Any, Any]:
        """Updates that show each fault beside its field and clear the others."""
        return {
            component: gr.update(
                value=el("p", faults[name], cls="field-error", role="alert") if name in faults else "",
                visible=name in faults,
            )
            for name, component in self.errors.items()
        }


def draw(form: Form, method: str = "sft") -> None:
    """Put the groups on the page, inside whatever container is open."""
    for group in groups():
        with gr.Column(visible=group.asked(method)) as around:
            chrome.sheet(many(el("h2", group.title), el("p", group.help, cls="quiet small")), classes=("group-title",))
            with gr.Column(elem_classes=["fields"]):
                for one in group.settings:
                    if one.name not in form.fields:
                        _place(form, one, method)
        form.places.append((group, around))


def _widget(one: Setting) -> Component:
    common: dict[str, Any] = {"label": one.title, "info": one.help, "elem_id": f"set-{one.name.replace('.', '-')}"}
    if one.kind == "switch":
        return gr.Checkbox(**common)
    if one.kind == "choice":
        return gr.Dropdown(choices=[(choice.replace("_", " "), choice) for choice in one.choices], **common)
    if one.kind in ("whole", "number"):
        return gr.Number(**common)  # not rounded here: the spec itself refuses what is not whole
    if one.kind == "weights":
        return gr.Textbox(lines=2, max_lines=8, **common)
    return gr.Textbox(max_lines=1, **common)


def front(form: Form, names: Container[str], method: str = "sft") -> None:
    """Put some settings where the page wants them, before `draw` puts the others."""
    for one in _asked():
        if one.name in names:
            _place(form, one, method)


def _place(form: Form, one: Setting, method: str) -> None:
    """A setting with room for what is wrong with it, there only where the method has it."""
    with gr.Column(elem_classes=["field"], visible=one.asked(method)) as place:
        form.fields[one.name] = _widget(one)
        form.errors[one.name] = chrome.sheet(visible=False)
    form.places.append((one, place))


def name_field(form: Form) -> None:
    """The run's name, which the page shows by itself."""
    form.fields["name"] = gr.Textbox(
        label=label("train.name"), placeholder=label("train.name_hint"), max_lines=1, elem_id="set-name"
    )
    form.errors["name"] = chrome.sheet(visible=False)


def method_field(form: Form) -> gr.Radio:
    """The choice of the method, which the page shows by itself."""
    choices = method_choices()
    chosen = gr.Radio(
        choices=choices,
        value=choices[0][1],
        show_label=False,
        label=label("train.method"),
        container=False,
        elem_id="set-method-type",
        elem_classes=["choices"],
    )
    form.fields[METHOD] = chosen
    return chosen


def method_choices(kind: str = "") -> list[tuple[str, str]]:
    """What each method does; and what it would need, where the dataset is of a `kind` that it cannot learn from."""
    fits = {name: not kind or kind in section.kinds for name, section in METHODS.items()}
    needs = {name: "" if fit else f" · {text(f'method.{name}_needs')}" for name, fit in fits.items()}
    return [(text(f"method.{name}_choice") + need, name) for name, need in needs.items()]


def start_field(form: Form) -> gr.Dropdown:
    """The choice of a finished run to go on from, which the page shows by itself where there is one."""
    chosen = gr.Dropdown(
        choices=[(label("train.start_fresh"), "")],
        value="",
        label=label("train.start_from"),
        visible=False,
        elem_id="set-adapter-from",
    )
    form.fields[START] = chosen
    return chosen
