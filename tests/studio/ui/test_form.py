"""The settings form: derived from the spec, whole, and true in both directions."""

import math
from types import NoneType
from typing import Any, get_args

import annotated_types
from hypothesis import given
from hypothesis import strategies as st

from engine.spec import METHODS, Data, Layout, LoRA, Optimizer, RunSpec, Saving, Training, settings
from studio.ui import form

DEFAULT = RunSpec(model="m", data=Data(dataset="d"))
FLOATS: dict[str, Any] = {"allow_nan": False, "allow_infinity": False}


def within(info: Any, integer: bool) -> st.SearchStrategy[Any]:
    """Numbers that the field's own bounds allow."""
    low: Any = None
    high: Any = None
    open_low, open_high = False, False
    for rule in info.metadata:
        match rule:
            case annotated_types.Ge():
                low = rule.ge
            case annotated_types.Gt():
                low, open_low = rule.gt, True
            case annotated_types.Le():
                high = rule.le
            case annotated_types.Lt():
                high, open_high = rule.lt, True
    if integer:
        return st.integers(low, high if high is not None else 10**6)
    return st.floats(low, high if high is not None else 1e6, exclude_min=open_low, exclude_max=open_high, **FLOATS)


NAMES = st.from_regex(r"[a-z_]{1,12}(\.[a-z0-9_]{1,8})?", fullmatch=True)
REWARDS = st.from_regex(r"[a-z][a-z0-9_]{0,12}(:[a-z0-9=:]{1,9})?", fullmatch=True)
OWN: dict[str, st.SearchStrategy[Any]] = {
    "dataset": st.just("d"),
    "sha256": st.just(""),
    "target_modules": st.one_of(
        st.just("all-linear"), st.lists(NAMES, min_size=1, max_size=4).filter(lambda names: names != ["all-linear"])
    ),
    "rewards": st.dictionaries(REWARDS, st.floats(-100, 100, width=16), min_size=1, max_size=4),
    "max_steps": st.one_of(st.just(-1), st.integers(1, 10**6)),
    "full_finetuning": st.just(False),  # it excludes settings of other sections
    "thinking_budget": st.just(0),  # it must be below another setting
    "use_vllm": st.just(False),  # it excludes others
    "columns": st.dictionaries(st.from_regex(r"[a-z_]{1,9}", fullmatch=True), st.just("my column")),
}


def legal(section: type[Any]) -> st.SearchStrategy[Any]:
    """Legal values of a section, from its own field definitions."""
    return st.builds(section, **{name: legal_value(section, name) for name in section.model_fields})


def legal_value(section: type[Any], name: str) -> st.SearchStrategy[Any]:
    """Legal values of one field."""
    info = section.model_fields[name]
    kind = info.annotation
    if name in OWN:
        return OWN[name]
    if section is Layout:
        return st.one_of(st.just("auto"), st.integers(1, 4096))
    if NoneType in get_args(kind):
        return st.one_of(st.none(), within(info, integer=True))
    simple = {bool: st.booleans(), str: st.text(max_size=40)}
    if kind in simple:
        return simple[kind]
    return within(info, kind is int) if kind in (int, float) else st.sampled_from(get_args(kind))


SPECS = st.builds(
    RunSpec,
    model=st.just("m"),
    method=st.one_of([legal(section) for section in METHODS.values()]),
    name=st.text(max_size=40),
    data=legal(Data),
    lora=legal(LoRA),
    optimizer=legal(Optimizer),
    training=legal(Training),
    layout=legal(Layout),
    saving=legal(Saving),
)


@given(SPECS)
def test_what_the_form_shows_of_a_spec_reads_back_as_the_same_spec(spec: RunSpec) -> None:
    read, faults = form.read(form.values_of(spec), model=spec.model, dataset=spec.data.dataset)
    assert faults == {}
    assert read is not None
    unused = {name for name in settings(spec) if name in spec.method.unused}
    assert {**settings(read), **dict.fromkeys(unused)} == {
        **settings(spec),
        **dict.fromkeys(unused),
    }


def test_every_setting_is_asked_for_once_with_a_title_and_help() -> None:
    asked = [one for group in form.groups() for one in group.settings]
    names = [one.name for one in asked]
    assert len(names) == len(set(names))
    for method, section in METHODS.items():
        mine = {one.leaf for one in asked if one.asked(method)} | section.unused | form.ELSEWHERE
        assert mine >= {*settings(DEFAULT.model_copy(update={"method": section()}))}
    assert all(one.title and one.help for one in asked)


def test_bounds_are_told_and_held() -> None:
    rank = next(one for group in form.groups() for one in group.settings if one.name == "lora.r")
    assert "1 to 1,024" in rank.help
    for wrong in (0, 1025):
        spec, faults = form.read(form.values_of(DEFAULT) | {"lora.r": wrong}, model="m", dataset="d")
        assert spec is None
        assert list(faults) == ["lora.r"]


def test_each_fault_stands_beside_its_own_field() -> None:
    values = form.values_of(DEFAULT) | {
        "optimizer.learning_rate": None,
        "training.seed": -1,
        "lora.target_modules": "",
        "training.dtype": "int4",
        "name": "x" * 301,
    }
    spec, faults = form.read(values, model="m", dataset="d")
    assert spec is None
    assert set(faults) == {
        "optimizer.learning_rate",
        "training.seed",
        "lora.target_modules",
        "training.dtype",
        "name",
    }


def test_a_rule_beyond_bounds_is_shown_at_its_setting() -> None:
    _, faults = form.read(form.values_of(DEFAULT) | {"training.max_steps": 0}, model="m", dataset="d")
    assert list(faults) == ["training.max_steps"]
    assert faults["training.max_steps"] == "Must be -1 (follow the epochs) or at least 1."


def test_a_whole_number_that_arrives_as_a_float_is_whole() -> None:
    spec, _ = form.read(form.values_of(DEFAULT) | {"lora.r": 8.0}, model="m", dataset="d")
    assert spec is not None
    assert spec.lora.r == 8
    _, faults = form.read(form.values_of(DEFAULT) | {"lora.r": 8.5}, model="m", dataset="d")
    assert list(faults) == ["lora.r"]
    _, faults = form.read(form.values_of(DEFAULT) | {"optimizer.weight_decay": math.nan}, model="m", dataset="d")
    assert list(faults) == ["optimizer.weight_decay"]


def test_a_method_has_its_own_settings_and_no_others() -> None:
    values = form.values_of(DEFAULT) | {form.METHOD: "dpo", "method.dpo.beta": 0.5, "data.packing": False}
    spec, faults = form.read(values, model="m", dataset="d")
    assert faults == {}
    assert spec is not None
    assert (spec.method.type, spec.method.beta, spec.data.packing) == ("dpo", 0.5, True)
    _, faults = form.read(values | {"method.dpo.beta": 0.0}, model="m", dataset="d")
    assert list(faults) == ["method.dpo.beta"]
    _, faults = form.read(values | {form.METHOD: "sft", "method.dpo.beta": 0.0}, model="m", dataset="d")
    assert faults == {}
