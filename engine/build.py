"""From a spec to a model ready to train: device, precision, tokenizer, base model, adapter, attention, head."""

import math
import warnings
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn
from transformers import AutoConfig, AutoTokenizer, GenerationConfig
from transformers.utils import logging as transformers_logging

from engine import attention, earlier, experts, float8, fused, isolation, lora, nf4, optimizers, quantized, whole
from engine.auto import class_for
from engine.devices import choose_device, choose_dtype, exact
from engine.failure import Failure
from engine.head import Shape, attach, measure
from engine.layout import adapters, context, full, shard
from engine.layout.degrees import degrees_of
from engine.layout.mesh import Mesh, processes
from engine.layout.placement import Placements
from engine.layout.rules import refusals
from engine.layout.vocabulary import is_split, measure_split
from engine.memory import settle
from engine.render.tokenizer import ADVICE, ends_of
from engine.spec import LoRA, RunSpec


@dataclass(frozen=True)
class Built:
    """A model with its adapter (None: all weights are trained), and how to run it.

    `trunk` gives hidden states, `head` log-probabilities from them. `alone` is why documents run one at a time ("" when
    they run packed). `native_attention` is what generation uses. `source`: where the base model was read from. `mesh`
    and `placements`: which process this is, and what of the trained parameters it keeps.
    """

    model: Any  # a PreTrainedModel; transformers' own annotations contradict its use
    adapter: PeftModel | None
    trunk: nn.Module
    head: nn.Linear
    device: torch.device
    dtype: torch.dtype
    alone: str
    native_attention: str
    source: str
    mesh: Mesh
    placements: Placements
    start: dict[str, Tensor] | None = None  # of the adapter, where it goes on from an earlier run's

    def parameters(self) -> dict[str, nn.Parameter]:
        """Trained parameters by name, in a fixed order."""
        if self.adapter is None:
            shard.settle(self.model)
        return {name: value for name, value in self.model.named_parameters() if value.requires_grad}

    @property
    def sizes(self) -> list[int]:
        """Elements of each trained parameter, of all its pieces together."""
        return [self.placements[name].whole_shape(value.shape).numel() for name, value in self.parameters().items()]

    @property
    def width(self) -> int:
        """Bytes of one element of a trained parameter."""
        return next(iter(self.parameters().values())).element_size()

    def base_model(self) -> AbstractContextManager[None]:
        """The weights of the base model, inside the block."""
        if self.adapter is None:
            return whole.base_weights(self.model, self.source, self.mesh.degrees)
        return lora.switched_off(self.model)

    def reference_model(self) -> AbstractContextManager[None]:
        """The weights that the run started from, inside the block."""
        return self.base_model() if self.start is None else earlier.swapped(self.model, self.start)


def load_tokenizer(spec: RunSpec) -> Any:
    """The base model's tokenizer. Raises Failure when there is none."""
    quieten()
    try:
        return AutoTokenizer.from_pretrained(spec.model)
    except (OSError, ValueError, KeyError) as error:
        raise Failure(
            "tokenizer_unreadable", f"The tokenizer of {_shown(spec)} could not be loaded: {error}", ADVICE
        ) from error


def stop_ids(spec: RunSpec, tokenizer: Any) -> list[int]:
    """Every token id that ends an answer: the generation config's and the tokenizer's own. Raises Failure if none."""
    try:
        ids = GenerationConfig.from_pretrained(spec.model).eos_token_id
    except OSError:  # the file is optional; the model's config may name them
        ids = AutoConfig.from_pretrained(spec.model).get_text_config().eos_token_id
    return ends_of(tokenizer, ids, _shown(spec))


def config_of(spec: RunSpec) -> dict[str, Any]:
    """The base model's config.json; empty where it cannot be read, which loading the model will explain."""
    try:
        found: dict[str, Any] = AutoConfig.from_pretrained(spec.model).to_dict()
    except (OSError, ValueError, KeyError):
        return {}
    return found


def context_length(spec: RunSpec) -> int | None:
    """Tokens that the base model was made for, where its config says so."""
    try:
        config = AutoConfig.from_pretrained(spec.model).get_text_config()
    except (OSError, ValueError, KeyError):  # loading the model will say why
        return None
    found = getattr(config, "max_position_embeddings", None)
    return found if isinstance(found, int) else None


def check_possible(spec: RunSpec) -> None:
    """Raise Failure, before anything is loaded, when the spec asks for what is not installed or not on this device."""
    refused = refusals(spec, config_of(spec), degrees_of(spec.layout, processes()))
    for refusal in refused:
        raise Failure("layout_not_possible", refusal.why, [refusal.advice])
    device = choose_device(spec.training)
    quantized.check(spec.training.quantization, device, choose_dtype(spec, device))
    if spec.optimizer.optim == "adamw_8bit":
        optimizers.check_eight_bit(device)


def build(spec: RunSpec, mesh: Mesh | None = None, dtype: torch.dtype | None = None) -> Built:
    """Load the base model, freeze it, put the adapter in. Raises Failure for models that cannot be trained.

    On a mesh of several processes all of them call this, and each loads its part. `dtype` overrides the spec's.
    """
    quieten()
    attention.register()
    experts.register()
    mesh = mesh or Mesh()
    context.register(mesh.splits)
    device = choose_device(spec.training)
    dtype = dtype or choose_dtype(spec, device)
    model = _load(spec, device, dtype, mesh)
    shard.open_forward(model)
    trunk, head = model.get_decoder(), model.get_output_embeddings()
    if not isinstance(head, nn.Linear) or trunk is model:
        raise Failure("no_head", f"{type(model).__name__} has no language-model head to train with.", ADVICE)
    native = model.config._attn_implementation
    shape = Shape.of(model.config.get_text_config())
    attach(head, shape, measure_split(head, mesh.tensor) if is_split(head) else measure)
    isolation.check_head(model, trunk, head)
    alone = isolation.why_not_packed(model, trunk)
    if not alone:
        model.set_attn_implementation(context.NAME if mesh.context.size > 1 else attention.NAME)
    elif mesh.context.size > 1:
        raise Failure(
            "context_needs_packing",
            f"{type(model).__name__} cannot share a sequence between devices: {alone}.",
            ["Set Context to 1 and Shard higher instead."],
        )
    adapter = None if spec.training.full_finetuning else add_adapter(model, spec)
    placements = full.place(model, mesh) if adapter is None else adapters.place(model, mesh, spec.training.seed)
    if adapter is not None and not mesh.degrees.sharded:
        fused.fuse(model, dtype)
        settle(model)
    start = None
    if adapter is not None and spec.adapter_from:
        start = earlier.begin_from(adapter, placements, Path(spec.adapter_from))
    if spec.training.gradient_checkpointing:
        if not model.supports_gradient_checkpointing:
            raise Failure(
                "no_recompute",
                f"{type(model).__name__} cannot recompute activations.",
                ["Turn off Recompute activations."],
            )
        model.activation_checkpointing_enable({"use_reentrant": False})
    return Built(model, adapter, trunk, head, device, dtype, alone, native, spec.model, mesh, placements, start)


def add_adapter(model: Any, spec: RunSpec) -> PeftModel:
    """Inject a LoRA adapter (float32 master weights) into a frozen model."""
    settings, targets = spec.lora, spec.lora.target_modules
    heads = {"lm_head", "embed_tokens"}
    if not isinstance(targets, str) and (asked := [name for name in targets if name.split(".")[-1] in heads]):
        raise Failure(
            "target_not_supported",
            f"An adapter on {', '.join(asked)} is not supported.",
            ["Leave the embedding and the head out of Target modules, or use all-linear."],
        )
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=settings.r,
        lora_alpha=settings.lora_alpha,
        lora_dropout=settings.lora_dropout,
        target_modules="all-linear" if isinstance(targets, str) else list(targets),
        use_rslora=settings.use_rslora,
        use_dora=settings.use_dora,
        bias="none",
    )
    try:
        with adapters.plain_to_peft(model):
            adapter = cast(PeftModel, get_peft_model(model, config))
    except ValueError as error:
        raise Failure(
            "targets_not_found",
            f"The adapter does not fit {type(model).__name__}: {error}",
            [
                "Name other layers as Target modules."
                if isinstance(targets, str)
                else "Use all-linear as Target modules."
            ],
        ) from error
    if spec.training.quantization == "fp8":
        quantized.hold_in_float8(model.get_decoder())
    if settings.adapts_experts:
        _adapt_experts(model, settings)
    return adapter


def _adapt_experts(model: Any, settings: LoRA) -> None:
    """An adapter for every routed expert; Failure when there are none."""
    routed = [module for _, module in experts.modules(model)]
    if not routed:
        raise Failure(
            "no_routed_experts",
            f"{type(model).__name__} has no routed experts that can be adapted.",
            ["Use all-linear as Target modules."],
        )
    scale = settings.lora_alpha / (math.sqrt(settings.r) if settings.use_rslora else settings.r)
    for module in routed:
        experts.add_adapter(module, settings.r, scale, exact(model.dtype))


def _load(spec: RunSpec, device: torch.device, dtype: torch.dtype, mesh: Mesh) -> Any:
    cut = shard.loading(mesh.degrees)
    host = torch.device("cpu")  # packed weights are cut once they are all there
    try:
        packed = quantized.loading(spec.training.quantization, dtype, host if cut else device)
        how = {"dtype": dtype, "experts_implementation": experts.NAME, **(packed or cut)}
        with float8.kept():
            model: Any = class_for(spec.model).from_pretrained(spec.model, **how)
    except OSError as error:
        raise Failure("model_unreadable", f"{_shown(spec)} could not be loaded: {error}", ADVICE) from error
    except (ValueError, KeyError, ImportError) as error:
        raise Failure("model_unknown", f"{_shown(spec)} cannot be trained: {error}", ADVICE) from error
    float8.install(model)
    if packed and spec.lora.use_dora:
        quantized.keep_trainable(model)  # bitsandbytes' own layers, which PEFT's DoRA knows to unpack
    elif packed:
        nf4.install(model, dtype)
        shard.cut(model, mesh.degrees)
        nf4.bring(model, device)
    elif not cut:  # else it is already where it belongs, piece by piece
        model.to(device)
    model.requires_grad_(spec.training.full_finetuning)
    model.eval()
    return model


def _shown(spec: RunSpec) -> str:
    """The model's name for messages."""
    return f"the model {Path(spec.model).name}" if Path(spec.model).is_dir() else f"the model {spec.model}"


def quieten() -> None:
    """No progress bars and no chatter: a run's words are its events."""
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated", category=FutureWarning)
