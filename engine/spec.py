"""RunSpec: the complete, frozen description of one run. The form, the API, the CLI and the docs are derived from it.

Field names are those of TRL, PEFT and transformers where they have a counterpart. This module imports no torch.
"""

from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, Field, field_validator, model_validator

from engine.method import DPO, GRPO, KTO, SFT, Method
from engine.rows.declared import Declared
from engine.section import Section

__all__ = ["DPO", "GRPO", "KTO", "SFT", "Method", "RunSpec", "Section"]

MOST_LENGTH = 1_048_576  # tokens of a sequence
ADAPTER_TARGETS = Literal["all-linear", "all-linear+experts"]
AUTO = Literal["auto"]
Ways = Annotated[int, Field(ge=1)]


class Data(Section):
    """Which rows are learned from, and how they are cut."""

    dataset: str = Field(
        title="Dataset",
        description="Id of a dataset in this studio, or a JSONL, JSON, CSV or Parquet file for the CLI.",
    )
    sha256: str = Field(
        default="",
        title="Content hash",
        description="SHA-256 of the file when the run was made; checked before training.",
    )
    columns: dict[str, str] = Field(
        default_factory=dict,
        title="Columns",
        description="Which column holds what, where names are unusual: prompt=question, completion=answer.",
    )
    kind: Literal["auto", "chat", "preference", "rated", "prompt", "text"] = Field(
        default="auto", title="Kind of rows", description="What the rows are, where auto takes them for something else."
    )
    eval_fraction: float = Field(
        default=0.1,
        ge=0.0,
        le=0.5,
        title="Held-out share",
        description="Share of the rows kept out of training to measure eval loss; 0 turns evaluation off.",
    )
    max_length: int | None = Field(
        default=None,
        ge=16,
        le=MOST_LENGTH,
        title="Maximum length",
        description="Tokens per sequence; empty: what keeps 99 of 100 rows whole, rounded up.",
    )
    truncation_mode: Literal["keep_start", "drop"] = Field(
        default="keep_start",
        title="Longer rows",
        description="keep_start cuts them at the end, drop leaves them out; either way they are counted.",
    )
    packing: bool = Field(
        default=True,
        title="Pack short rows",
        description="Put several rows into one sequence. Rows stay isolated: they never see each other.",
    )
    reasoning_level: str = Field(
        default="",
        max_length=200,
        title="Reasoning level",
        description="What the chat template is told in every row, such as low or enable_thinking=False; "
        "empty: each row as it fits.",
    )
    bridge: bool = Field(
        default=False,
        title="Close the opened thought",
        description="For chat templates whose prompt opens a thought that no row closes: close it before the answer.",
    )
    max_bad_fraction: float = Field(
        default=0.01,
        ge=0.0,
        le=1.0,
        title="Tolerated bad rows",
        description="The run is refused when a larger share of the rows cannot be used.",
    )

    @property
    def declared(self) -> Declared:
        """What is said of the file's rows."""
        return Declared(None if self.kind == "auto" else self.kind, self.columns)

    @property
    def limit(self) -> int:
        """`max_length` once it is known. ValueError while it is to be chosen from the rows."""
        if self.max_length is None:
            raise ValueError("data.max_length is chosen when the rows are read")
        return self.max_length


class LoRA(Section):
    """The adapter: PEFT's LoraConfig, field for field."""

    r: int = Field(
        default=16, ge=1, le=1024, title="Rank", description="Width of the adapter: more learns more, and is larger."
    )
    lora_alpha: int = Field(
        default=32, ge=1, le=4096, title="Alpha", description="Scale of the adapter; its effect is alpha / rank."
    )
    lora_dropout: float = Field(
        default=0.0, ge=0.0, lt=1.0, title="Dropout", description="Share of adapter inputs dropped while training."
    )
    target_modules: ADAPTER_TARGETS | list[str] = Field(
        default="all-linear",
        title="Target modules",
        description="Names of the linear layers that get an adapter; all-linear; or all-linear+experts: the routed "
        "experts of a mixture-of-experts model too.",
    )
    use_rslora: bool = Field(
        default=False, title="Rank-stabilised", description="Scale by alpha / sqrt(rank), steadier at high ranks."
    )
    use_dora: bool = Field(
        default=False, title="DoRA", description="Learn magnitude and direction apart: slower, sometimes better."
    )

    @property
    def adapts_experts(self) -> bool:
        """Whether routed experts get adapters (PEFT's `target_parameters`)."""
        return self.target_modules == "all-linear+experts"

    @field_validator("target_modules")
    @classmethod
    def something_is_adapted(cls, targets: str | list[str]) -> str | list[str]:
        """At least one name."""
        if not targets:
            raise ValueError("must be all-linear or at least one name")
        return targets


class Optimizer(Section):
    """AdamW and its learning-rate schedule."""

    optim: Literal["adamw_torch_fused", "adamw_bf16", "adamw_8bit"] = Field(
        default="adamw_torch_fused",
        title="Optimizer",
        description="Bytes for each trained parameter: 12 with adamw_torch_fused, 6 with adamw_bf16 (everything in "
        "bfloat16, rounded stochastically), about 6 with adamw_8bit (needs bitsandbytes).",
    )
    learning_rate: float = Field(
        default=2e-4, gt=0.0, le=1.0, title="Learning rate", description="Peak learning rate, after the warm-up."
    )
    lr_scheduler_type: Literal["linear", "cosine", "constant"] = Field(
        default="linear", title="Schedule", description="How the learning rate falls from its peak."
    )
    warmup_steps: float = Field(
        default=0.03,
        ge=0.0,
        title="Warm-up",
        description="Steps until the peak; below 1 it is a share of all steps.",
    )
    weight_decay: float = Field(
        default=0.0, ge=0.0, le=1.0, title="Weight decay", description="AdamW weight decay on the adapter."
    )
    max_grad_norm: float = Field(
        default=1.0, ge=0.0, title="Gradient clipping", description="Largest gradient norm; 0 turns clipping off."
    )
    adam_beta1: float = Field(
        default=0.9, ge=0.0, lt=1.0, title="Adam beta 1", description="Decay of the first moment."
    )
    adam_beta2: float = Field(
        default=0.999, ge=0.0, lt=1.0, title="Adam beta 2", description="Decay of the second moment."
    )
    adam_epsilon: float = Field(default=1e-8, gt=0.0, title="Adam epsilon", description="Keeps the update finite.")


class Training(Section):
    """How long, how large, how exact."""

    num_train_epochs: float = Field(
        default=3.0, gt=0.0, le=1000.0, title="Epochs", description="Passes over the training rows."
    )
    max_steps: int = Field(
        default=-1, ge=-1, title="Maximum steps", description="Stop after this many steps; -1 follows the epochs."
    )
    per_device_train_batch_size: int = Field(
        default=1, ge=1, le=4096, title="Batch size", description="Sequences per device and forward pass."
    )
    gradient_accumulation_steps: int = Field(
        default=1,
        ge=1,
        le=4096,
        title="Gradient accumulation",
        description="Forward passes per optimizer step, weighted by trained tokens.",
    )
    gradient_checkpointing: bool = Field(
        default=False, title="Recompute activations", description="Needs less memory, about a quarter slower."
    )
    dtype: Literal["auto", "bfloat16", "float32"] = Field(
        default="auto", title="Precision", description="auto takes bfloat16 where the device computes it fast."
    )
    quantization: Literal["none", "nf4", "fp8"] = Field(
        default="none",
        title="Quantised base",
        description="The frozen weights in 4 bits (nf4: QLoRA, needs bitsandbytes) or in 8 (fp8, on devices that "
        "multiply such numbers).",
    )
    full_finetuning: bool = Field(
        default=False,
        title="Train all weights",
        description="Instead of an adapter; the result is a whole model. For small models: it needs a multiple of the "
        "memory.",
    )
    device: Literal["auto", "cpu"] = Field(
        default="auto", title="Device", description="auto takes an accelerator when there is one."
    )
    seed: int = Field(
        default=42, ge=0, le=2**32 - 1, title="Seed", description="Fixes row order, adapter start and dropout."
    )

    @field_validator("max_steps")
    @classmethod
    def steps_are_possible(cls, steps: int) -> int:
        """max_steps is -1 (follow the epochs) or at least 1."""
        if steps == 0:
            raise ValueError("must be -1 (follow the epochs) or at least 1")
        return steps

    @model_validator(mode="after")
    def all_weights_are_not_quantised(self) -> "Training":
        """Only a frozen base can be held in fewer bits."""
        if self.full_finetuning and self.quantization != "none":
            raise ValueError("quantization must be none when full_finetuning trains all weights")
        return self


class Layout(Section):
    """How the run is split over devices; their number is data x shard x tensor x context. auto: planned for them."""

    data: Ways | AUTO = Field(
        default="auto", title="Data", description="Copies of the sharded model, each learning from its own rows (HSDP)."
    )
    shard: Ways | AUTO = Field(
        default="auto", title="Shard", description="Devices that keep one copy of the weights together (FSDP)."
    )
    tensor: Ways | AUTO = Field(
        default="auto", title="Tensor", description="Devices that compute each layer together, a slice of it each."
    )
    expert: Ways | AUTO = Field(
        default="auto",
        title="Expert",
        description="Devices among which the routed experts are spread; divides shard x tensor x context.",
    )
    context: Ways | AUTO = Field(
        default="auto", title="Context", description="Devices that share each sequence, a stretch of its tokens each."
    )
    hosts: Ways | AUTO = Field(
        default="auto", title="Hosts", description="Machines with equally many devices each; auto: as few as do."
    )

    @model_validator(mode="before")
    @classmethod
    def one_word_is_enough(cls, given: Any) -> Any:
        """`layout: auto` says the same as every field at its default."""
        return {} if given == "auto" else given

    @property
    def is_open(self) -> bool:
        """No axis is set: they are planned for the devices at hand."""
        return self == Layout(hosts=self.hosts)


class Saving(Section):
    """When the run measures itself and saves."""

    eval_steps: float = Field(
        default=0.1,
        gt=0.0,
        title="Evaluate every",
        description="Steps between evaluations; below 1 it is a share of all steps.",
    )
    save_steps: float = Field(
        default=0.2,
        gt=0.0,
        title="Save every",
        description="Steps between checkpoints; below 1 it is a share of all steps.",
    )
    save_total_limit: int = Field(
        default=2,
        ge=1,
        le=100,
        title="Checkpoints kept",
        description="Older checkpoints are removed; the best one is kept besides.",
    )
    load_best_model_at_end: bool = Field(
        default=True,
        title="Offer the best",
        description="The result is that of the evaluation with the lowest loss; off: that of the last step.",
    )
    early_stopping_patience: int = Field(
        default=0,
        ge=0,
        le=1000,
        title="Early stopping",
        description="End the run after this many evaluations in a row that are not better than the best; 0 never does.",
    )
    sample_prompts: int = Field(
        default=3,
        ge=0,
        le=16,
        title="Sample answers",
        description="Held-out prompts answered before and after training, to see the change.",
    )


class RunSpec(Section):
    """One run, whole: what is trained, on what, and how. Stored as JSON; `version` lets stored rows be upgraded."""

    version: Literal[1] = 1
    name: str = Field(
        default="", max_length=300, title="Name", description="A label; it may repeat. Empty: made from data and model."
    )
    model: str = Field(
        title="Model", description="Id of a model in this studio, a model folder, or a Hub id for the CLI."
    )
    adapter_from: str = Field(
        default="",
        max_length=1000,
        title="Start from",
        description="A finished run whose adapter this one goes on from: its id, or an adapter folder for the CLI; "
        "empty: a fresh adapter.",
    )
    data: Data
    method: Method = Field(default=SFT(), title="Method", description="What is learned from the rows.")
    lora: LoRA = LoRA()
    optimizer: Optimizer = Optimizer()
    training: Training = Training()
    layout: Layout = Layout()
    saving: Saving = Saving()

    @property
    def packing(self) -> bool:
        """Whether short rows share a sequence: methods that count rows do not pack them."""
        return self.data.packing and "data.packing" not in self.method.unused

    @property
    def steps_per_batch(self) -> int:
        """Optimizer steps that learn from the same rows before the next ones come."""
        return self.method.num_iterations if isinstance(self.method, GRPO) else 1

    @model_validator(mode="after")
    def one_start(self) -> "RunSpec":
        """An adapter to go on from and all weights in training exclude each other."""
        if self.adapter_from and self.training.full_finetuning:
            raise ValueError("adapter_from is for adapters: turn off full_finetuning, or start from the model itself")
        return self

    @model_validator(mode="after")
    def a_server_is_given_an_adapter(self) -> "RunSpec":
        """A sampling server has the base model, and gets the adapter alone."""
        if isinstance(self.method, GRPO) and self.method.use_vllm and self.training.full_finetuning:
            raise ValueError("use_vllm is for adapters: turn off full_finetuning, or let the engine sample")
        return self

    @field_validator("method", mode="before")
    @classmethod
    def a_method_without_its_name_is_sft(cls, method: Any) -> Any:
        """Settings of a method that do not say of which."""
        return {"type": "sft", **method} if isinstance(method, dict) else method

    @model_validator(mode="after")
    def small_steps_are_not_lost(self) -> "RunSpec":
        """Weights in bfloat16 swallow small steps unless they are rounded stochastically."""
        training = self.training
        if training.full_finetuning and training.dtype == "bfloat16" and self.optimizer.optim != "adamw_bf16":
            raise ValueError("training.full_finetuning in bfloat16 needs optimizer.optim adamw_bf16, or dtype auto")
        return self


def sections_in(annotation: Any) -> list[type[BaseModel]]:
    """The groups of settings that a field can hold: none, one, or the variants of a union."""
    parts = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return [part for part in parts if isinstance(part, type) and issubclass(part, BaseModel)]


METHODS: dict[str, type[Any]] = {
    section.model_fields["type"].default: section for section in sections_in(RunSpec.model_fields["method"].annotation)
}


def at_length(spec: RunSpec, max_length: int) -> RunSpec:
    """The same run with its maximum length known."""
    return spec.model_copy(update={"data": spec.data.model_copy(update={"max_length": max_length})})


def settings(spec: BaseModel, prefix: str = "") -> dict[str, Any]:
    """The leaves of a spec by dotted name, in reading order: `{"lora.r": 16, ...}`."""
    leaves: dict[str, Any] = {}
    for name in type(spec).model_fields:
        value = getattr(spec, name)
        leaves |= settings(value, f"{prefix}{name}.") if isinstance(value, BaseModel) else {f"{prefix}{name}": value}
    return leaves
