"""Weights cut while they load, by transformers (FSDP2, tensor, expert), and the forward pass that gathers them.

transformers reads of each file only what this process keeps, and gathers a layer's weights (FSDP2) while it computes.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

from torch import nn
from torch.distributed.fsdp import FSDPModule
from transformers.distributed.configuration_utils import DistributedConfig
from transformers.distributed.utils import initialize_distributed_mesh

from engine.layout.degrees import Degrees

T = TypeVar("T")


def loading(degrees: Degrees) -> dict[str, Any]:
    """What `from_pretrained` is told, so that each process reads its own part; nothing when copies are whole."""
    if not degrees.sharded:
        return {}
    config = DistributedConfig(
        dp_replicate_size=degrees.data,
        fsdp_size=degrees.shard * degrees.context,
        tp_size=degrees.tensor,
        ep_size=degrees.expert,
        ep_implementation="all_to_all",
    )
    return {"distributed_config": config}


def cut(model: Any, degrees: Degrees) -> None:
    """Cut the frozen weights of a model that had to be loaded whole, as `loading` has it done meanwhile."""
    if not degrees.sharded:
        return
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if head is not None and head.weight is embedding.weight:  # FSDP2 wants one owner for every weight
        head.weight = nn.Parameter(embedding.weight.detach().clone(), requires_grad=False)
    config = loading(degrees)["distributed_config"]
    _, mesh = initialize_distributed_mesh(config)
    type(model).maybe_distribute_model(model, config, mesh)


def open_forward(model: Any) -> None:
    """Let `inside` run code of ours within the model's own forward pass."""
    plain = model.forward

    @wraps(plain)
    def forward(*given: Any, inside: Callable[[], Any] | None = None, **named: Any) -> Any:
        return plain(*given, **named) if inside is None else inside()

    model.__dict__["forward"] = forward


@contextmanager
def as_one(model: Any) -> Iterator[None]:
    """Inside the block transformers takes the model for one that is not split, and calls no other process."""
    split = model.config.__dict__.pop("distributed_config", None)
    try:
        yield
    finally:
        if split is not None:
            model.config.distributed_config = split


def settle(model: Any) -> None:
    """Let go of weights that a pass without a backward left gathered: their shards are what is saved and changed."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def inside(model: Any, work: Callable[[], T]) -> T:
    """Do `work` within the model's forward pass.

    FSDP2 gathers and frees weights around calls of modules, and counts on the outermost one being called first; so
    nothing may call the trunk or the head by itself.
    """
    result: T = model(inside=work)
    return result
