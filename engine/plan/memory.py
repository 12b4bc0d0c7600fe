"""Bytes on one device, part by part, at the moment of a step when they are most. Pure arithmetic.

A step has moments that can be the fullest: when the loss is computed (all activations, the head), when the backward
pass begins (all activations, one layer's working set), when it ends (all gradients); and, of methods that sample, when
the answers are nearly written (their keys and values).
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from engine.layout.degrees import Degrees
from engine.plan.activations import Activations
from engine.plan.answers import Sampling
from engine.plan.parameters import Kind, Parameters
from engine.plan.recipe import Recipe
from engine.plan.reserve import NONE, Reserve

WIDE: tuple[Kind, ...] = (
    "attention",
    "mlp",
    "shared_experts",
    "experts",
)  # kinds of weights that a quantised base keeps in fewer bytes
LOGIT_BYTES = 6  # of a trainer that keeps logits: one in bfloat16, and its float32 copy in the loss
SHIFTED_BYTES = 2  # and a copy of them without the last token, where there are several sequences
PREFETCHED = 2  # layers that are whole at once: the one that computes and the next


@dataclass(frozen=True)
class Needs:
    """Bytes on one device at the fullest moment, by part; `moment` names it."""

    weights: int
    adapter: int
    gradients: int
    optimizer: int
    activations: int
    cache: int
    gathered: int
    head: int
    dispatch: int
    reserve: int
    moment: str

    @property
    def total(self) -> int:
        """All parts together."""
        return sum(getattr(self, one.name) for one in fields(self) if one.name != "moment")

    @property
    def buffers(self) -> int:
        """What is neither weights nor their training state nor activations."""
        return self.cache + self.gathered + self.head + self.dispatch + self.reserve


@dataclass(frozen=True)
class Model:
    """What of a model the arithmetic needs.

    `trainable`: parameters of the adapter, or all; `heads_width`: query heads times their width; `key_heads`: heads of
    keys and values; `keys_width`: numbers in both of a token; `sliced`: kinds of weights that the family's plan for
    tensor parallelism cuts.
    """

    parameters: Parameters
    trainable: int
    hidden: int
    vocabulary: int
    heads_width: int = 0
    key_heads: int = 1
    keys_width: int = 0
    sliced: tuple[Kind, ...] = ()


@dataclass(frozen=True)
class Batch:
    """One micro-batch on one device: its tokens there, its sequences, and bytes of one activation."""

    tokens: int
    sequences: int = 1
    width: int = 2


def needs(
    model: Model,
    recipe: Recipe,
    degrees: Degrees,
    activations: Activations,
    batch: Batch,
    reserve: Reserve = NONE,
    sampling: Sampling | None = None,
) -> Needs:
    """The parts at the fullest moment of a step on one device."""
    whole_layer = layer_bytes(model, recipe, degrees)
    trained = _trained(model, degrees, recipe)
    gradients, optimizer = round(trained * recipe.gradient), round(trained * recipe.optimizer)
    passing = PREFETCHED * round(whole_layer * recipe.gradient / recipe.weights) if recipe.everything else 0
    passing *= degrees.copy > 1  # gradients of whole layers on their way to those who keep them
    cut = 1 - activations.sliced * (1 - 1 / degrees.tensor) if model.sliced else 1.0
    kept, working = round(activations.kept * cut), round(activations.working * cut)
    head = head_bytes(model, recipe, activations, batch)
    root = gathered_root(model, recipe, degrees)
    layers = (PREFETCHED * whole_layer if degrees.copy > 1 and recipe.reshards else 0) + recipe.unpacked
    early, unused = gradients if recipe.keeps_gradients else 0, round(reserve.unused * kept)
    moments = {
        "the loss is computed": (early, kept, head, root, 0, unused),
        "the backward pass begins": (early, kept + working, 0, root + layers + passing, 0, unused),
        "the backward pass ends": (gradients, working, 0, root + layers + passing, 0, unused),
    }
    if sampling is not None:
        slices = _slices(model, degrees, "attention")
        cached, one_more = (round(size / slices) for size in (sampling.cache, sampling.working))
        spare = round(reserve.unused * cached)
        moments["answers are sampled"] = (0, one_more, sampling.choice, root + layers, cached, spare)
    moment = max(moments, key=lambda name: sum(moments[name]))
    now, alive, tiles, gathered, cache, between = moments[moment]
    return Needs(
        weights=round(resident(model, recipe, degrees)),
        adapter=0 if recipe.everything else round(trained * recipe.trained),
        gradients=now,
        optimizer=optimizer,
        activations=alive,
        cache=cache,
        gathered=gathered,
        head=tiles,
        dispatch=dispatch_bytes(model, degrees, batch),
        reserve=reserve.always + between,
        moment=moment,
    )


def share(model: Model, recipe: Recipe, degrees: Degrees, kind: Kind, *, sharded: bool) -> float:
    """The share of the weights of a kind on one device; `sharded`: as they are kept, not as a layer needs them."""
    if kind == "experts":
        spread = degrees.copy if sharded and recipe.shares_experts else degrees.expert
        return 1 / (spread if degrees.expert > 1 or sharded else _slices(model, degrees, kind))
    slices = _slices(model, degrees, kind)
    return 1 / (slices * (degrees.shard * degrees.context if sharded else 1))


def _slices(model: Model, degrees: Degrees, kind: Kind) -> int:
    return degrees.tensor if kind in model.sliced else 1


def _bytes(counts: Mapping[Kind, int], recipe: Recipe) -> dict[Kind, float]:
    width = dict.fromkeys(WIDE, recipe.weights)
    if recipe.experts is not None:
        width["experts"] = recipe.experts
    return {kind: number * width.get(kind, recipe.others) for kind, number in counts.items()}


def resident(model: Model, recipe: Recipe, degrees: Degrees) -> float:
    """Bytes of base weights that stay on a device."""
    counts = model.parameters.by_kind
    pieces = _bytes(counts, recipe).items()
    scales = recipe.scales * sum(number for kind, number in counts.items() if kind in WIDE and kind != "experts")
    return scales + sum(size * share(model, recipe, degrees, kind, sharded=recipe.reshards) for kind, size in pieces)


def layer_bytes(model: Model, recipe: Recipe, degrees: Degrees) -> int:
    """Bytes of the largest decoder layer while it computes, of what had to be gathered for that."""
    sizes = _bytes(model.parameters.largest_layer, recipe)
    gathered = {
        kind: size * share(model, recipe, degrees, kind, sharded=False)
        for kind, size in sizes.items()
        if share(model, recipe, degrees, kind, sharded=False) > share(model, recipe, degrees, kind, sharded=True)
    }
    return round(sum(gathered.values()))


def gathered_root(model: Model, recipe: Recipe, degrees: Degrees) -> int:
    """Bytes of embedding and head, which are whole from the first layer to the last."""
    if degrees.shard * degrees.context == 1 or not recipe.reshards:
        return 0
    sizes = _bytes(model.parameters.by_kind, recipe)
    return round(
        sum(sizes.get(kind, 0) * share(model, recipe, degrees, kind, sharded=False) for kind in ("embedding", "head"))
    )


def head_bytes(model: Model, recipe: Recipe, activations: Activations, batch: Batch) -> int:
    """Bytes that computing the loss takes on top of the activations."""
    if recipe.head == "tiles":
        return activations.head
    if recipe.head == "logits":
        return batch.tokens * model.vocabulary * (LOGIT_BYTES + (SHIFTED_BYTES if batch.sequences > 1 else 0))
    return 3 * batch.tokens * model.hidden * batch.width


def dispatch_bytes(model: Model, degrees: Degrees, batch: Batch) -> int:
    """Bytes of rows on their way to experts and back: a copy for each choice, and room for what others may send."""
    if degrees.expert == 1:
        return 0
    _, chosen = model.parameters.experts
    return 4 * batch.tokens * (chosen + degrees.expert) * model.hidden * batch.width


def _trained(model: Model, degrees: Degrees, recipe: Recipe) -> float:
    """Trained parameters whose gradients and moments a device keeps: an adapter whole, all weights by their share."""
    if not recipe.everything:
        return model.trainable
    kinds = model.parameters.by_kind.items()
    return sum(count * share(model, recipe, degrees, kind, sharded=True) for kind, count in kinds)
