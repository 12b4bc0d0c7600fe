"""The plan: what a run will need on each device and how long it takes, computed before it starts.

The real model class is built on the meta device from its configuration alone (`twin`), its parameters are counted
(`parameters`), one training step of the engine's own code runs on tensors without memory (`activations`, `pretence`),
and arithmetic does the rest for any layout (`memory`, `pace`). Three questions are asked of it:

- `plan(spec, machine, rows)`: the plan of a run; `report.Plan.json()` is what `atelier plan --json` prints.
- `suited(spec, machine, rows)`: the same run with layout, recompute, micro-batch and length chosen, the fastest that
  fits, and a sentence why.
- `smallest_changes(spec, machine, rows)`: `list[engine.failure.Change]` (settings, effect) that make it fit, the
  least harmful first; [] when it fits, None when nothing helps. `changes.steps(spec)` lists what there is to change.
"""

from engine.failure import Change
from engine.plan.catalogue import Device, parse
from engine.plan.choice import plan, smallest_changes, suited
from engine.plan.planner import Machine, Planner
from engine.plan.report import Plan
from engine.plan.rows import Rows

__all__ = [
    "Change",
    "Device",
    "Machine",
    "Plan",
    "Planner",
    "Rows",
    "parse",
    "plan",
    "smallest_changes",
    "suited",
]
