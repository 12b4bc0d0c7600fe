"""One run as markup: head, figures, samples, log, settings, files. Made from its row and its events."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from studio.adapters import kind_of
from studio.curves import METRICS, Curves
from studio.db.tables import Dataset, Model, Run
from studio.packs import Numbers
from studio.runs import ACTIVE, FINAL
from studio.ui import figures
from studio.ui.chrome import empty, meter, note
from studio.ui.html import Child, Html, el, link, many, url
from studio.ui.status import badge
from studio.ui.texts import text, words
from studio.ui.views import rollouts
from studio.ui.views.rows import cut, message

MEMORY = ("allocated", "total")


@dataclass(frozen=True)
class Story:
    """What the database holds about a run beside its points."""

    run: Run
    dataset: Dataset | None
    model: Model | None
    ahead: int = 0
    events: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)

    def of(self, kind: str) -> Sequence[Mapping[str, Any]]:
        """Events of a kind, oldest first."""
        return self.events.get(kind, ())

    @property
    def started(self) -> Mapping[str, Any]:
        """The latest `started` event, or nothing."""
        told = self.of("started")
        return told[-1] if told else {}


def names(story: Story) -> tuple[str, str]:
    """Names of model and dataset, or their ids when they are gone."""
    run = story.run
    return story.model.name if story.model else run.model_id, story.dataset.name if story.dataset else text("runs.gone")


def head(story: Story) -> Html:
    """Name, status, what it is made of, progress, and what can be done now."""
    run = story.run
    model, dataset = names(story)
    facts = [
        link(model, "/models"),
        link(dataset, "/datasets", id=run.dataset_id)
        if story.dataset and story.dataset.status != "deleted"
        else dataset,
        words("method", run.method),
        times(run),
    ]
    return el(
        "section",
        el("div", el("h1", run.name), badge(run.status), cls="run-top"),
        el("div", [el("span", fact) for fact in facts], cls="run-sub"),
        progress(story),
        outcome(run),
        el("div", actions(run), cls="actions"),
        cls="run-head",
        data_title=text("title", page=run.name),
    )


def times(run: Run) -> str:
    """When it was started, or when it ended and what it took."""
    if run.finished_at and run.started_at:
        took = figures.duration((run.finished_at - run.started_at).total_seconds())
        return f"{text('run.finished', age=figures.age(run.finished_at))} · {text('run.took', time=took)}"
    if run.started_at:
        return text("run.started", age=figures.age(run.started_at))
    return text("run.created", age=figures.age(run.created_at))


def progress(story: Story) -> Html:
    """The bar and its words: step x of y, what is happening, about how long."""
    run = story.run
    if run.status == "queued":
        ahead = text("run.position", n=story.ahead) if story.ahead else ""
        return el("div", el("span", waiting(run)), el("span", ahead, cls="quiet"), cls="progress-words", role="status")
    share = run.step / run.total_steps if run.total_steps else None
    cls = {"succeeded": "done", "failed": "broken", "cancelled": "stopped", "paused": "stopped"}.get(run.status, "")
    if share is None and run.status in (*FINAL, "paused"):
        share = 1.0 if run.status == "succeeded" else 0.0
    done = (
        text("run.step_of", step=figures.count(run.step), total=figures.count(run.total_steps))
        if run.total_steps
        else ""
    )
    parts = [done, doing(run) if run.status in ACTIVE else ""]
    left = (
        text("run.left", time=figures.roughly(run.seconds_left)) if run.seconds_left and run.status == "running" else ""
    )
    line = el(
        "div",
        el("span", " · ".join(filter(None, parts))),
        el("span", left, cls="quiet"),
        cls="progress-words",
        role="status",
    )
    return el("div", meter(share, cls), line, cls="run-progress")


def waiting(run: Run) -> str:
    """What a queued run waits for."""
    if run.phase_detail:
        return run.phase_detail[0].upper() + run.phase_detail[1:]
    hosts = (run.spec.get("layout") or {}).get("hosts")
    several = isinstance(hosts, int) and hosts > 1
    return text("run.waiting_hosts", n=hosts) if several else text("run.waiting")


def doing(run: Run) -> str:
    """The engine's phase in words; what was asked for comes first."""
    if run.wanted:
        return text(f"run.stopping_{run.wanted}")
    detail = f": {run.phase_detail}" if run.phase_detail else ""
    return f"{words('phase', run.phase)}{detail}"


def outcome(run: Run) -> Child:
    """How it ended, and the next step."""
    if run.status == "failed":
        return failure(run)
    if run.status == "succeeded":
        detail = el("div", run.phase_detail, cls="quiet small") if run.phase_detail else None
        return note("good", text(f"run.done_{kind_of(run)}"), detail)
    return note("warn", text("run.paused")) if run.status == "paused" else None


def failure(run: Run) -> Html:
    """The cause in one sentence and what would help."""
    error = run.error or {}
    advice = [el("li", str(one)) for one in error.get("advice") or ()]
    code = error.get("exit_code")
    retry = button("retry", first=True) if error.get("changes") else None
    return note(
        "bad",
        text("run.failed"),
        el("div", str(error.get("message") or text("run.failed_unknown"))),
        many(el("div", text("run.try"), cls="quiet small", style="margin-top:6px"), el("ul", advice), retry)
        if advice
        else None,
        el("div", text("run.exit", code=code), cls="quiet small", style="margin-top:6px")
        if code not in (None, 0)
        else None,
    )


def actions(run: Run) -> list[Child]:
    """Links and buttons that make sense in this status, the likeliest first."""
    shown: list[Child] = []
    if run.status == "succeeded":
        shown.append(
            el(
                "a",
                text(f"run.download_{kind_of(run)}"),
                cls="action first",
                href=url(f"/v1/adapters/{run.id}"),
                download=True,
            )
        )
    if run.status in ("paused", "failed"):
        shown.append(button("resume", first=run.status == "paused"))
    if run.status in (*ACTIVE, "queued"):
        shown.append(button("pause", off=bool(run.wanted)))
    if run.status in (*ACTIVE, "queued", "paused"):
        shown.append(button("cancel", ask=text("run.cancel_ask"), off=run.wanted == "cancel"))
    shown.append(el("a", text("run.compare"), cls="action", href=url("/compare", runs=run.id)))
    shown.append(el("a", text("run.clone"), cls="action", href=url("/", clone=run.id)))
    shown.append(
        el("a", text("run.diagnostics"), cls="action", href=url(f"/v1/runs/{run.id}/diagnostics"), download=True)
    )
    if run.status in FINAL or run.status == "paused":
        shown.append(button("delete", ask=text("run.delete_ask"), cls="plain"))
    return shown


def button(action: str, *, first: bool = False, ask: str = "", off: bool = False, cls: str = "") -> Html:
    """A button that the page's handler hears as `act`."""
    kind = cls or ("action first" if first else "action")
    return el(
        "button",
        text(f"run.{action}"),
        type="button",
        cls=kind,
        data_action=action,
        data_confirm=ask or None,
        disabled=off,
    )


def figure_line(story: Story, told: Curves) -> Html:
    """The figures of the last step, each with its unit."""
    run = story.run
    epoch, speed = last(told.of("epoch")), last(told.of("tokens_per_second"))
    cells = [
        *(rewards(run, told) if run.method == "grpo" else losses(run, told)),
        one(
            "figures.speed",
            text("figure.none") if speed is None else figures.count(speed),
            text("unit.tokens"),
            "" if epoch is None else text("figures.epoch", value=f"{epoch:.2f}"),
        ),
        memory(told),
        one("figures.rate", figures.scientific(last(told.of("learning_rate")))),
        one("figures.norm", figures.small(last(told.of("grad_norm")))),
    ]
    return el("div", cells, cls="figures")


def losses(run: Run, told: Curves) -> list[Html]:
    """Train and eval loss, each with its lowest."""
    every = told.of("loss")
    lowest = np.fmin.reduce(every, initial=math.inf)
    under = text("figures.best", value=figures.small(lowest)) if math.isfinite(lowest) else ""
    best = text("figures.eval_best", value=figures.small(run.best_eval_loss)) if run.best_eval_loss is not None else ""
    return [
        one("figures.loss", figures.small(last(every)), under=under),
        one("figures.eval", figures.small(run.eval_loss), under=best),
    ]


def rewards(run: Run, told: Curves) -> list[Html]:
    """The reward in training and on held-out rows, each with its highest."""
    every = told.of(f"{METRICS}reward")
    highest = np.fmax.reduce(every, initial=-math.inf)
    under = text("figures.reward_best", value=figures.small(highest)) if math.isfinite(highest) else ""
    best = text("figures.eval_best", value=figures.reward(run.best_eval_loss)) if run.best_eval_loss is not None else ""
    return [
        one("figures.reward", figures.small(last(every)), under=under),
        one("figures.held_reward", figures.reward(run.eval_loss), under=best),
    ]


def warnings(story: Story) -> Child:
    """What the run warned about: the last word on each thing, and how often it came up."""
    by_code: dict[str, list[str]] = {}
    for said in story.of("warning"):
        by_code.setdefault(str(said.get("code")), []).append(str(said["message"]))
    return [
        note("warn", messages[-1], text("run.warned", n=figures.count(len(messages))) if len(messages) > 1 else None)
        for messages in by_code.values()
    ]


def one(key: str, value: str, unit: str = "", under: str = "") -> Html:
    """A figure: what, how much, its unit, and a second figure below."""
    return el(
        "div",
        el("span", text(key)),
        el("b", value, " ", el("small", unit) if unit else None),
        el("em", under),
        cls="figure",
    )


def memory(told: Curves) -> Html:
    """Memory in use now, of what there is; the fullest device when there are several."""
    now = {device: [last(told.of(f"memory/{device}/{what}")) or 0.0 for what in MEMORY] for device in told.devices}
    if not now:
        return one("figures.memory", text("figure.none"))
    device, (used, total) = max(now.items(), key=lambda item: item[1][0] / (item[1][1] or 1.0))
    peak = np.fmax.reduce(told.of(f"memory/{device}/peak"), initial=0.0)
    of = text("figures.memory_of", total=figures.size(total))
    return one("figures.memory", figures.size(used), of, text("figures.peak", value=figures.size(peak)))


def last(values: Numbers) -> float | None:
    """The last measured value."""
    known = np.flatnonzero(np.isfinite(values))
    return float(values[known[-1]]) if len(known) else None


def samples(story: Story) -> Html:
    """Groups of sampled answers, and each held-out prompt with the base model's answer beside the tuned one's."""
    told, tried = story.of("sample"), story.of("rollout")
    if tried:
        return many(rollouts.groups(tried), _compared(told) if told else None)
    if not told:
        spec = story.run.spec.get("saving") or {}
        later = text("run.samples_off" if spec.get("sample_prompts") == 0 else "run.samples_later")
        return empty(text("run.samples_none"), later, cls="empty plain")
    return _compared(told)


def _compared(told: Sequence[Mapping[str, Any]]) -> Html:
    """The latest answers of both models."""
    latest = max(sample["step"] for sample in told)
    return el("div", [sample(each) for each in told if each["step"] == latest], cls="card samples")


def sample(each: Mapping[str, Any]) -> Html:
    """One prompt, two answers."""
    same = each["base_answer"].strip() == each["answer"].strip()
    expected = each.get("expected")
    return el(
        "article",
        el("div", [message(turn, mark="") for turn in each.get("prompt") or ()], cls="chat"),
        el(
            "div",
            answer(text("run.base"), each["base_answer"]),
            answer(text("run.tuned"), each["answer"], text("run.same") if same else "", strong=True),
            cls="answers",
        ),
        el(
            "details",
            el("summary", text("run.expected"), cls="quiet small"),
            el("div", cut(expected), cls="said small"),
        )
        if expected
        else None,
        cls="sample",
    )


def answer(who: str, said: str, mark: str = "", *, strong: bool = False) -> Html:
    """One answer with whose it is."""
    return el(
        "div",
        el("div", el("span", who), el("span", mark), cls="who"),
        el("div", cut(said), cls="said"),
        cls=f"turn{' learned' if strong else ''}",
    )


def log(run: Run) -> Html:
    """The end of what the engine printed."""
    return el(
        "div", run.log_tail or text("run.log_none"), cls="log", tabindex="0", role="log", aria_label=text("run.log")
    )
