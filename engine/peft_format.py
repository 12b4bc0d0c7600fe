"""The adapter in PEFT's names and shapes, so that stock PEFT puts every part of it where it was trained.

Three things differ from what is held in memory. Adapters of routed experts are `target_parameters` in PEFT: one matrix
for all experts, nested around the module. On some families of experts PEFT reads the names of dense layers
(`gate_proj`) as those of routed experts, so dense layers are named there by their weights. And PEFT renames what it
reads as transformers renames the family's own files, where some rules change names that are right already (Mistral
Large 4: `.experts.` becomes `.mlp.experts.`, also after `.mlp`), so in what is stored these rules are undone.
"""

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from peft import PeftConfig, get_peft_model_state_dict
from peft.tuners.lora.layer import Linear as LoraLinear
from peft.utils.transformers_weight_conversion import (
    convert_peft_adapter_state_dict_for_transformers,
    convert_peft_config_for_transformers,
)
from torch import Size, Tensor
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightRenaming

from engine import experts
from engine.lora import ADAPTER

PREFIX = "base_model.model."
MAGNITUDE = f"lora_magnitude_vector.{ADAPTER}.weight"


def state_dict(adapter: Any, model: Any, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Whole trained weights by their names in the model, as PEFT names and shapes them in its file."""
    routed = dict(experts.adapted(model))
    dense = {PREFIX + name: value for name, value in weights.items() if _owner(name) not in routed}
    found: dict[str, Tensor] = get_peft_model_state_dict(adapter, state_dict=dense, save_embedding_layers=False)
    for name, value in weights.items():
        if (module := _owner(name)) in routed:
            found[_nested(name, routed[module])] = _stacked(_kind(name), value)
    return _stored(adapter, model, {name: value.contiguous() for name, value in found.items()})


def as_read(adapter: Any, stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What stock PEFT makes of the names in an adapter's file."""
    config = adapter.peft_config[ADAPTER]
    return dict(convert_peft_adapter_state_dict_for_transformers(adapter, config, dict(stored), ADAPTER))


def _stored(adapter: Any, model: Any, named: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by the names from which PEFT makes their own."""
    lost = named.keys() - as_read(adapter, named).keys()
    if not lost:
        return named
    rules = [rule for rule in get_model_conversion_mapping(model) if isinstance(rule, WeightRenaming)]
    return {_undone(name, rules) if name in lost else name: value for name, value in named.items()}


def _undone(name: str, rules: Sequence[WeightRenaming]) -> str:
    """A name without what each of the rules would do to it."""
    inner = name.removeprefix(PREFIX)
    for rule in rules:
        if rule.rename_source_key(inner)[0] != inner:
            inner, _ = rule.reverse_transform().rename_source_key(inner)
    return PREFIX + inner


def parameters(model: Any, shapes: Mapping[str, Size], found: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What `state_dict` gave, as whole trained weights by their names in the model, which have these `shapes`.

    Raises KeyError with the name of what is missing, of another shape, or beyond the model's own.
    """
    routed, left, weights = dict(experts.adapted(model)), dict(found), {}
    for name, shape in shapes.items():
        module = routed.get(_owner(name))
        stored = PREFIX + name.replace(MAGNITUDE, MAGNITUDE.partition(".")[0]).replace(f".{ADAPTER}.", ".")
        stored = stored if module is None else _nested(name, module)
        value = left.pop(stored)
        weights[name] = value if module is None else _unstacked(_kind(name), value, shape)
        if weights[name].shape != shape:
            raise KeyError(stored)
    if left:
        raise KeyError(next(iter(left)))
    return weights


def _kind(name: str) -> str:
    """`lora_A` or `lora_B`, of a parameter of an experts module."""
    return name.split(".")[-2]


def _nested(name: str, module: Any) -> str:
    """PEFT's name for an adapter parameter of an experts module."""
    owner, kind, matrix = name.rsplit(".", 2)
    up, _down = experts.matrices(module)
    return f"{PREFIX}{owner}{'.base_layer' if matrix == up else ''}.{kind}.weight"  # the last one listed is outermost


def _owner(name: str) -> str:
    """The experts module of an adapter parameter, were it one: `<module>.lora_A.<matrix>`."""
    return name.rsplit(".", 2)[0]


def _stacked(kind: str, value: Tensor) -> Tensor:
    """A (E, R, I) -> (E R, I), expert by expert; B (E, O, R) -> (O, R E), rank by rank."""
    if kind == "lora_A":
        return value.reshape(-1, value.shape[-1])
    return value.permute(1, 2, 0).reshape(value.shape[1], -1)


def _unstacked(kind: str, value: Tensor, shape: Size) -> Tensor:
    """The opposite of `_stacked`, for a whole parameter of this shape."""
    if value.numel() != shape.numel():
        return value
    if kind == "lora_A":
        return value.reshape(shape)
    count, outputs, rank = shape
    return value.reshape(outputs, rank, count).permute(2, 0, 1)


def config_of(model: Any, config: PeftConfig) -> PeftConfig:
    """The config that makes stock PEFT adapt the same matrices."""
    shown: Any = copy.deepcopy(config)
    shown.inference_mode = True
    parameters = [
        re.sub(r"^.*\.\d+\.", "", f"{name}.{matrix}")
        for name, module in experts.adapted(model)
        for matrix in experts.matrices(module)
    ]
    read: Any = copy.deepcopy(config)
    convert_peft_config_for_transformers(read, model, None)
    if isinstance(shown.target_modules, set) and isinstance(read.target_modules, set):
        misread = shown.target_modules - read.target_modules
        shown.target_modules = shown.target_modules & read.target_modules
        layers = [name for name, layer in model.named_modules() if isinstance(layer, LoraLinear)]
        parameters += [f"{name}.weight" for name in layers if name.rpartition(".")[2] in _leaves(misread)]
    shown.target_parameters = list(dict.fromkeys(parameters)) or None
    return cast(PeftConfig, shown)


def _leaves(names: set[str]) -> set[str]:
    return {name.rpartition(".")[2] for name in names}
