"""Routed experts on a mesh: which experts' adapters are kept here, or which slice of every expert's.

transformers moves tokens to the process that has their expert (all-to-all), or sums the slices' outputs (tensor
parallelism without expert parallelism). Either way the adapter lies like the base weights:

| | up A | up B | down A | down B |
|---|---|---|---|---|
| expert | own experts | own experts | own experts | own experts |
| tensor | whole, partial gradient | outputs cut | inputs cut | whole, partial gradient |

An owner sees the tokens of its whole expert group, so gradients are summed over those who keep the same experts only.
"""

from typing import Any

from transformers.distributed.parallel_utils import replace_layer_number_by_wildcard

from engine.experts import matrices
from engine.failure import Failure
from engine.layout.mesh import Mesh
from engine.layout.placement import Placement


def place(model: Any, name: str, experts: Any, mesh: Mesh) -> dict[str, Placement]:
    """Where each adapter parameter of an experts module lies, by its name within the module."""
    up, down = matrices(experts)
    if mesh.expert.size > 1:
        own = Placement(mesh.holders, 0, mesh.expert)
        return {f"lora_{matrix}.{which}": own for matrix in "AB" for which in (up, down)}
    styles = {which: model.tp_plan.get(replace_layer_number_by_wildcard(f"{name}.{which}"), "") for which in (up, down)}
    if mesh.tensor.size == 1 or not any(styles.values()):
        whole = Placement(mesh.slices)
        return {f"lora_{matrix}.{which}": whole for matrix in "AB" for which in (up, down)}
    if styles != {up: "packed_colwise" if experts.has_gate else "colwise", down: "rowwise"}:
        raise Failure(
            "plan_not_supported",
            f"Tensor parallelism cuts {name} as {styles}, for which Atelier has no adapter.",
            ["Use all-linear as Target modules.", "Set Expert to the number of devices, or Tensor to 1."],
        )
    partial = Placement(mesh.world)
    return {
        f"lora_A.{up}": partial,
        f"lora_B.{up}": Placement(mesh.slices, 1, mesh.tensor, blocks=2 if experts.has_gate else 1),
        f"lora_A.{down}": Placement(mesh.slices, 2, mesh.tensor),
        f"lora_B.{down}": partial,
    }
