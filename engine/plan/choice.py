"""What is decided with a planner: a run's plan, the settings that suit the devices, and what would make it fit."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from engine.failure import Change, Failure
from engine.layout.degrees import layout_of
from engine.plan import changes, recipe
from engine.plan.pace import Pace
from engine.plan.planner import Chosen, Machine, Planner, longest_of
from engine.plan.report import Plan
from engine.plan.rows import Rows, steps
from engine.plan.twin import read_config
from engine.spec import RunSpec, at_length

CHECKPOINT_FILES = 1.02  # of the bytes of the tensors in it: random state, names
MOST_SEQUENCES = 64  # in a micro-batch


def plan(
    spec: RunSpec,
    machine: Machine,
    rows: Rows | None = None,
    *,
    planner: Planner | None = None,
    tokens_per_second: float | None = None,
) -> Plan:
    """The plan of a run on these devices. `tokens_per_second`: of earlier runs like it here. Raises Failure."""
    planner = planner or Planner(read_config(spec.model))
    length = planner.length(spec, rows)
    chosen = planner.best(spec, machine, rows)
    model = planner.model(spec, machine.device)
    training = spec.training
    sequences = training.per_device_train_batch_size * training.gradient_accumulation_steps
    tokens = sequences * longest_of(spec, rows, length)
    if tokens_per_second:
        chosen = replace(
            chosen, pace=Pace(tokens / tokens_per_second, "as measured in earlier runs of this model here")
        )
    found = Plan(
        spec=at_length(spec, length),
        machine=machine,
        chosen=chosen,
        parameters={
            "total": model.parameters.total,
            "active": model.parameters.active,
            "trainable": model.trainable,
            "local": model.parameters.local(chosen.degrees.expert),
        },
        tokens_per_step=tokens,
        steps=steps(spec, rows.sequences(spec, length)) if rows else _known_steps(spec),
        disk=disk(spec, planner, machine),
        notes=_notes(planner, spec, machine, rows),
    )
    return found if found.fits else replace(found, changes=smallest_changes(spec, machine, rows, planner=planner))


def on_fewest(
    spec: RunSpec,
    machine: Machine,
    rows: Rows | None = None,
    *,
    planner: Planner | None = None,
    tokens_per_second: float | None = None,
) -> Plan:
    """The plan of a run that leaves its layout open: on one of these devices if it fits there, else on all of them.

    So a run leaves to others what it does not need. Where all of them do not help either, the plan on one. As `plan`
    where the layout is set. Raises Failure.
    """
    planner = planner or Planner(read_config(spec.model))
    on = partial(plan, spec, rows=rows, planner=planner, tokens_per_second=tokens_per_second)
    if not spec.layout.is_open or machine.number == 1:
        return on(machine)
    alone = on(replace(machine, number=1))
    if alone.fits:
        return alone
    together = on(machine)
    return together if together.fits else alone


def _known_steps(spec: RunSpec) -> int | None:
    return spec.training.max_steps if spec.training.max_steps > 0 else None


def _notes(planner: Planner, spec: RunSpec, machine: Machine, rows: Rows | None) -> list[str]:
    notes = []
    made = planner.twin(spec, recipe.precision(spec, machine.device))
    if not made.packed:
        notes.append("Documents run one at a time: this model's attention cannot be replaced.")
    if spec.method.type == "grpo":
        notes.append("Answers are counted at their longest; where time is estimated, sampling them is not in it.")
    if rows is None:
        notes.append("The rows are not known: steps and time follow from training.max_steps alone.")
    return notes


def disk(spec: RunSpec, planner: Planner, machine: Machine) -> int:
    """Bytes that the run will have written at most: its checkpoints, the one more while it saves, and the result."""
    dtype = recipe.precision(spec, machine.device)
    kept, trainable = recipe.of(spec, dtype, planner.config), planner.model(spec, machine.device).trainable
    checkpoint = trainable * (kept.trained + kept.optimizer)
    copies = spec.saving.save_total_limit + 1 + spec.saving.load_best_model_at_end
    return round(CHECKPOINT_FILES * (copies * checkpoint + trainable * kept.trained))


def smallest_changes(
    spec: RunSpec, machine: Machine, rows: Rows | None = None, *, planner: Planner | None = None
) -> list[Change] | None:
    """The smallest changes that make the run fit: [] when it does, None when nothing helps. Raises Failure."""
    planner = planner or Planner(read_config(spec.model))
    known = at_length(spec, planner.length(spec, rows))
    dtype = recipe.precision(spec, machine.device)
    made = planner.twin(spec, dtype)
    possible = changes.steps(known, dtype)
    if not made.model.supports_gradient_checkpointing:
        possible = (one for one in possible if "training.gradient_checkpointing" not in one.settings)

    def fits(changed: RunSpec) -> bool:
        try:
            return planner.best(changed, machine, rows).fits(machine.device)
        except Failure:  # a change that the layout does not allow
            return False

    return changes.smallest(known, fits, possible)


def suited(
    spec: RunSpec, machine: Machine, rows: Rows | None = None, *, planner: Planner | None = None
) -> tuple[RunSpec, str]:
    """The same run with layout, recompute, micro-batch and length chosen for these devices, and a sentence why.

    As many rows to a step as the spec says; the length keeps the rows whole where that fits; of all that fits the
    fastest. When nothing fits, the spec with its smallest changes, or as it was.
    """
    planner = planner or Planner(read_config(spec.model))
    whole = at_length(spec, planner.length(spec, rows))
    per_step = spec.training.per_device_train_batch_size * spec.training.gradient_accumulation_steps
    found: list[tuple[RunSpec, Chosen]] = []
    for one in _variants(whole, per_step):
        chosen = planner.best(one, machine, rows)
        if chosen.fits(machine.device):
            found.append((one, chosen))
    if not found:
        helped = smallest_changes(whole, machine, rows, planner=planner)
        if helped is None:
            return whole, "Nothing that can be set makes it fit."
        return changes.applied(whole, helped), " ".join(["It fits only like this.", *(one.effect for one in helped)])
    best, chosen = min(found, key=lambda pair: pair[1].pace.seconds)
    return _with_layout(best, chosen), _why(best, chosen, len(found))


def _variants(spec: RunSpec, per_step: int) -> Sequence[RunSpec]:
    """With and without recompute, with micro-batches of every size that divides a step."""
    sizes = [size for size in range(1, min(per_step, MOST_SEQUENCES) + 1) if per_step % size == 0]
    return [
        spec.model_copy(
            update={
                "training": spec.training.model_copy(
                    update={
                        "gradient_checkpointing": recompute,
                        "per_device_train_batch_size": size,
                        "gradient_accumulation_steps": per_step // size,
                    }
                )
            }
        )
        for recompute in (False, True)
        for size in sizes
    ]


def _with_layout(spec: RunSpec, chosen: Chosen) -> RunSpec:
    return spec.model_copy(update={"layout": layout_of(chosen.degrees)})


def _why(spec: RunSpec, chosen: Chosen, fitting: int) -> str:
    training = spec.training
    recompute = "with recompute" if training.gradient_checkpointing else "without recompute"
    return (
        f"The fastest of {fitting} ways that fit: {chosen.degrees}, {training.per_device_train_batch_size} sequences "
        f"of {spec.data.max_length:,} tokens at a time, {recompute}; about {chosen.pace.seconds:.2g} s a step."
    )
