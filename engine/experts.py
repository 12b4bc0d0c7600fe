"""LoRA on routed experts: the low-rank products run beside the grouped ones, and no expert's delta is ever built.

transformers keeps the experts of a layer in stacked parameters and lets their forward pass be chosen by name
(`ALL_EXPERTS_FUNCTIONS`); this is one more. Each expert has an A and a B of its own for each of its two matrices:
`lora_A.<matrix>` (E, R, inputs) and `lora_B.<matrix>` (E, outputs, R) on the experts module. Whoever splits the experts
(expert or tensor parallelism) hands this function its own part of both.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from engine import float8
from engine.products import grouped

NAME = "atelier_experts"
ALIGNMENT = 8  # columns and rows of a grouped product, in elements: torch's kernels want 16 bytes
UP, DOWN = ("gate_up_proj", "up_proj"), "down_proj"


def register() -> None:
    """Offer `NAME` to every model of transformers; doing it twice is harmless."""
    ALL_EXPERTS_FUNCTIONS.register(NAME, forward)
    float8.register(NAME, forward)


def modules(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """The experts modules that run through `forward`, by name."""
    for name, module in model.named_modules():
        if hasattr(module, "has_gate") and hasattr(module, "is_transposed"):
            yield name, module


def adapted(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Those of them that have an adapter."""
    return ((name, module) for name, module in modules(model) if hasattr(module, "lora_A"))


def matrices(experts: Any) -> tuple[str, str]:
    """Names of an experts module's two matrices, in the order in which they are used."""
    return UP[0] if experts.has_gate else UP[1], DOWN


def shape_of(experts: Any, matrix: str) -> tuple[int, int, int]:
    """(experts, inputs, outputs) of one stacked matrix, whole also where only a part of it is kept."""
    count, first, second = getattr(experts, matrix).shape
    return (count, first, second) if experts.is_transposed else (count, second, first)


def add_adapter(experts: Any, rank: int, scale: float, dtype: torch.dtype) -> None:
    """Give an experts module an adapter of zeros; both matrices of every expert."""
    device = experts.down_proj.device
    experts.lora_A, experts.lora_B = nn.ParameterDict(), nn.ParameterDict()
    for matrix in matrices(experts):
        count, inputs, outputs = shape_of(experts, matrix)
        experts.lora_A[matrix] = nn.Parameter(torch.zeros(count, rank, inputs, dtype=dtype, device=device))
        experts.lora_B[matrix] = nn.Parameter(torch.zeros(count, outputs, rank, dtype=dtype, device=device))
    experts.lora_scale, experts.adapter_off = scale, False


def forward(experts: Any, hidden_ND: Tensor, chosen_NK: Tensor, weights_NK: Tensor) -> Tensor:
    """Weighted outputs (N, D) of the chosen experts; the module's own flags say how its matrices lie."""
    per_token = chosen_NK.shape[1]
    expert_S, order = chosen_NK.reshape(-1).sort()
    counts_E = torch.zeros(experts.num_experts, dtype=torch.int32, device=hidden_ND.device)
    counts_E.scatter_add_(0, expert_S, torch.ones_like(expert_S, dtype=torch.int32))
    ends_E = counts_E.cumsum(0, dtype=torch.int32)
    up, down = matrices(experts)
    inner = _product(experts, up, hidden_ND[order // per_token], expert_S, ends_E)
    inner = experts._apply_gate(inner) if experts.has_gate else experts.act_fn(inner)
    out_SD = _product(experts, down, inner, expert_S, ends_E)
    if experts.has_post_expert_norm:
        out_SD = experts.post_expert_norm(out_SD)
    out_SD = out_SD * weights_NK.reshape(-1)[order, None]
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order), device=order.device)
    return out_SD[back].view(len(hidden_ND), per_token, -1).sum(1).to(hidden_ND.dtype)


def _product(experts: Any, matrix: str, rows: Tensor, expert_S: Tensor, ends_E: Tensor) -> Tensor:
    """Each row through its expert's matrix, bias and adapter; rows come sorted by expert."""
    weight = getattr(experts, matrix)
    if hasattr(experts, f"{matrix}_scale_inv"):
        out = float8.grouped_product(experts, matrix, rows, ends_E)
    else:
        out = grouped(rows, weight if experts.is_transposed else weight.transpose(1, 2), ends_E)
    if experts.has_bias:
        out = out + getattr(experts, f"{matrix}_bias")[expert_S]
    if not hasattr(experts, "lora_A") or experts.adapter_off:
        return out
    a, b = experts.lora_A[matrix].to(rows.dtype), (experts.lora_B[matrix] * experts.lora_scale).to(rows.dtype)
    if lacking := -a.shape[1] % ALIGNMENT:
        a, b = F.pad(a, (0, 0, 0, lacking)), F.pad(b, (0, lacking))
    return out + grouped(grouped(rows, a.transpose(1, 2), ends_E), b.transpose(1, 2), ends_E)
