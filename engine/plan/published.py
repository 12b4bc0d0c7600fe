"""`python -m engine.plan.published`: peaks of memory that others have published, beside what is planned for them.

One model of memory for all rows: what differs between them is what their sources state (layout, bytes a parameter,
recompute, which loss kernel). Sources: Halo 1.1.0, docs/benchmarks (8 x B300, AdamW in bfloat16, tables of peaks per
GPU); TRL 1.17, release notes (Mistral Large 4 with LoRA on 8 x B300) and, as measured by Halo, TRL with ZeRO-3.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from transformers import GptOssConfig, MistralLarge4Config, Qwen3Config, Qwen3MoeConfig

from engine.layout.degrees import Degrees
from engine.plan.activations import Activations, measure
from engine.plan.catalogue import GIB
from engine.plan.memory import Batch, Model, Needs, needs
from engine.plan.recipe import Recipe
from engine.plan.twin import Twin, make_foreign
from engine.spec import Data, RunSpec, Training

TOLERANCE = 0.15

HALO = Recipe(gradient=2, optimizer=4, everything=True, keeps_gradients=False, reshards=False, head="logits")
HALO_EP = replace(HALO, shares_experts=False)  # experts that are spread are not sharded on top
HALO_Z3 = replace(HALO, reshards=True)
TRL_Z3 = Recipe(gradient=4, optimizer=10, everything=True, keeps_gradients=False, head="fused")
TRL_LORA = Recipe(weights=1, keeps_gradients=True, head="fused", unpacked=GIB)

EP1, EP2, EP8 = Degrees(shard=8), Degrees(shard=8, expert=2), Degrees(shard=8, expert=8)
K = 1024
HEADS: dict[str, Any] = {"head_dim": 128}


@dataclass(frozen=True)
class Row:
    """One published peak: GiB per device for sequences of `length` tokens, `batch` of them on each device."""

    model: str
    trainer: str
    recipe: Recipe
    degrees: Degrees
    length: int
    batch: int
    published: float
    recompute: bool = True

    @property
    def label(self) -> str:
        """What it is, in one line."""
        recompute = "" if self.recompute else ", no recompute"
        return f"{self.model}, {self.trainer}, {self.length // K}k x {self.batch}{recompute}"


MODELS: dict[str, Callable[[], Any]] = {
    "gpt-oss-20b": lambda: GptOssConfig(num_hidden_layers=24, num_local_experts=32),
    "gpt-oss-120b": lambda: GptOssConfig(num_hidden_layers=36, num_local_experts=128),
    "Mistral Large 4": MistralLarge4Config,
    "Qwen3-30B-A3B": lambda: Qwen3MoeConfig(
        hidden_size=2048,
        num_hidden_layers=48,
        num_attention_heads=32,
        num_key_value_heads=4,
        **HEADS,
        num_experts=128,
        num_experts_per_tok=8,
        moe_intermediate_size=768,
        intermediate_size=6144,
        vocab_size=151936,
    ),
    "Qwen3-4B": lambda: Qwen3Config(
        hidden_size=2560,
        num_hidden_layers=36,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        intermediate_size=9728,
        vocab_size=151936,
        tie_word_embeddings=True,
    ),
    "Qwen3-8B": lambda: Qwen3Config(
        hidden_size=4096,
        num_hidden_layers=36,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        intermediate_size=12288,
        vocab_size=151936,
    ),
}


def rows() -> Iterator[Row]:
    """Every published peak that is compared."""
    oss = "gpt-oss-20b"
    table: tuple[tuple[str, Recipe, Degrees, dict[tuple[int, int], float]], ...] = (
        ("Halo EP1 ZeRO-2", HALO, EP1, {(4, 1): 60, (4, 2): 67, (4, 4): 81, (16, 1): 76, (32, 1): 97, (64, 1): 138}),
        ("Halo EP1 ZeRO-3", HALO_Z3, EP1, {(4, 1): 28.7, (4, 4): 41.6, (16, 1): 37.9, (32, 1): 59, (64, 1): 100}),
        ("Halo EP2", HALO_EP, EP2, {(4, 1): 77, (4, 4): 91, (16, 1): 85, (32, 1): 112, (64, 1): 166}),
        ("Halo EP8", HALO_EP, EP8, {(4, 1): 26, (4, 2): 37, (4, 4): 53, (16, 1): 49, (32, 1): 80, (64, 1): 140}),
        ("TRL ZeRO-3", TRL_Z3, EP1, {(4, 1): 47.6, (16, 1): 50.6, (32, 1): 56, (64, 1): 66, (128, 1): 93}),
        ("Halo EP8 CP8", HALO_EP, Degrees(context=8, expert=8), {(16, 1): 23.6, (64, 1): 33.9, (128, 1): 47}),
        ("Halo EP1 ZeRO-3, fused loss", replace(HALO_Z3, head="fused"), EP1, {(128, 1): 67, (256, 1): 112}),
    )
    for trainer, recipe, degrees, peaks in table:
        for (length, batch), peak in peaks.items():
            yield Row(oss, trainer, recipe, degrees, length * K, batch, peak)
    alone = replace(HALO_EP, shares_experts=False)
    yield Row(oss, "Halo EP1, experts on every device", alone, EP1, 4 * K, 1, 148.3)
    for length, peak in ((4, 41), (8, 67), (16, 117)):
        yield Row(oss, "Halo EP8", HALO_EP, EP8, length * K, 1, peak, recompute=False)
    big = "Qwen3-30B-A3B"
    for trainer, recipe, degrees, found in (
        ("Halo EP2", HALO_EP, EP2, ((4, 112), (16, 116), (32, 138))),
        ("Halo EP8", HALO_EP, EP8, ((4, 33), (16, 61), (32, 100))),
        ("Halo EP1 ZeRO-3", HALO_Z3, EP1, ((4, 35),)),
    ):
        for length, peak in found:
            yield Row(big, trainer, recipe, degrees, length * K, 1, peak)
    for name, length, peak in (("Qwen3-4B", 4, 102), ("Qwen3-4B", 8, 181), ("Qwen3-8B", 4, 140), ("Qwen3-8B", 8, 235)):
        yield Row(name, "Halo, one device", HALO, Degrees(), length * K, 4, peak, recompute=False)
    yield Row("Mistral Large 4", "TRL, LoRA, EP8", TRL_LORA, EP8, 4 * K, 1, 142)


@cache
def _twin(name: str, everything: bool) -> Twin:
    spec = RunSpec(model=name, data=Data(dataset=""), training=Training(full_finetuning=everything))
    return make_foreign(MODELS[name](), torch.bfloat16, spec)


@cache
def _activations(made: str, everything: bool, tokens: int, sequences: int, recompute: bool) -> Activations:
    return measure(_twin(made, everything), [tokens] * sequences, kind="cuda", recompute=recompute)


def plan(row: Row) -> Needs:
    """What is planned for the configuration of a row."""
    made = _twin(row.model, row.recipe.everything)
    local = row.length // row.degrees.context
    found = _activations(row.model, row.recipe.everything, local, row.batch, row.recompute)
    text = made.model.config.get_text_config()
    model = Model(made.parameters, made.trainable, text.hidden_size, text.vocab_size)
    return needs(model, row.recipe, row.degrees, found, Batch(local * row.batch, row.batch))


def table() -> Iterator[str]:
    """Markdown: every row with its published and its planned peak."""
    yield "| configuration | published, GiB | planned, GiB | difference |\n|---|---:|---:|---:|"
    inside = total = 0
    for row in rows():
        planned = plan(row).total / GIB
        off = planned / row.published - 1
        inside, total = inside + (abs(off) <= TOLERANCE), total + 1
        mark = "" if abs(off) <= TOLERANCE else " (outside)"
        yield f"| {row.label} | {row.published:g} | {planned:.1f} | {off:+.0%}{mark} |"
    yield f"\n{inside} of {total} within {TOLERANCE:.0%}."


def main() -> int:
    """Print the table."""
    for line in table():
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
