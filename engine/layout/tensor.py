"""Tensor parallelism for adapters: a layer's slice of the weight, with the slice of A or B that goes with it.

transformers cuts the base weights by the family's plan. PEFT's own layers do not follow it for most styles, so each
adapted layer gets a forward pass of its own here, on plain local tensors:

- column-wise (outputs cut): A whole, B cut. Here x A^T B_i^T is this process's slice of the output.
- row-wise (inputs cut): A cut, B whole. x_i A_i^T B^T is a part of a sum, which the base layer's own sum completes.

So an adapter costs no collective in a layer beyond the base's. What is kept whole (A, or B) sees a part of its
gradient; the parts are summed with all other gradients at the end of the step.
"""

from collections.abc import Callable
from typing import Any, cast

from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers.distributed.parallel_utils import ALL_PARALLEL_STYLES, replace_layer_number_by_wildcard

from engine import lora
from engine.failure import Failure
from engine.layout.exchange import gathered, own_part, shared, summed
from engine.layout.mesh import Mesh
from engine.layout.placement import Placement

COLUMN, ROW = ("colwise", "colwise_gather_output", "colwise_rep"), ("rowwise", "rowwise_split_input", "rowwise_rep")
WHOLE = ("", "mla_kv_a_proj", "replicate")
Forward = Callable[[Tensor], Tensor]


def style_of(model: Any, name: str) -> str:
    """How the family's plan cuts the linear layer of this name; empty: not at all."""
    return str(model.tp_plan.get(replace_layer_number_by_wildcard(name), ""))


def place(layer: Any, name: str, style: str, mesh: Mesh) -> tuple[Placement, Placement]:
    """Where A and B of an adapted layer lie. Raises Failure for a style or a width that cannot be cut."""
    whole, partial = Placement(mesh.slices), Placement(mesh.world)
    if style in WHOLE:
        return whole, whole
    if style not in COLUMN + ROW:
        raise Failure(
            "plan_not_supported",
            f"Tensor parallelism cuts {name} as {style}, for which Atelier has no adapter.",
            ["Leave this layer out of Target modules.", "Set Tensor to 1."],
        )
    base, ways = layer.base_layer, mesh.tensor.size
    width = base.out_features if style in COLUMN else base.in_features
    if width % ways:
        raise Failure(
            "width_not_divisible",
            f"{name} is {width} wide, which {ways} devices cannot share evenly.",
            ["Choose a smaller Tensor degree that divides it."],
        )
    if style in COLUMN:
        return partial, Placement(mesh.slices, 0, mesh.tensor)
    return Placement(mesh.slices, 1, mesh.tensor), partial


def install(layer: Any, style: str, mesh: Mesh) -> None:
    """Give an adapted layer the forward pass that its style needs."""
    make = _column if style in COLUMN else _row if style in ROW else _whole
    ours, theirs = make(layer, style, mesh), layer.base_layer

    def forward(x: Tensor) -> Tensor:
        return cast(Tensor, theirs(x)) if layer.disable_adapters else ours(x)

    layer.__dict__["forward"] = forward


def _local(value: Any) -> Any:
    """A weight's part that lies here; a bias that there is not stays None."""
    return value.to_local() if isinstance(value, DTensor) else value


def _column(layer: Any, style: str, mesh: Mesh) -> Forward:
    base, gathers = layer.base_layer, style != "colwise"
    sizes = (base.out_features // mesh.tensor.size,) * mesh.tensor.size

    def forward(x: Tensor) -> Tensor:
        out = lora.apply(layer, shared(x, mesh.tensor), _local(base.weight), _local(base.bias))
        return gathered(out, -1, sizes, mesh.tensor) if gathers else out

    return forward


def _row(layer: Any, style: str, mesh: Mesh) -> Forward:
    base, cuts = layer.base_layer, style != "rowwise"

    def forward(x: Tensor) -> Tensor:
        x = own_part(x, -1, mesh.tensor) if cuts else x
        out = summed(lora.apply(layer, x, _local(base.weight), None), mesh.tensor)
        return out if base.bias is None else out + _local(base.bias)

    return forward


def _whole(layer: Any, style: str, mesh: Mesh) -> Forward:
    base = layer.base_layer
    hook = ALL_PARALLEL_STYLES[style] if style else None

    def forward(x: Tensor) -> Tensor:
        out = lora.apply(layer, x, _local(base.weight), _local(base.bias))
        if hook is None:
            return out
        return cast(Tensor, hook.transform_output_post_forward(base, out, base_mesh))

    base_mesh = _TensorGroup(mesh)
    return forward


class _TensorGroup:
    """The part of a device mesh that transformers' output hooks ask for: the tensor group."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh

    def get_group(self) -> Any:
        """Torch's handle of the group."""
        return self._mesh.tensor.handle
