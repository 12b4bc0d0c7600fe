"""The layout of a run that leaves it open: planned for the devices at hand, before its processes start."""

from engine.failure import Failure
from engine.layout.degrees import layout_of
from engine.plan.catalogue import GIB
from engine.plan.here import here
from engine.plan.planner import Chosen, Machine, Planner
from engine.plan.twin import read_config
from engine.rundir import PlannedLayout
from engine.spec import RunSpec


def planned(spec: RunSpec) -> PlannedLayout | None:
    """The fastest layout that fits; None for a single device, and where the model cannot be read."""
    machine = here(spec)
    if not spec.layout.is_open or machine.number == 1:
        return None
    try:
        chosen = Planner(read_config(spec.model)).best(spec, machine)
    except Failure:  # one device then, where the run tells what is wrong
        return None
    return PlannedLayout(layout=layout_of(chosen.degrees), why=_why(chosen, machine))


def _why(chosen: Chosen, machine: Machine) -> str:
    device, total = machine.device, chosen.needs.total / GIB
    sort = "the fastest that fits" if chosen.fits(device) else "nothing fits, and this needs the least memory"
    return (
        f"Planned for {machine.number} x {device.name}: {sort}; about {total:.1f} of {device.room / GIB:.1f} GiB on "
        f"each, {chosen.pace.seconds:.2g} s a step."
    )
