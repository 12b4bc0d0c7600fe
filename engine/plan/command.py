"""`python -m engine plan SPEC.json`: the plan of a run as JSON, on this machine's devices or on others."""

import json
from pathlib import Path

from engine.failure import Failure
from engine.inspect_data import survey_file
from engine.plan.catalogue import parse
from engine.plan.choice import plan, suited
from engine.plan.here import here
from engine.plan.planner import Machine, Planner
from engine.plan.rows import Rows
from engine.plan.twin import read_config
from engine.render.settings import open_renderer, settings_of
from engine.spec import RunSpec

READ_SECONDS = 10.0  # rows beyond are counted, not rendered


def rows_of(spec: RunSpec) -> Rows | None:
    """The rows that the spec names, as far as they can be read and rendered here in some seconds; None if not."""
    file, folder = Path(spec.data.dataset), Path(spec.model)
    if not file.is_file() or not (folder / "tokenizer_config.json").is_file():
        return None
    drop = spec.data.truncation_mode == "drop"
    renderer = open_renderer(folder, settings_of(spec))
    survey = survey_file(file, renderer, max_length=spec.data.max_length, drop=drop, seconds=READ_SECONDS)
    return Rows.of(survey["usable"], survey)


def main(file: Path, devices: str, *, choose: bool, full: bool) -> int:
    """Print the plan of the spec in a JSON file; 0 also when it does not fit: that is an answer."""
    try:
        spec = RunSpec.model_validate_json(file.read_bytes())
        machine = Machine(*parse(devices)) if devices else here(spec)
        planner = Planner(read_config(spec.model))
        rows = rows_of(spec)
        why = ""
        if choose:
            spec, why = suited(spec, machine, rows, planner=planner)
        found = plan(spec, machine, rows, planner=planner)
        answer = found.told() if full else found.json()
        if choose:
            answer["why"] = [why, *answer["why"]]
            answer |= {"settings": found.settings()} if full else {}
    except Failure as failure:
        answer = {"error": {"code": failure.code, "message": failure.message, "advice": failure.advice}}
    print(json.dumps(answer))  # noqa: T201
    return 0
