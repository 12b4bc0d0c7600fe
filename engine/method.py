"""What can be learned from rows, and how: one section of settings per method. This module imports no torch."""

from typing import Annotated, ClassVar, Literal, TypeVar

from pydantic import Field, model_validator

from engine.section import Section

RewardName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*(:.+)?$", max_length=2000)]


class SFT(Section):
    """Supervised fine-tuning: imitate the answers in the data."""

    kinds: ClassVar[tuple[str, ...]] = ("chat", "text")  # of rows that it learns from
    unused: ClassVar[frozenset[str]] = frozenset()  # settings that mean nothing to it

    type: Literal["sft"] = "sft"
    train_on: Literal["all_turns", "last_turn"] = Field(
        default="all_turns",
        title="Train on",
        description="Every assistant turn of a conversation, or only the last one.",
    )
    train_reasoning: bool = Field(
        default=True,
        title="Train reasoning",
        description="Off: the reasoning of a row is read, not learned; the answer after it is.",
    )


class DPO(Section):
    """Direct preference optimisation: prefer the better of two answers."""

    kinds: ClassVar[tuple[str, ...]] = ("preference",)
    unused: ClassVar[frozenset[str]] = frozenset({"data.packing"})

    type: Literal["dpo"] = "dpo"
    loss_type: Literal["sigmoid", "ipo", "orpo"] = Field(
        default="sigmoid",
        title="Loss",
        description="sigmoid is DPO; ipo also holds back where the data are clear; orpo needs no reference and learns "
        "the form of the better answers too.",
    )
    beta: float = Field(
        default=0.1,
        gt=0.0,
        le=100.0,
        title="Beta",
        description="How strongly the model is held to where it started (sigmoid, ipo), or how much the preference "
        "weighs beside imitation (orpo).",
    )

    @property
    def refers(self) -> bool:
        """Whether the loss compares with the weights that the run started from."""
        return self.loss_type != "orpo"


class KTO(Section):
    """Kahneman-Tversky optimisation: learn from answers that are each marked as good or bad."""

    kinds: ClassVar[tuple[str, ...]] = ("rated",)
    unused: ClassVar[frozenset[str]] = frozenset({"data.packing"})

    type: Literal["kto"] = "kto"
    beta: float = Field(
        default=0.1,
        gt=0.0,
        le=100.0,
        title="Beta",
        description="How strongly the model is held to where it started.",
    )
    desirable_weight: float = Field(
        default=1.0,
        ge=0.0,
        le=1000.0,
        title="Weight of good answers",
        description="Raise it where good answers are the fewer ones.",
    )
    undesirable_weight: float = Field(
        default=1.0,
        ge=0.0,
        le=1000.0,
        title="Weight of bad answers",
        description="Raise it where bad answers are the fewer ones.",
    )


class GRPO(Section):
    """Group relative policy optimisation: try answers, and make those likelier that a reward prefers."""

    kinds: ClassVar[tuple[str, ...]] = ("prompt", "chat")
    unused: ClassVar[frozenset[str]] = frozenset({"data.packing"})

    type: Literal["grpo"] = "grpo"
    rewards: dict[RewardName, float] = Field(
        default={"exact_match": 1.0},
        min_length=1,
        max_length=16,
        title="Rewards",
        description="What an answer is worth: names with their weights, an argument after a colon, as in length:200.",
    )
    num_generations: int = Field(
        default=8, ge=2, le=256, title="Answers per prompt", description="Answers that are compared with one another."
    )
    max_completion_length: int = Field(
        default=256, ge=1, le=65_536, title="Longest answer", description="Tokens after which an answer is cut off."
    )
    thinking_budget: int = Field(
        default=0,
        ge=0,
        le=65_536,
        title="Thinking budget",
        description="Tokens after which a thought that goes on is closed, so that an answer follows; 0: no limit.",
    )
    temperature: float = Field(
        default=1.0, gt=0.0, le=10.0, title="Temperature", description="Higher tries more, lower repeats what is known."
    )
    top_p: float = Field(
        default=1.0, gt=0.0, le=1.0, title="Top-p", description="Only the likeliest tokens with this share; 1: all."
    )
    top_k: int = Field(
        default=0, ge=0, le=1_000_000, title="Top-k", description="Only so many of the likeliest tokens; 0: all."
    )
    min_p: float = Field(
        default=0.0,
        ge=0.0,
        lt=1.0,
        title="Min-p",
        description="Only tokens at least this likely, as a share of the likeliest; 0: all.",
    )
    loss_type: Literal["grpo", "dapo", "dr_grpo"] = Field(
        default="dapo",
        title="Length",
        description="Whether every answer (grpo) or every token (dapo) weighs the same, or tokens by the longest "
        "possible answer (dr_grpo).",
    )
    scale_rewards: Literal["group", "batch", "none"] = Field(
        default="group",
        title="Scale",
        description="Advantages are divided by the deviation of their group, of the whole batch, or not at all.",
    )
    importance_sampling_level: Literal["token", "sequence"] = Field(
        default="token", title="Ratio", description="Of each token, or of the whole answer (GSPO)."
    )
    epsilon: float = Field(default=0.2, gt=0.0, lt=1.0, title="Clip below", description="How far a ratio may fall.")
    epsilon_high: float = Field(
        default=0.28, gt=0.0, le=10.0, title="Clip above", description="How far a ratio may rise."
    )
    beta: float = Field(
        default=0.0,
        ge=0.0,
        le=10.0,
        title="KL",
        description="How strongly the model is held to where it started; 0 saves a forward pass.",
    )
    num_iterations: int = Field(
        default=1, ge=1, le=16, title="Steps per sampling", description="Optimizer steps on the same answers."
    )
    mask_truncated_completions: bool = Field(
        default=False, title="Skip cut answers", description="Learn nothing from answers that the limit cut off."
    )
    use_vllm: bool = Field(
        default=False,
        title="Sample from vLLM",
        description="Answers come from the vLLM server of this installation, which is given the adapter before each "
        "sampling. They are drawn from all tokens.",
    )

    @model_validator(mode="after")
    def a_server_draws_from_all_tokens(self) -> "GRPO":
        """What a server left out of its draws is not told, and ratios would be of another set of tokens."""
        if self.use_vllm and (self.top_k or self.top_p < 1.0 or self.min_p or self.thinking_budget):
            raise ValueError("use_vllm needs top_p 1, and top_k, min_p and thinking_budget 0")
        return self

    @model_validator(mode="after")
    def an_answer_fits_behind_the_thought(self) -> "GRPO":
        """The budget leaves room for an answer."""
        if self.thinking_budget >= self.max_completion_length and self.thinking_budget:
            raise ValueError("thinking_budget must be below max_completion_length: the answer comes after the thought")
        return self


Method = Annotated[SFT | DPO | KTO | GRPO, Field(discriminator="type")]
M = TypeVar("M", DPO, KTO, GRPO)


def settings_of(method: Method, kind: type[M]) -> M:
    """The settings of a run's method, which is of this kind. Raises TypeError for another."""
    if not isinstance(method, kind):
        raise TypeError(f"not a {kind.__name__} run: {method.type}")
    return method
