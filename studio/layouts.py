"""Layouts at submit time: what a model or a setting does not allow is refused before the run waits for its turn."""

from pathlib import Path

from engine.layout.degrees import degrees_of, devices_of
from engine.layout.rules import refusals
from engine.spec import RunSpec
from studio.db.tables import Model
from studio.errors import Invalid
from studio.facts import read_json


def check_layout(model: Model, spec: RunSpec) -> None:
    """Raise Invalid, at the setting at fault, for a layout that cannot be; the engine refuses it too, but later."""
    count = devices_of(spec.layout)
    if (count == 1 and spec.layout.hosts in (1, "auto")) or model.status != "ready":
        return
    config = read_json(Path(model.path) / "config.json")
    for refusal in refusals(spec, config, degrees_of(spec.layout, count)):
        raise Invalid(refusal.why, param=refusal.setting, advice=refusal.advice)
