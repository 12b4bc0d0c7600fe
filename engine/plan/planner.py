"""The planner: one model's twins and activations, kept, so that asking for another length or layout costs no time."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from engine.head import TILE_BYTES
from engine.layout.degrees import Degrees
from engine.plan import activations, answers, recipe
from engine.plan.activations import Activations
from engine.plan.answers import Sampling
from engine.plan.catalogue import Device
from engine.plan.layouts import possible
from engine.plan.memory import Batch, Model, Needs, needs
from engine.plan.pace import Pace, Work, cpu_flops, estimate
from engine.plan.parameters import Kind
from engine.plan.reserve import reserve_of
from engine.plan.rows import Rows
from engine.plan.twin import Twin, make
from engine.spec import GRPO, RunSpec, settings

UNKNOWN_LENGTH = 2048  # tokens, while neither the spec nor the data say


@dataclass(frozen=True)
class Machine:
    """The devices of a run: how many, and what each is."""

    number: int
    device: Device


@dataclass(frozen=True)
class Chosen:
    """A layout with what it needs on each device and how long a step takes."""

    degrees: Degrees
    needs: Needs
    pace: Pace

    def fits(self, device: Device) -> bool:
        """Whether it fits into the device."""
        return self.needs.total <= device.room


@dataclass
class Planner:
    """Plans for one base model, by its configuration."""

    config: Any
    _twins: dict[Any, Twin] = field(default_factory=dict)
    _activations: dict[Any, Activations] = field(default_factory=dict)
    _sampling: dict[Any, Sampling] = field(default_factory=dict)

    @cached_property
    def context_length(self) -> int | None:
        """Tokens that the model was made for."""
        found = getattr(self.config.get_text_config(), "max_position_embeddings", None)
        return found if isinstance(found, int) else None

    def twin(self, spec: RunSpec, dtype: torch.dtype, *, sharded: bool = False) -> Twin:
        """The model as this run would build it; `sharded`: its weights are cut while they load."""
        whole = spec.training.full_finetuning
        key = (dtype, whole or str(settings(spec.lora)), spec.training.quantization, sharded)
        if key not in self._twins:
            self._twins[key] = make(self.config, dtype, spec, sharded=sharded)
        return self._twins[key]

    def length(self, spec: RunSpec, rows: Rows | None) -> int:
        """Tokens per sequence: the spec's, else what the data suggest, within what the model was made for."""
        found = spec.data.max_length or (rows.suggested if rows else 0) or UNKNOWN_LENGTH
        return min(found, self.context_length or found)

    def best(self, spec: RunSpec, machine: Machine, rows: Rows | None = None) -> Chosen:
        """The fastest layout that fits; if none fits, the one that needs least memory.

        Raises Failure for a layout that cannot be on these devices.
        """
        length, model = self.length(spec, rows), self.model(spec, machine.device)
        packed = self.twin(spec, recipe.precision(spec, machine.device)).packed
        layouts = possible(spec, machine.number, model, self.config, packed=packed)
        found = [self.judge(spec, machine, degrees, length, rows) for degrees in layouts]
        fitting = [one for one in found if one.fits(machine.device)]
        if fitting:
            return min(fitting, key=lambda one: one.pace.seconds)
        return min(found, key=lambda one: one.needs.total)

    def model(self, spec: RunSpec, device: Device) -> Model:
        """The facts of the model that arithmetic needs."""
        made = self.twin(spec, recipe.precision(spec, device))
        text = self.config.get_text_config()
        heads = getattr(text, "num_attention_heads", None) or 1
        width = getattr(text, "head_dim", None) or text.hidden_size // heads
        key_heads = getattr(text, "num_key_value_heads", None) or heads
        return Model(
            parameters=made.parameters,
            trainable=made.trainable,
            hidden=text.hidden_size,
            vocabulary=text.vocab_size,
            heads_width=heads * width,
            key_heads=key_heads,
            keys_width=2 * key_heads * width,
            sliced=sliced_by_plan(self.config),
        )

    def judge(self, spec: RunSpec, machine: Machine, degrees: Degrees, length: int, rows: Rows | None) -> Chosen:
        """One layout: its memory and its pace."""
        device, training = machine.device, spec.training
        dtype = recipe.precision(spec, device)
        kept, model = recipe.of(spec, dtype, self.config), self.model(spec, device)
        longest = longest_of(spec, rows, length)
        local = -(-longest // degrees.context)
        sequences = training.per_device_train_batch_size
        batch = Batch(local * sequences, sequences, dtype.itemsize)
        found = self._measured(spec, self.twin(spec, dtype, sharded=degrees.sharded), device.kind, local)
        if kept.everything:
            found = _with_head(found, batch, model)
        checkpoint = round(model.trainable * (kept.trained + kept.optimizer))
        reserve = reserve_of(device, checkpoint, mapped=training.gradient_checkpointing)
        sampling = self._sampled(spec, self.twin(spec, dtype), device.kind, rows, length, degrees.batches)
        memory = needs(model, kept, degrees, found, batch, reserve, sampling)
        work = Work(
            tokens=batch.tokens,
            length=longest,
            sequences=sequences,
            rounds=-(-training.gradient_accumulation_steps // degrees.batches),
            everything=kept.everything,
            recompute=training.gradient_checkpointing,
        )
        flops = _cpu_flops(dtype) if device.kind == "cpu" else 0.0
        pace = estimate(model, device, degrees, work, flops)
        return Chosen(degrees, memory, pace)

    def _sampled(
        self, spec: RunSpec, made: Twin, kind: str, rows: Rows | None, length: int, batches: int
    ) -> Sampling | None:
        """What the method's sampling takes; None where it samples nothing."""
        count = answers.at_once(spec, rows, batches)
        if not isinstance(spec.method, GRPO) or not count:
            return None
        prompt = rows.filled(spec, length) if rows else length
        key = (id(made), count, prompt + spec.method.max_completion_length, kind)
        if key not in self._sampling:
            self._sampling[key] = answers.measure(made, *key[1:3], kind=kind)
        return self._sampling[key]

    def _measured(self, spec: RunSpec, made: Twin, kind: str, local: int) -> Activations:
        """Activations of a micro-batch: of one sequence and of two, and from these of any number."""
        sequences, recompute = spec.training.per_device_train_batch_size, spec.training.gradient_checkpointing
        one, two = (self._once(made, [local] * count, kind, recompute) for count in (1, min(2, sequences)))
        if sequences <= 2:
            return two
        more = sequences - 1
        return Activations(
            kept=one.kept + more * (two.kept - one.kept),
            head=one.head + more * (two.head - one.head),
            working=one.working + more * (two.working - one.working),
            sliced=two.sliced,
        )

    def _once(self, made: Twin, lengths: list[int], kind: str, recompute: bool) -> Activations:
        key = (id(made), tuple(lengths), kind, recompute)
        if key not in self._activations:
            self._activations[key] = activations.measure(made, lengths, kind=kind, recompute=recompute)
        return self._activations[key]


def longest_of(spec: RunSpec, rows: Rows | None, length: int) -> int:
    """Tokens of the largest sequence: a row's, or those of a prompt and all its answers at their longest."""
    own = rows.filled(spec, length) if rows else length
    return own + (
        spec.method.num_generations * spec.method.max_completion_length if isinstance(spec.method, GRPO) else 0
    )


def _with_head(found: Activations, batch: Batch, model: Model) -> Activations:
    """The head that is trained itself: float32 gradients of all hidden states, and a tile of logits three times."""
    tile = 3 * TILE_BYTES
    return Activations(found.kept, tile + 4 * batch.tokens * model.hidden, found.working, found.sliced)


_FLOPS: dict[torch.dtype, float] = {}


def _cpu_flops(dtype: torch.dtype) -> float:
    if dtype not in _FLOPS:
        _FLOPS[dtype] = cpu_flops(dtype)
    return _FLOPS[dtype]


def sliced_by_plan(config: Any) -> tuple[Kind, ...]:
    """Kinds of weights that the family's plan for tensor parallelism cuts."""
    plan = getattr(config.get_text_config(), "base_model_tp_plan", None) or {}
    words: dict[Kind, str] = {"attention": "self_attn", "experts": "experts", "shared_experts": "shared_expert"}
    found: list[Kind] = [kind for kind, word in words.items() if any(word in name for name in plan)]
    if any(".mlp." in name and "expert" not in name for name in plan):
        found.append("mlp")
    return (*found, "embedding", "head") if found else ()
