"""Parameters of a model by what they are: embedding, attention, routed experts and so on; exact, none in memory."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

Kind = Literal[
    "embedding", "head", "attention", "mlp", "experts", "shared_experts", "router", "norm", "vision", "other"
]
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
# By the names that transformers gives its modules; the first that is found in a parameter's path decides.
_NAMES: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("vision", re.compile(r"(^|\.)(vision|visual|image|audio|multi_modal|mm)_?\w*\.")),
    ("shared_experts", re.compile(r"\.shared_experts?\w*\.")),
    ("experts", re.compile(r"\.experts\.")),
    ("router", re.compile(r"\.(router|gate|e_score_correction_bias)\b(?!_)")),
    ("norm", re.compile(r"norm|layernorm|\bln_")),
    ("attention", re.compile(r"\.(\w*attn\w*|\w*attention\w*|mixer|linear_attn)\.")),
    ("mlp", re.compile(r"\.(mlp|feed_forward|ffn|block_sparse_moe)\.")),
)


@dataclass(frozen=True)
class Parameters:
    """Counts of a model's parameters.

    `layers`: those of each decoder layer by kind; `experts`: (all, chosen); `tied`: the head is the embedding.
    """

    by_kind: Mapping[Kind, int]
    layers: tuple[Mapping[Kind, int], ...] = ()
    experts: tuple[int, int] = (1, 1)
    tied: bool = False

    @property
    def total(self) -> int:
        """Every parameter once."""
        return sum(self.by_kind.values())

    @property
    def active(self) -> int:
        """Parameters that one token meets: of the routed experts only the chosen ones."""
        every, chosen = self.experts
        routed = self.by_kind.get("experts", 0)
        return self.total - routed + routed * chosen // every

    def local(self, expert: int) -> int:
        """Parameters on one device when the routed experts are spread over `expert` of them."""
        routed = self.by_kind.get("experts", 0)
        return self.total - routed + routed // expert

    @property
    def largest_layer(self) -> Mapping[Kind, int]:
        """The decoder layer with the most parameters."""
        return max(self.layers, key=lambda layer: sum(layer.values()), default={})


def kind_of(name: str) -> Kind:
    """What a parameter is, from its path in a model of transformers."""
    for kind, pattern in _NAMES:
        if pattern.search(name):
            return kind
    return "other"


def count(model: nn.Module, config: Any) -> Parameters:
    """The parameters of a base model (no adapter in it), exact; weights that are one tensor count once."""
    embedding, head = (_weight(model, f"get_{which}_embeddings") for which in ("input", "output"))
    by_kind: dict[Kind, int] = {}
    layers: dict[int, dict[Kind, int]] = {}
    for name, value in model.named_parameters():
        kind: Kind = "embedding" if value is embedding else "head" if value is head else kind_of(name)
        by_kind[kind] = by_kind.get(kind, 0) + value.numel()
        at = _LAYER.search(name)
        if at and kind != "vision":
            layer = layers.setdefault(int(at[1]), {})
            layer[kind] = layer.get(kind, 0) + value.numel()
    return Parameters(
        by_kind=by_kind,
        layers=tuple(layers[number] for number in sorted(layers)),
        experts=experts_of(config.get_text_config()),
        tied=embedding is not None and embedding is head,
    )


def experts_of(text: Any) -> tuple[int, int]:
    """(routed experts in a layer, of these a token meets) as a text config says; (1, 1) for a dense model."""
    every = next((n for key in _EXPERTS if (n := getattr(text, key, None))), 1)
    chosen = next((n for key in _CHOSEN if (n := getattr(text, key, None))), 1)
    return int(every), min(int(chosen), int(every))


_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "top_k_experts")


def _weight(model: nn.Module, getter: str) -> nn.Parameter | None:
    module = getattr(model, getter)()
    weight = getattr(module, "weight", None)
    return weight if isinstance(weight, nn.Parameter) else None
