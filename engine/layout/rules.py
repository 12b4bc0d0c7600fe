"""What cannot be split how, told before anything runs: from the spec and the model's config.json alone. No torch.

Whatever these rules do not know (a plan that transformers lacks for a family) is refused by the engine when it loads.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from engine.layout.degrees import Degrees
from engine.published import in_float8
from engine.spec import RunSpec

EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts")
CARRIES = ("linear", "mamba", "recurrent", "conv", "rwkv", "hybrid")  # in names of layers that carry a state along


@dataclass(frozen=True)
class Refusal:
    """A setting that cannot be, why, and what to do instead."""

    setting: str
    why: str
    advice: str


def refusals(spec: RunSpec, config: Mapping[str, Any], degrees: Degrees) -> list[Refusal]:
    """Everything about a layout that cannot be, the first being the one to tell."""
    text = config.get("text_config") or config
    found = [
        *_hosts(spec, degrees),
        *_experts(text, degrees),
        *_tensor(spec, text, degrees),
        *_context(text, degrees),
        *_whole(spec, degrees),
    ]
    return [*found, *_packed(spec, config, degrees), *_experts_adapters(spec)]


def _hosts(spec: RunSpec, degrees: Degrees) -> Iterator[Refusal]:
    hosts = spec.layout.hosts
    if hosts in (1, "auto"):
        return
    if spec.layout.is_open:
        yield Refusal(
            "layout.hosts",
            "How a run is split over several hosts is not planned for you.",
            f"Set Data to {hosts}, and Shard to the number of devices of each host.",
        )
    elif degrees.processes % int(hosts):
        yield Refusal(
            "layout.hosts",
            f"{degrees.processes} devices do not divide evenly among {hosts} hosts.",
            f"Choose a number of hosts that divides {degrees.processes}, or other degrees.",
        )


def _experts(text: Mapping[str, Any], degrees: Degrees) -> Iterator[Refusal]:
    ways, experts = degrees.expert, next((text[name] for name in EXPERT_COUNTS if text.get(name)), 0)
    if ways == 1:
        return
    if not experts:
        yield Refusal("layout.expert", "This model has no routed experts to spread.", "Set Expert to 1.")
    elif experts % ways:
        yield Refusal(
            "layout.expert",
            f"{experts} experts do not divide among {ways} devices.",
            f"Choose an Expert degree that divides {experts}.",
        )
    if degrees.copy % ways:
        yield Refusal(
            "layout.expert",
            f"Experts are spread over the devices of one copy of the model, of which there are {degrees.copy}.",
            f"Choose an Expert degree that divides {degrees.copy} (shard x tensor x context).",
        )
    elif ways % degrees.tensor:
        yield Refusal(
            "layout.expert",
            "Devices that compute each layer together share their tokens, so they must all be in one expert group.",
            f"Choose an Expert degree that is a multiple of {degrees.tensor} (tensor).",
        )


def _tensor(spec: RunSpec, text: Mapping[str, Any], degrees: Degrees) -> Iterator[Refusal]:
    ways = degrees.tensor
    if ways == 1:
        return
    for name, what in (("num_attention_heads", "attention heads"), ("num_key_value_heads", "key-value heads")):
        heads = text.get(name)
        if isinstance(heads, int) and heads % ways:
            yield Refusal(
                "layout.tensor",
                f"A device keeps whole heads, and {heads} {what} do not divide among {ways}.",
                f"Choose a Tensor degree that divides {heads}.",
            )
    if spec.lora.lora_dropout and not spec.training.full_finetuning:
        yield Refusal(
            "lora.lora_dropout",
            "Devices that compute a layer together would each drop other inputs of the adapter.",
            "Set Dropout to 0, or Tensor to 1.",
        )


def _context(text: Mapping[str, Any], degrees: Degrees) -> Iterator[Refusal]:
    ways = degrees.context
    if ways == 1:
        return
    heads = (text.get("num_key_value_heads") or text.get("num_attention_heads") or 0) // degrees.tensor
    if text.get("attention_dropout") and heads % ways:
        yield Refusal(
            "layout.context",
            f"Keys and values would go round a ring, where this model's attention_dropout of "
            f"{text['attention_dropout']:g} cannot be computed.",
            f"Choose a Context degree that divides {heads}.",
        )
    layers = {str(kind) for kind in text.get("layer_types") or ()} | {str(text.get("model_type", ""))}
    if carried := sorted(kind for kind in layers if any(part in kind for part in CARRIES)):
        yield Refusal(
            "layout.context",
            f"Layers of this model carry a state from token to token ({', '.join(carried)}), along the whole sequence.",
            "Set Context to 1, and Shard higher.",
        )
    if text.get("index_topk"):
        yield Refusal(
            "layout.context",
            "This model's attention first picks the tokens it looks at, which takes the whole sequence.",
            "Set Context to 1, and Shard higher.",
        )


def _whole(spec: RunSpec, degrees: Degrees) -> Iterator[Refusal]:
    """What needs a whole weight, or a whole state of one, where a layout cuts it."""
    training = spec.training
    if training.full_finetuning and (degrees.tensor > 1 or degrees.expert > 1):
        yield Refusal(
            "training.full_finetuning",
            "Weights that are cut within a layer are not trained themselves: only adapters sum their gradients there.",
            "Train an adapter, or split by Data, Shard and Context only.",
        )
    if not degrees.sharded:
        return
    if training.full_finetuning and spec.optimizer.optim != "adamw_torch_fused":
        yield Refusal(
            "optimizer.optim",
            "This optimizer goes over whole weights, and on this layout no device has one.",
            "Choose adamw_torch_fused, or split by Data only.",
        )
    if spec.lora.use_dora:
        yield Refusal(
            "lora.use_dora",
            "DoRA measures each whole weight, and on this layout no device has one.",
            "Turn off DoRA, or split by Data only.",
        )
    if spec.optimizer.optim == "adamw_8bit" and (degrees.tensor > 1 or degrees.expert > 1):
        yield Refusal(
            "optimizer.optim",
            "8-bit states are kept in blocks over whole matrices, which this layout cuts.",
            "Choose adamw_torch_fused or adamw_bf16.",
        )


def _packed(spec: RunSpec, config: Mapping[str, Any], degrees: Degrees) -> Iterator[Refusal]:
    """What weights in 4 or 8 bits do not allow."""
    training, published = spec.training, in_float8(config)
    if published and training.full_finetuning:
        yield Refusal(
            "training.full_finetuning",
            "This base was published in 8-bit floats, whose steps are too coarse to be trained.",
            "Train an adapter, or choose a release of the model in bfloat16.",
        )
    if published and training.quantization != "none":
        yield Refusal(
            "training.quantization",
            "This base was published in 8-bit floats, and is kept like that.",
            "Set Quantised base to none.",
        )
    if published and degrees.tensor > 1:
        yield Refusal(
            "layout.tensor",
            "The scales of this base's 8-bit floats belong to blocks, which a cut within a layer would tear.",
            "Set Tensor to 1, and Shard or Expert higher.",
        )
    if spec.lora.use_dora and (published or (training.quantization == "nf4" and degrees.processes > 1)):
        yield Refusal(
            "lora.use_dora",
            "DoRA measures each whole weight, and this base keeps them packed.",
            "Turn off DoRA, or choose a base in bfloat16.",
        )
    if training.quantization == "nf4" and degrees.tensor > 1:
        yield Refusal(
            "training.quantization",
            "A base in 4 bits is packed in blocks along whole rows, which a cut within a layer would tear.",
            "Set Tensor to 1 and Shard higher, or turn off quantisation.",
        )
    if training.quantization == "fp8" and degrees.sharded:
        yield Refusal(
            "training.quantization",
            "A base is rounded to 8-bit floats row by row once it is loaded, when a device of this layout has no rows.",
            "Choose nf4, or a release of the model in 8-bit floats, or split by Data only.",
        )


def _experts_adapters(spec: RunSpec) -> Iterator[Refusal]:
    if spec.lora.adapts_experts and (spec.lora.lora_dropout or spec.lora.use_dora):
        yield Refusal(
            "lora.target_modules",
            "Adapters of routed experts have neither dropout nor DoRA in PEFT.",
            "Set Dropout to 0 and turn off DoRA, or use all-linear.",
        )
