"""Plans for a process that stays: the planners of the models that were asked about last are kept."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from engine.plan.choice import on_fewest
from engine.plan.here import device_of
from engine.plan.planner import Machine, Planner
from engine.plan.rows import Rows
from engine.plan.twin import read_config
from engine.spec import RunSpec

MOST_PLANNERS = 4


class PlanDesk:
    """Answers with plans."""

    def __init__(self) -> None:
        self.planners: OrderedDict[str, Planner] = OrderedDict()

    def told(
        self,
        spec: RunSpec,
        devices: Sequence[dict[str, Any]],
        usable: int,
        survey: Mapping[str, Any] | None,
        tokens_per_second: float | None,
    ) -> dict[str, Any]:
        """`report.Plan.told` of a run on these devices (see `here.device_of`). Raises Failure."""
        machine = Machine(len(devices), device_of(devices[0]))
        rows, planner = Rows.of(usable, survey), self._planner(spec.model)
        return on_fewest(spec, machine, rows, planner=planner, tokens_per_second=tokens_per_second).told()

    def _planner(self, model: str) -> Planner:
        if model not in self.planners:
            self.planners[model] = Planner(read_config(model))
            if len(self.planners) > MOST_PLANNERS:
                self.planners.popitem(last=False)
        self.planners.move_to_end(model)
        return self.planners[model]
