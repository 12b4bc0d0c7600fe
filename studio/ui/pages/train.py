"""Train: what happens when a file is dropped, something is chosen, a setting is changed, Start is pressed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gradio as gr
from pydantic import ValidationError
from sqlalchemy.orm import Session

from engine.rows.declared import columns_of
from engine.spec import Data, RunSpec
from studio import datasets, models, queue, runs
from studio.context import Studio
from studio.db.tables import Dataset, Model
from studio.errors import StudioError
from studio.room import admitted
from studio.ui import chrome, form
from studio.ui.chrome import QUIET, handler
from studio.ui.pages import learning
from studio.ui.pages import train_fit as fit
from studio.ui.pages.train_cards import REWARDS
from studio.ui.pages.train_state import BRIDGE, COLUMNS, KIND, LEVEL, Given, State, Updates, found
from studio.ui.texts import text
from studio.ui.views import datasets as dataset_views
from studio.ui.views import models as model_views


class Train(State):
    """The page. Each event reads the database anew: the tab holds nothing but what was typed."""

    def __init__(self, demo: gr.Blocks, studio: Studio) -> None:
        super().__init__(demo, studio)
        fields, faults = set(self.form.fields.values()), list(self.form.errors.values())
        panel = self.learning
        given: Any = {self.dataset, self.model, self.suggested, self.shown, panel.row} | fields
        outputs: Any = self.components()
        demo.load(handler(self.load), given, outputs, **QUIET)
        self.file.upload(handler(self.drop), given | {self.file}, outputs, **QUIET)
        self.dataset.input(handler(self.chose_data), given, outputs, **QUIET)
        self.model.input(handler(self.chose), given, outputs, **QUIET)
        panel.level.input(handler(self.leveled), given | {panel.level}, outputs, **QUIET)
        for choice in panel.columns.inputs:
            choice.input(handler(self.mapped), given | set(panel.columns.inputs), outputs, **QUIET)
        for pane in (panel.rows, panel.numbers):
            pane.act(handler(self.acted), given, outputs, **QUIET)
        self.timer.tick(handler(self.tick), given, outputs, **QUIET)
        self.method.input(handler(self.chose), given, outputs, **QUIET)
        self.reward.input(handler(self.rewarded), given | {self.reward}, outputs, **QUIET)
        for component in fields - {self.method}:
            component.input(handler(self.edited), given, outputs, trigger_mode="always_last", **QUIET)  # type: ignore[attr-defined]
        self.repair.click(handler(self.repaired), given, outputs, **QUIET)
        self.reset.click(handler(self.back), given, outputs, **QUIET)
        begun = self.start.click(handler(self.begin), given, [self.go, self.problem, *faults], **QUIET)
        begun.success(None, self.go, None, js="(url) => { if (url) window.location.href = url; }", **QUIET)

    def load(self, given: Given, request: gr.Request) -> Updates:
        """What the address asks for: ?clone=, or ?dataset=, ?model=, ?level=, ?kind= and ?columns=."""
        query = dict(request.query_params)
        with self.studio.session() as session:
            if query.get("clone"):
                spec = runs.clone_spec(session, query["clone"])
                lead = text("train.cloned", name=runs.get(session, query["clone"]).name)
                updates = self.show(session, given, spec.data.dataset, spec.model, fresh=spec)
                lost = gone(session, spec.data.dataset, spec.model)
                said = {self.found: chrome.note("warn", *lost)} if lost else {}
                return updates | {self.head: chrome.heading(text("train.title"), lead)} | said
            usable = [model.id for model in models.list_models(session) if model_views.usable(model)]
            only = usable[0] if len(usable) == 1 else None
            named = query.get("dataset"), query.get("model") or only
            fresh = asked_for(self.suggestion(session, found(session, *named)), query)
            return self.show(session, given, *named, fresh=fresh)

    def drop(self, given: Given) -> Updates:
        """Store the file at once; a worker checks it."""
        path = Path(given[self.file])
        try:
            with self.studio.session() as session:
                stored = datasets.add(
                    session, self.studio.storage, self.studio.settings, path=path, filename=path.name
                ).id
        except StudioError as error:
            said = chrome.note("bad", text("train.drop_failed"), error.message, error.advice)
            return {self.found: said, self.file: gr.update(value=None)}
        finally:
            path.unlink(missing_ok=True)
        queue.send_prepare(self.studio.celery, "check_dataset", stored)
        with self.studio.session() as session:
            return self.show(session, given, stored, given[self.model]) | {self.file: gr.update(value=None)}

    def chose_data(self, given: Given) -> Updates:
        """Another dataset: whatever was said of the columns was said of the one before."""
        anew = {self.form.fields[KIND]: "auto", self.form.fields[COLUMNS]: ""}
        return {field: gr.update(value=value) for field, value in anew.items()} | self.chose({**given, **anew})

    def mapped(self, given: Given) -> Updates:
        """What the columns hold, as far as it is chosen: the settings follow."""
        columns = self.learning.columns
        declared = columns.read(given)
        updates = self._set(given, {KIND: declared.kind or "auto", COLUMNS: dataset_views.pairs(declared.columns)})
        with self.studio.session() as session:
            chosen = found(session, given[self.dataset], given[self.model])
            return updates | columns.show(chosen.dataset, declared, columns.kind_in(given))

    def chose(self, given: Given) -> Updates:
        """Another dataset, model or method: its first row."""
        with self.studio.session() as session:
            anew = {**given, self.learning.row: "1"}
            return self.show(session, anew, given[self.dataset], given[self.model])

    def tick(self, given: Given) -> Updates:
        """While something is being prepared: show how far it is, if that changed."""
        values = self.form.values(given)
        with self.studio.session() as session:
            chosen = found(session, given[self.dataset], given[self.model])
            looked = learning.look(session, self.subject(chosen, values, given))
            mark = self.mark(session, chosen, looked, values)
            if mark == given[self.shown]:
                return {self.timer: gr.Timer(value=looked.pace) if looked.waits else gr.skip()}
            if mark.split("|")[0] == given[self.shown].split("|")[0]:
                return self.learned(session, given, values, chosen)
            return self.show(session, given, given[self.dataset], given[self.model])

    def edited(self, given: Given) -> Updates:
        """A setting was changed: judge it, and say what the run will be; rows may be rendered another way now."""
        values = self.form.values(given)
        with self.studio.session() as session:
            chosen = found(session, given[self.dataset], given[self.model])
            looked = learning.look(session, self.subject(chosen, values, given))
            if self.mark(session, chosen, looked, values) == given[self.shown]:
                return self.judge(session, given, values, chosen)
            return self.show(session, given, given[self.dataset], given[self.model])

    def leveled(self, given: Given) -> Updates:
        """Another reasoning level: the setting follows, and so does what is shown."""
        return self._set(given, {LEVEL: given[self.learning.level] or ""})

    def rewarded(self, given: Given) -> Updates:
        """One reward more, as a line of the setting."""
        name, lines = given[self.reward], str(given[self.form.fields[REWARDS]] or "").splitlines()
        if name and name not in {form.weight_of(line)[0].partition(":")[0] for line in lines}:
            lines.append(f"{name} = 1")
        return self._set(given, {REWARDS: "\n".join(lines)}) | {self.reward: gr.update(value="")}

    def acted(self, given: Given, event: gr.EventData) -> Updates:
        """A row to turn to, a level, or what was said to a bridge."""
        action, value = str(event._data["action"]), str(event._data["id"])
        values = self.form.values(given)
        with self.studio.session() as session:
            chosen = found(session, given[self.dataset], given[self.model])
            subject = learning.acted(session, self.subject(chosen, values, given), action, value)
            if action == "row":
                return self.learned(session, {**given, self.learning.row: str(subject.row)}, values, chosen)
        return self._set(given, {LEVEL: value} if action == "level" else {BRIDGE: subject.way.bridge})

    def _set(self, given: Given, values: form.Values) -> Updates:
        """Change settings as if they were typed."""
        typed = {self.form.fields[name]: value for name, value in values.items()}
        with self.studio.session() as session:
            updates = self.show(session, {**given, **typed}, given[self.dataset], given[self.model])
            return updates | {field: gr.update(value=value) for field, value in typed.items()}

    def back(self, given: Given) -> Updates:
        """To what is suggested for this data and model."""
        with self.studio.session() as session:
            chosen = found(session, given[self.dataset], given[self.model])
            fresh = self.suggestion(session, chosen, given[self.method])
            return self.show(session, given, given[self.dataset], given[self.model], fresh=fresh)

    def repaired(self, given: Given) -> Updates:
        """The smallest change that makes it fit, in the form."""
        ids, values = (given[self.dataset], given[self.model]), self.form.values(given)
        with self.studio.session() as session:
            better = fit.repaired(self.planned(session, found(session, *ids), values), values)
            fields = {self.form.fields[name]: value for name, value in better.items() if name in self.form.fields}
            return self.show(session, {**given, **fields}, *ids) | self.form.show(better)

    def begin(self, given: Given) -> Updates:
        """Make the run and go to its page; the queue may be down, the run is safe."""
        spec, faults = form.read(
            self.form.values(given), model=given[self.model] or "", dataset=given[self.dataset] or ""
        )
        if spec is None:
            return {self.go: "", **self.form.blame(faults)}
        try:
            with self.studio.session() as session:
                run_id = admitted(session, self.studio.storage, runs.create(session, spec)).id
        except StudioError as error:
            said = chrome.note("bad", text("train.failed"), error.message, error.advice)
            return {self.go: "", self.problem: gr.update(value=said, visible=True)}
        with self.studio.session() as session:
            queue.send_run(self.studio.celery, session, runs.get(session, run_id))
        return {self.go: f"/run?id={run_id}"}


def asked_for(spec: RunSpec, query: Mapping[str, str]) -> RunSpec:
    """A spec with what an address says of the data; the spec as it is where that is nothing that it can hold."""
    told = {"reasoning_level": query.get("level"), "kind": query.get("kind")}
    columns = columns_of(filter(None, query.get("columns", "").split(",")))
    data = {name: value for name, value in {**told, "columns": columns}.items() if value}
    try:
        return spec.model_copy(update={"data": Data.model_validate({**spec.data.model_dump(), **data})})
    except ValidationError:
        return spec


def gone(session: Session, dataset_id: str, model_id: str) -> tuple[str, str] | None:
    """What a run was made with that is not there any more, and what to do."""
    dataset, model = session.get(Dataset, dataset_id), session.get(Model, model_id)
    if dataset is None or dataset.status == "deleted":
        name = dataset.name if dataset is not None and dataset.name else dataset_id
        return text("train.gone_dataset", name=name), text("train.gone_dataset_help")
    return (text("train.gone_model", name=model_id), text("train.gone_model_help")) if model is None else None
