"""The model of a run as the engine would build it, on the meta device: every parameter counted, none in memory."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AutoConfig

from engine import attention, experts, fused, lora, siblings
from engine.auto import class_of
from engine.build import add_adapter, quieten
from engine.failure import Failure
from engine.head import Shape, attach
from engine.plan import foreign
from engine.plan.parameters import Parameters, count
from engine.plan.pretence import META, Pretence
from engine.render.tokenizer import ADVICE
from engine.spec import RunSpec


@dataclass(frozen=True)
class Group:
    """Decoder layers that are alike: where the first one stands, and how many there are."""

    first: int
    layers: int


@dataclass
class Twin:
    """A model on the meta device. `parameters` are those of the whole base, `trainable` those of the whole adapter.

    `groups` are the kinds of layers; `model` keeps one layer of each. `everything`: there is no adapter, all weights
    are trained. `packed`: documents run in one flat sequence, else one at a time. `native`: the attention that the
    model has by itself, with which it samples.
    """

    model: Any
    trunk: nn.Module
    head: nn.Linear
    parameters: Parameters
    trainable: int
    groups: tuple[Group, ...]
    dtype: torch.dtype
    everything: bool
    native: str
    packed: bool = True


def read_config(model: str) -> Any:
    """A model's configuration, from a folder with a `config.json` or by its Hub id. Raises Failure."""
    quieten()
    try:
        return AutoConfig.from_pretrained(model)
    except (OSError, ValueError, KeyError) as error:
        said = str(error).splitlines()[0][:300]
        raise Failure("model_unreadable", f"The configuration of {model} could not be read: {said}", ADVICE) from error


def make(config: Any, dtype: torch.dtype, spec: RunSpec, *, sharded: bool = False) -> Twin:
    """The twin of a model of this configuration, as a run of this spec builds it. Raises Failure.

    `sharded`: weights are cut while they load, for which the engine has no fused parts.
    """
    twin = _bare(config, dtype, None if spec.training.full_finetuning else spec)
    experts.register()
    attention.register()
    if not twin.everything:
        lora.speed_up(twin.model)
        if not sharded:
            _fuse(twin.model, dtype)
    attach(twin.head, Shape.of(twin.model.config.get_text_config()))
    twin.packed = _takes_documents(twin, attention.NAME)
    return twin


def _fuse(model: nn.Module, dtype: torch.dtype) -> None:
    """The parts that the engine would replace: norms, tried on real weights, and gated MLPs, taken at their word."""
    for module in list(model.modules()):
        weight = getattr(module, "weight", None)
        if not list(module.children()) and isinstance(weight, nn.Parameter) and weight.dim() == 1:
            module.weight = nn.Parameter(torch.rand(weight.shape, dtype=dtype), requires_grad=False)
            fused.fuse_norm(module, dtype)
            module.weight = weight
        else:
            with Pretence("cuda"):
                fused.fuse_mlp(module, dtype)
            siblings.join(module)


def make_foreign(config: Any, dtype: torch.dtype, spec: RunSpec) -> Twin:
    """The twin as other trainers have it: with the fused kernels that they bring, instead of the engine's own parts."""
    twin = _bare(config, dtype, None if spec.training.full_finetuning else spec)
    if not twin.everything:
        lora.speed_up(twin.model)
    attach(twin.head, Shape.of(twin.model.config.get_text_config()))
    twin.packed = _takes_documents(twin, foreign.fuse(twin.model))
    return twin


def _bare(config: Any, dtype: torch.dtype, adapted: RunSpec | None) -> Twin:
    """Parameters counted, one layer of each kind kept, PEFT's layers in."""
    quieten()
    config = deepcopy(config)
    config._experts_implementation = experts.NAME
    experts.register()
    model = _empty(config, dtype)
    parameters = count(model, config)
    trunk, head = model.get_decoder(), model.get_output_embeddings()
    if not isinstance(head, nn.Linear) or trunk is model:
        raise Failure("no_head", f"{type(model).__name__} has no language-model head to train with.", ADVICE)
    groups = _shorten(trunk)
    model.requires_grad_(adapted is None)
    if adapted is not None:
        with META:
            add_adapter(model, adapted)
    trainable = parameters.total if adapted is None else _trainable(model, trunk, groups)
    native = model.config._attn_implementation
    return Twin(model, trunk, head, parameters, trainable, groups, dtype, adapted is None, native)


def _trainable(model: nn.Module, trunk: nn.Module, groups: tuple[Group, ...]) -> int:
    """Parameters of the adapter in the whole model."""
    total = _learning(model)
    layers = cast(nn.ModuleList, trunk.layers) if groups else nn.ModuleList()
    return total + sum((group.layers - 1) * _learning(layer) for group, layer in zip(groups, layers, strict=True))


def _learning(module: nn.Module) -> int:
    return sum(value.numel() for value in module.parameters() if value.requires_grad)


def _takes_documents(twin: Twin, ours: str) -> bool:
    """Whether this attention can take the place of the model's own; if not, the model has its own again."""
    attention.register()
    if not twin.model._can_set_attn_implementation():
        return False
    twin.model.set_attn_implementation(ours)
    try:
        with Pretence("cuda"), attention.watched() as witness, torch.no_grad():
            hidden(twin, [8, 8])
        if ours != attention.NAME or not witness.complaint:
            return True
    except (TypeError, ValueError, RuntimeError, AttributeError):
        pass  # whatever it missed, it is run as it is
    twin.model.set_attn_implementation(twin.native)
    return False


def hidden(twin: Twin, lengths: Sequence[int]) -> Tensor:
    """Last hidden states (T, D): one flat sequence of documents, or one document where the model needs it alone."""
    shown = list(lengths) if twin.packed else [max(lengths)]
    ids_1T = torch.zeros(1, sum(shown), dtype=torch.long, device=META)
    positions_1T = torch.cat([torch.arange(length, device=META) for length in shown])[None]
    documents = {"documents": attention.Documents(tuple(shown))} if twin.packed else {}
    out = twin.trunk(input_ids=ids_1T, position_ids=positions_1T, use_cache=False, **documents)
    return cast(Tensor, out.last_hidden_state[0])


def _empty(config: Any, dtype: torch.dtype) -> Any:
    """The model without weights. Raises Failure for a configuration that transformers cannot build."""
    try:
        with META:
            return class_of(config.model_type).from_config(config, dtype=dtype)
    except (ValueError, KeyError, ImportError, AttributeError, TypeError) as error:
        said = str(error).splitlines()[0][:300]
        raise Failure("model_unknown", f"transformers cannot build this model: {said}", ADVICE) from error


def _shorten(trunk: nn.Module) -> tuple[Group, ...]:
    """Keep the first of all layers that are alike; a trunk without a list of layers stays as it is.

    The very first is a kind of its own: what comes before it is frozen, so it keeps less.
    """
    layers = getattr(trunk, "layers", None)
    config = getattr(trunk, "config", None)
    if not isinstance(layers, nn.ModuleList) or config is None:
        return ()
    types = list(getattr(config, "layer_types", None) or [""] * len(layers))
    found: dict[tuple[Any, ...], list[int]] = {}
    for at, layer in enumerate(layers):
        shapes = tuple((name, tuple(value.shape)) for name, value in layer.named_parameters())
        found.setdefault((at == 0, type(layer), types[at], shapes), []).append(at)
    firsts = [members[0] for members in found.values()]
    trunk.layers = nn.ModuleList(layers[at] for at in firsts)
    config.num_hidden_layers = len(firsts)
    if getattr(config, "layer_types", None):
        config.layer_types = [types[at] for at in firsts]
    return tuple(Group(members[0], len(members)) for members in found.values())


@contextmanager
def recomputing(twin: Twin, wanted: bool) -> Iterator[None]:
    """Layers recompute their activations in the backward pass, inside the block."""
    quieten()
    if not wanted or not twin.model.supports_gradient_checkpointing:
        yield
        return
    twin.model.activation_checkpointing_enable({"use_reentrant": False, "determinism_check": "none"})
    try:
        yield
    finally:
        twin.model.activation_checkpointing_disable()
