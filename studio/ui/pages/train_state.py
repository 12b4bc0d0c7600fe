"""The Train page at one moment: everything that follows from the chosen dataset, model and settings."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import gradio as gr
from sqlalchemy.orm import Session

from engine.rows import Declared
from engine.rows.declared import columns_of
from engine.spec import RunSpec
from studio import datasets, models, previews, runs
from studio.context import Studio
from studio.db.tables import Dataset, Model, Plan
from studio.defaults import suggest
from studio.errors import Invalid
from studio.previews import Way, asks
from studio.room import check_room
from studio.runs import check_fit
from studio.storage import Storage
from studio.ui import chrome, form
from studio.ui.html import link
from studio.ui.pages import learning
from studio.ui.pages import train_fit as fit
from studio.ui.pages.train_cards import Cards
from studio.ui.status import BUSY
from studio.ui.texts import text
from studio.ui.views import datasets as dataset_views
from studio.ui.views import fit as fit_views
from studio.ui.views import models as model_views
from studio.ui.views import train as views

LEVEL, BRIDGE, KIND, COLUMNS = (
    "data.reasoning_level",
    "data.bridge",
    "data.kind",
    "data.columns",
)  # settings that the panel changes too
BUDGET, SERVER = "method.grpo.thinking_budget", "method.grpo.use_vllm"
Given = Mapping[Any, Any]
Updates = dict[Any, Any]


class State(Cards):
    """The cards, and what they show."""

    def __init__(self, demo: gr.Blocks, studio: Studio) -> None:
        self.studio = studio
        chrome.top(demo, studio, "train")
        super().__init__()

    def show(
        self,
        session: Session,
        given: Given,
        dataset_id: str | None,
        model_id: str | None,
        *,
        fresh: RunSpec | None = None,
    ) -> Updates:
        """Everything that follows from the chosen dataset and model."""
        chosen = found(session, dataset_id, model_id)
        every = models.list_models(session)
        listed = [model for model in every if model_views.usable(model)]
        mine, before = self.form.values(given), given[self.suggested]
        new = form.values_of(self.suggestion(session, chosen, mine.get(form.METHOD)))
        changed = {name: value for name, value in mine.items() if before and value != before.get(name)}
        values = form.values_of(fresh) if fresh else new | changed | {form.METHOD: new[form.METHOD]}
        shown_method = before.get(form.METHOD) if before else None
        subject = self.subject(chosen, values, given)
        looked = learning.look(session, subject, self.studio)
        declared = bool(subject.way.declared) and chosen.dataset is not None
        done = (
            declared or (chosen.dataset is not None and chosen.dataset.status == "ready"),
            chosen.model is not None and chosen.model.status == "ready",
        )
        adding = None if listed else link(text("train.model_add"), "/models")
        return {
            self.head_data: views.step_head(1, text("train.data"), done=done[0]),
            self.head_model: views.step_head(2, text("train.model"), done=done[1], aside=adding),
            self.dataset: gr.update(
                choices=[
                    dataset_views.choice(one, declared=declared and one is chosen.dataset)
                    for one in datasets.list_datasets(session)
                ],
                value=chosen.dataset and chosen.dataset.id,
            ),
            self.model: gr.update(choices=model_views.choices(listed), value=chosen.model and chosen.model.id),
            self.found: dataset_views.line(chosen.dataset, declared=bool(subject.way.declared)),
            self.prepared: views.model_line(chosen.model) if listed else views.no_model(every),
            **self.learning.show(subject, looked),
            self.suggested: new,
            self.shown: self.mark(session, chosen, looked, values),
            self.timer: gr.Timer(
                value=looked.pace,
                active=chosen.pending or looked.waits or any(model.status in BUSY for model in listed),
            ),
            **({} if values == mine else self.form.show(values)),
            **({} if values[form.METHOD] == shown_method else self.form.suit(values[form.METHOD])),
            self.earlier: self.starts(session, chosen, values),
            self.method: gr.update(choices=form.method_choices(chosen.kind), value=values[form.METHOD]),
            **self.judge(session, given, values, chosen),
        }

    def learned(self, session: Session, given: Given, values: form.Values, chosen: views.Chosen) -> Updates:
        """Only what a preview changes, so that it is there at once."""
        subject = self.subject(chosen, values, given)
        looked = learning.look(session, subject, self.studio)
        spec, faults = form.read(values, **named(chosen))
        asked = replace(chosen, spec=spec, faulty=bool(faults), preview=looked.first)
        asked = replace(asked, plan=fit.plan_of(session, self.studio, asked))
        label, able = views.start(asked)
        return {
            **self.learning.show(subject, looked),
            self.start: gr.update(value=label, interactive=able),
            self.shown: self.mark(session, chosen, looked, values),
            self.timer: gr.Timer(value=looked.pace, active=chosen.pending or looked.waits),
            **self.fitted(asked),
            **self.offered(looked, values),
        }

    def judge(self, session: Session, given: Given, values: form.Values, chosen: views.Chosen) -> Updates:
        """The faults beside their fields, the settings in words, and the button."""
        spec, faults = form.read(values, **named(chosen))
        refused = refusal(chosen, spec, self.studio.storage)
        blamed = refused is not None and refused.param in self.form.errors
        faults |= {str(refused.param): refused.message} if refused and blamed else {}
        subject = self.subject(chosen, values, given)
        looked = learning.look(session, subject)
        asked = replace(
            chosen, spec=spec, faulty=bool(faults), unfit=refused is not None and not blamed, preview=looked.first
        )
        asked = replace(asked, plan=fit.plan_of(session, self.studio, asked))
        label, able = views.start(asked)
        said = chrome.note("bad", refused.message, refused.advice) if refused else ""
        words = {} if spec is None else {self.words: views.method(spec, chrome.devices(session, self.studio))}
        head = views.step_head(3, text("train.method"), done=able)
        return {
            **self.fitted(asked),
            self.start: gr.update(value=label, interactive=able),
            self.head_method: head,
            self.problem: gr.update(value=said, visible=bool(said)),
            **words,
            **({} if spec is None else self.learning.count(subject, looked)),
            **self.offered(looked, values),
            **self.form.blame(faults),
        }

    def subject(self, chosen: views.Chosen, values: form.Values, given: Given) -> learning.Subject:
        """What is looked at: the rows as these settings render them, whatever else is still wrong with the settings."""
        method = f"{form.METHOD.partition('.')[0]}.{values.get(form.METHOD)}"
        kind, columns = values.get(KIND) or "auto", columns_of(str(values.get(COLUMNS) or "").split(","))
        columns = {holds: name for holds, name in columns.items() if holds and name}
        declared = Declared(None if kind == "auto" else kind, columns)  # type: ignore[arg-type]
        told = {
            "level": values.get(LEVEL) or "",
            "bridge": values.get(BRIDGE),
            "train_on": values.get(f"{method}.train_on"),
            "train_reasoning": values.get(f"{method}.train_reasoning"),
            "declared": declared,
            "asks": asks(declared.kind or chosen.kind, values.get(form.METHOD) or "sft"),
        }
        most = values.get("data.max_length")
        row = str(given.get(self.learning.row) or "1")
        return learning.Subject(
            chosen.dataset,
            chosen.model,
            Way.model_validate({name: value for name, value in told.items() if value is not None}),
            int(row) if row.isdecimal() else 1,
            int(most) if isinstance(most, int | float) and most >= 1 else None,
            values.get("data.truncation_mode") == "drop",
        )

    def starts(self, session: Session, chosen: views.Chosen, values: form.Values) -> Any:
        """The finished runs of the model that this one may go on from; hidden where there is none."""
        found = runs.continuable(session, chosen.model.id) if chosen.model is not None else []
        choices = [(text("train.start_fresh"), ""), *((run.name, run.id) for run in found)]
        known = {value for _, value in choices}
        value = values[form.START] if values[form.START] in known else ""
        return gr.update(choices=choices, value=value, visible=len(choices) > 1)

    def offered(self, looked: learning.Looked, values: form.Values) -> Updates:
        """What is not everywhere: a thinking budget where the template knows reasoning, and a server to sample from."""
        reasons = bool(values.get(BUDGET)) or previews.reasons(looked.first.survey if looked.first else None)
        server = bool(values.get(SERVER) or self.studio.settings.vllm_url)
        samples = values.get(form.METHOD) == "grpo"
        offers = {BUDGET: reasons and samples, SERVER: server and samples}
        shown = {self.reward: gr.update(visible=samples)}
        for name, there in offers.items():
            shown |= self.form.offer(name, there=there)
        return shown

    def fitted(self, chosen: views.Chosen) -> Updates:
        """Will it fit, and the button that makes it fit; and look again while the plan is made."""
        label = fit_views.remedy(chosen.plan)
        looking = {self.timer: gr.Timer(value=fit.SOON_SECONDS, active=True)} if fit.waits(chosen.plan) else {}
        return {
            self.fit: fit_views.panel(chosen.plan, wanted=fit.wanted(chosen), reading=fit.reading(chosen)),
            self.repair: gr.update(value=label, visible=bool(label)),
            **looking,
        }

    def planned(self, session: Session, chosen: views.Chosen, values: form.Values) -> Plan | None:
        """The plan of these settings, as far as it is there."""
        spec, _ = form.read(values, **named(chosen))
        return fit.found(session, self.studio, replace(chosen, spec=spec))

    def suggestion(self, session: Session, chosen: views.Chosen, method: str | None = None) -> RunSpec:
        """A good start for this data and model by this method, or the plain defaults while one is missing."""
        if chosen.ready and chosen.dataset is not None and chosen.model is not None:
            return suggest(chosen.dataset, chosen.model, chrome.devices(session, self.studio), method)
        return RunSpec.model_validate({"model": "", "data": {"dataset": ""}, "method": {"type": method or "sft"}})

    def mark(self, session: Session, chosen: views.Chosen, looked: learning.Looked, values: form.Values) -> str:
        """Changes whenever what is being prepared gets further, or the rows are rendered another way."""
        plan = fit.mark(self.planned(session, chosen, values))
        states = [f"{model.id} {model.status} {model.progress}" for model in models.list_models(session)]
        return " ".join([chosen.dataset.status if chosen.dataset else "", *states, "|", looked.mark, plan])


def named(chosen: views.Chosen) -> dict[str, str]:
    """Ids of what is chosen, as a spec names them."""
    return {
        "model": chosen.model.id if chosen.model else "",
        "dataset": chosen.dataset.id if chosen.dataset else "",
    }


def refusal(chosen: views.Chosen, spec: RunSpec | None, storage: Storage) -> Invalid | None:
    """Why a run of these settings cannot be: its rows, or no room on the disk; None when it can, or nobody knows."""
    if chosen.dataset is None or spec is None or chosen.dataset.status != "ready":
        return None
    try:
        check_fit(chosen.dataset, spec)
        check_room(storage, chosen.model, spec)
    except Invalid as error:
        return error
    return None


def found(session: Session, dataset_id: str | None, model_id: str | None) -> views.Chosen:
    """The chosen dataset and model, as far as they exist and can be used."""
    dataset = session.get(Dataset, dataset_id) if dataset_id else None
    model = session.get(Model, model_id) if model_id else None
    return views.Chosen(
        None if dataset is None or dataset.status == "deleted" else dataset,
        None if model is None or not model_views.usable(model) else model,
    )
