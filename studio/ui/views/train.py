"""What the Train page says about a run before it exists: the first rows, the settings in words, the Start button."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.spec import GRPO, RunSpec
from studio.datasets import declarable
from studio.db.tables import Dataset, Model, Plan, Preview
from studio.ui import figures
from studio.ui.chrome import meter, note
from studio.ui.html import Child, Html, el, many
from studio.ui.status import BUSY
from studio.ui.texts import EN, text
from studio.ui.views import models as model_views


@dataclass(frozen=True)
class Chosen:
    """What the page knows at one moment."""

    dataset: Dataset | None
    model: Model | None
    spec: RunSpec | None = None
    faulty: bool = False
    unfit: bool = False
    preview: Preview | None = None
    plan: Plan | None = None

    @property
    def pending(self) -> bool:
        """Whether something is still being checked or prepared."""
        return any(one is not None and one.status in BUSY for one in (self.dataset, self.model))

    @property
    def kind(self) -> str:
        """Of the dataset's rows; empty while nobody knows."""
        return self.dataset.kind or "" if self.dataset is not None and self.dataset.status == "ready" else ""

    @property
    def ready(self) -> bool:
        """Whether a run could be made, were its settings right."""
        return all(one is not None and one.status == "ready" for one in (self.dataset, self.model))


def step_head(number: int, title: str, *, done: bool = False, aside: Child = None) -> Html:
    """The numbered head of a card."""
    sign = el("span", "✓" if done else number, cls="number", aria_hidden="true")
    return el(
        "div",
        sign,
        el("h2", title),
        el("span", aside, cls="aside") if aside else None,
        cls=f"step-head{' done' if done else ''}",
    )


def model_line(model: Model | None) -> Html:
    """How far the chosen model is prepared; nothing once it is ready."""
    if model is None or model.status not in BUSY:
        return many()
    return el("div", meter(model.progress), el("p", model_views.progress(model), cls="quiet small"), role="status")


def no_model(found: Sequence[Model]) -> Html:
    """That there is nothing to train, and why not, where something was tried."""
    why = [el("li", f"{model.name}: {model.error}") for model in found if model.error]
    return note("warn", text("train.model_none"), el("ul", why) if why else None)


def method(spec: RunSpec | None, devices: Sequence[dict[str, Any]]) -> Html:
    """The settings in words, and where the run will go."""
    device = device_words(devices)
    if spec is None:
        return el(
            "div",
            el("p", el("b", text("method.sft")), " · ", text("method.sft_words")),
            el("p", device, cls="quiet small"),
            cls="words",
        )
    most = spec.data.max_length
    longest = text("train.length_auto") if most is None else text("train.length", n=figures.count(most))
    batch = spec.training.per_device_train_batch_size * spec.training.gradient_accumulation_steps
    told = {
        "rate": figures.scientific(spec.optimizer.learning_rate),
        "batch": figures.count(batch),
        "held": f"{100 * spec.data.eval_fraction:g} %",
    }
    if isinstance(spec.method, GRPO):
        answers, most = spec.method.num_generations, spec.method.max_completion_length
        more = text("train.more_sampled", answers=figures.count(answers), tokens=figures.count(most), **told)
    else:
        more = text("train.more", length=longest, **told)
    settings = text(
        "train.settings",
        method=text(f"method.{spec.method.type}"),
        adapter=text("train.whole") if spec.training.full_finetuning else text("train.adapter", r=spec.lora.r),
        length=length(spec),
    )
    return el("div", el("p", el("b", settings)), el("p", more), el("p", device, cls="quiet small"), cls="words")


def rewards(names: Sequence[str]) -> list[tuple[str, str]]:
    """Rewards to add, each with what it is 1 for; those that an installation brings by their name alone."""
    said = {name: EN.get(f"reward.{name}") for name in names}
    known = [(text("train.reward_choice", name=name, words=words), name) for name, words in said.items() if words]
    return [(text("train.reward_add"), ""), *known, *((name, name) for name, words in said.items() if not words)]


def length(spec: RunSpec) -> str:
    """3 epochs, or the steps where they are limited."""
    if spec.training.max_steps > 0:
        return text("train.steps", n=figures.count(spec.training.max_steps))
    epochs = spec.training.num_train_epochs
    return text("train.epoch") if epochs == 1 else text("train.epochs", n=f"{epochs:g}")


def device_words(devices: Sequence[dict[str, Any]]) -> str:
    """Where it will run, and what is free there."""
    if not devices:
        return text("train.device_none")
    free = sum(device["total_bytes"] - device["used_bytes"] for device in devices)
    name = devices[0]["name"] if len(devices) == 1 else text("bar.devices", n=len(devices))
    return text("train.device", device=name, free=figures.size(free))


def start(chosen: Chosen) -> tuple[str, bool]:
    """Label of the Start button, and whether it can be pressed. The label says what is missing."""
    missing = _missing(chosen)
    if missing:
        return text(missing), False
    told = chosen.plan.told if chosen.plan is not None else None
    if told is None:
        return text("train.start"), True
    if told["seconds"] is None:
        return text("train.start_steps", steps=figures.count(told["steps"])) if told["steps"] else text(
            "train.start"
        ), True
    on_cpu = chosen.plan is not None and any(one.get("kind") == "cpu" for one in chosen.plan.devices or ())
    one = text("fit.cpu") if on_cpu else text("fit.device")
    device = one if told["devices"] == 1 else text("fit.devices", n=told["devices"])
    return text("train.start_about", time=figures.roughly(told["seconds"]), device=device), True


def _missing(chosen: Chosen) -> str:
    """The key of what is missing, most basic first."""
    dataset, model = chosen.dataset, chosen.model
    if dataset is None or model is None:
        return {(True, True): "train.need_both", (True, False): "train.need_data"}.get(
            (dataset is None, model is None), "train.need_model"
        )
    if dataset.status in BUSY:
        return "train.need_check"
    declared = chosen.spec is not None and chosen.spec.data.declared and declarable(dataset)
    if chosen.unfit or (dataset.status != "ready" and not declared):
        return "train.need_usable"
    if model.status in BUSY:
        return "train.need_model_ready"
    return "train.need_fix" if chosen.faulty else ""
