"""How long a step takes: as fast as earlier runs where there are any, else from operations and efficiency."""

import math
import time
from dataclasses import dataclass

import torch

from engine.layout.degrees import Degrees
from engine.plan.catalogue import Device
from engine.plan.memory import Model

# What a training step reaches of a device's dense bfloat16 peak once its micro-batch is large. Published full-weight
# runs of a mixture of experts on eight devices reach 0.2 to 0.25, of dense models on one device 0.3 to 0.4.
EFFICIENCY = 0.25
HALF_FULL = {"cpu": 64, "cuda": 4096}  # tokens of a micro-batch at which half of that is reached
CPU_EFFICIENCY = 0.6  # of what a large matrix product reaches on the same cores
LINK = 150e9  # bytes/s to neighbours within a host, of what published collectives reach
UNKNOWN_FLOPS = 80e12  # of an accelerator that is known by its memory only
PROBE = 768  # rows and columns of the product that measures a CPU


@dataclass(frozen=True)
class Pace:
    """Seconds of an optimizer step, and where the number comes from: a sentence."""

    seconds: float
    source: str


@dataclass(frozen=True)
class Work:
    """What one device does in a step: `rounds` micro-batches of `tokens`, its stretch of `sequences` of `length`."""

    tokens: int
    length: int
    rounds: int
    everything: bool
    recompute: bool
    sequences: int = 1


def operations(model: Model, work: Work) -> float:
    """Floating-point operations of a micro-batch.

    Forward once; backward once for the activations and, where all weights learn, once for them; recomputing is one
    more forward. Attention inside a document is causal: half of all pairs.
    """
    counted = model.parameters.active - model.parameters.by_kind.get("embedding", 0) * (not model.parameters.tied)
    passes = 2 + work.everything + work.recompute
    products = 2 * counted * passes
    pairs = 2 * 2 * model.heads_width * len(model.parameters.layers) * (work.length / 2) * (3 + work.recompute)
    return work.tokens * (products + pairs)


def traffic(model: Model, degrees: Degrees, work: Work) -> float:
    """Bytes that a device exchanges with others for one micro-batch, in bfloat16."""
    width, layers = 2, len(model.parameters.layers)
    row = work.tokens * model.hidden * width
    sharded = degrees.shard * degrees.context
    dense = model.parameters.local(degrees.expert) * width / degrees.tensor
    moved = (2 + work.everything) * dense * (1 - 1 / sharded)
    moved += 8 * layers * row * (1 - 1 / degrees.tensor)
    moved += layers * context_traffic(model, degrees, work)
    moved += 4 * layers * row * model.parameters.experts[1] * (1 - 1 / degrees.expert)
    return moved


def context_traffic(model: Model, degrees: Degrees, work: Work) -> float:
    """Bytes that a device sends for one attention layer of a micro-batch, forward and backward, in bfloat16.

    Four swaps of the hidden states each way among as many neighbours as there are key-value heads for; and where these
    are fewer than the team, keys and values round the ring of the others (`engine.layout.ring`): on their way out in
    both passes, in backward with their gradients in float32, which go home besides.
    """
    width, slices = 2, degrees.tensor if "attention" in model.sliced else 1
    swapping = math.gcd(degrees.context, max(1, model.key_heads // slices))
    swaps = 8 * work.tokens * model.hidden * width / slices * (1 - 1 / swapping)
    turns = _turns(degrees.context // swapping, work.sequences)
    keys = work.tokens * model.keys_width / slices
    gradients = 4 * (turns + 1) if turns else 0
    return swaps + keys * (2 * turns * width + gradients)


def _turns(ring: int, sequences: int) -> int:
    """How many stretches back a device of the ring sees, of a micro-batch of equally long sequences, each one text."""
    began = (at * sequences // ring for at in range(ring))  # the sequence that a device's first token is in
    return max(at - first * ring // sequences for at, first in enumerate(began))


def estimate(model: Model, device: Device, degrees: Degrees, work: Work, measured_flops: float = 0.0) -> Pace:
    """Seconds of a step. `measured_flops`: what a CPU was found to compute in a second."""
    peak = device.flops or measured_flops or UNKNOWN_FLOPS
    reached = (CPU_EFFICIENCY if device.kind == "cpu" else EFFICIENCY) * work.tokens
    reached /= work.tokens + HALF_FULL[device.kind]
    alone = operations(model, work) / (degrees.tensor * peak * reached)
    link = traffic(model, degrees, work) / LINK if degrees.processes > 1 else 0.0
    if device.kind == "cpu":
        source = "estimated from a matrix product measured on this CPU"
    elif device.flops:
        source = f"estimated at {reached:.0%} of the {peak / 1e12:,.0f} TFLOP/s that {device.name} is made for"
    else:
        source = f"a guess: nothing is known of this device, so {peak / 1e12:,.0f} TFLOP/s are assumed"
    return Pace(work.rounds * (alone + link), source)


def cpu_flops(dtype: torch.dtype) -> float:
    """Operations a second of a large matrix product on this machine's cores: measured, some tens of milliseconds."""
    a, b = torch.ones(PROBE, PROBE, dtype=dtype), torch.ones(PROBE, PROBE, dtype=dtype)
    a @ b
    best = 1e9
    for _ in range(3):
        began = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - began)
    return 2 * PROBE**3 / best
