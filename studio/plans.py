"""Plans: what a run would need and how long it would take, worked out once for its settings by a worker."""

import hashlib
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from engine.layout.degrees import devices_of
from engine.spec import RunSpec, settings
from studio import packs
from studio.db import insert_one
from studio.db.tables import Dataset, Model, Plan, Run, now

AGAIN = timedelta(seconds=30)  # a failed plan that is asked for after this is tried again
KEPT = timedelta(days=7)  # plans that nobody has asked for since go
NO_MATTER = frozenset({"version", "name", "data.sha256", "layout.hosts", "training.seed", "saving.sample_prompts"})
MATTERS_IN_OPTIMIZER = "optimizer.optim"
RUNS_COMPARED, STEPS_COMPARED = 5, 20


def possible(dataset: Dataset | None, model: Model | None) -> bool:
    """Whether there can be one: both are ready."""
    return all(one is not None and one.status == "ready" for one in (dataset, model))


def key_of(spec: RunSpec, devices: Sequence[Mapping[str, Any]]) -> str:
    """The same for all runs that need the same: settings that change neither memory nor time are left out."""
    leaves = {
        name: value
        for name, value in settings(spec).items()
        if name not in NO_MATTER and (not name.startswith("optimizer.") or name == MATTERS_IN_OPTIMIZER)
    }
    machine = [[one.get("kind"), one.get("label"), one.get("total_bytes")] for one in devices]
    told = json.dumps([leaves, machine], sort_keys=True, default=str)
    return hashlib.sha256(told.encode()).hexdigest()[:40]


def devices_for(spec: RunSpec, devices: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of the devices there are, those that the run may take: accelerators, unless it asks for the CPU.

    As many as its layout says; where that is left open, those of one host: its plan says how many it needs.
    """
    gpus = [dict(one) for one in devices if one.get("kind") != "cpu"]
    mine = (
        gpus if gpus and spec.training.device != "cpu" else [dict(one) for one in devices if one.get("kind") == "cpu"]
    )
    if spec.layout.is_open:
        return list({str(one.get("name")): one for one in mine}.values())
    return mine[: devices_of(spec.layout)]


def devices_needed(session: Session, spec: RunSpec, devices: Sequence[Mapping[str, Any]]) -> int:
    """How many of these devices the run takes: as its layout says; left open, as planned; one while nobody knows."""
    if not spec.layout.is_open:
        return devices_of(spec.layout)
    plan = found(session, spec, devices)
    return int(plan.told["devices"]) if plan is not None and plan.told else 1


def ask(session: Session, spec: RunSpec, devices: Sequence[Mapping[str, Any]]) -> tuple[Plan | None, bool]:
    """The plan of a run on the devices it would take, and whether the caller has to send "plan" with its key.

    None while no device is known. The row is made once, whoever asks at the same time.
    """
    mine = devices_for(spec, devices)
    if not mine:
        return None, False
    key = key_of(spec, mine)
    row = {"id": key, "dataset_id": spec.data.dataset, "model_id": spec.model, "status": "waiting", "error": ""}
    new = insert_one(session, Plan, row | {"spec": spec.model_dump(mode="json"), "devices": mine, "asked_at": now()})
    plan = session.get_one(Plan, key, populate_existing=new)
    if new:
        session.execute(delete(Plan).where(Plan.asked_at < now() - KEPT))
    elif plan.status == "failed" and now() - plan.asked_at > AGAIN:
        plan.status, plan.error, plan.asked_at, new = "waiting", "", now(), True
        session.flush()
    return plan, new


def found(session: Session, spec: RunSpec, devices: Sequence[Mapping[str, Any]]) -> Plan | None:
    """The same plan as far as it is there."""
    mine = devices_for(spec, devices)
    return session.get(Plan, key_of(spec, mine)) if mine else None


def speed(session: Session, spec: RunSpec) -> float | None:
    """Tokens a second of earlier runs of this model here with the same length and recompute; None without any.

    The median of the last steps of the newest runs.
    """
    newest = select(Run).where(Run.model_id == spec.model, Run.step > 0).order_by(Run.created_at.desc()).limit(50)
    alike = [run for run in session.scalars(newest) if _likeness(run.spec) == _likeness(spec.model_dump(mode="json"))]
    measured: list[float] = []
    for run in alike[:RUNS_COMPARED]:
        columns = packs.read(session, run.id, "step")
        if "tokens_per_second" in columns:
            last = columns["tokens_per_second"][1:][-STEPS_COMPARED:]  # the first step warms up
            measured += [float(one) for one in last if math.isfinite(one) and one > 0]
    return statistics.median(measured) if measured else None


def _likeness(spec: Mapping[str, Any]) -> tuple[Any, ...]:
    """What must be the same for one run to tell how fast another will be."""
    training = spec.get("training") or {}
    names = ("gradient_checkpointing", "dtype", "device", "quantization", "full_finetuning")
    return ((spec.get("method") or {}).get("type"), *(training.get(name) for name in names))
