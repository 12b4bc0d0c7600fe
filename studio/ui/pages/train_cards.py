"""The Train page's components: three cards, the settings, the button; beside them what is learned and needed."""

import gradio as gr
from gradio.blocks import Block
from gradio.components import Component

from engine.rewards import known
from studio.ui import chrome, form
from studio.ui.pages.learning import POLL_SECONDS, Learning
from studio.ui.texts import label, text
from studio.ui.views import fit
from studio.ui.views import train as views

FILES = [".jsonl", ".json", ".csv", ".parquet"]
REWARDS = "method.grpo.rewards"
FRONT = (REWARDS,)  # settings that everybody should look at


class Cards:
    """The components, made where they are shown; `form` holds those of the settings."""

    def __init__(self) -> None:
        self.form = form.Form()
        self.head = chrome.sheet(chrome.heading(text("train.title"), text("train.lead")))
        with gr.Row(elem_classes=["train"]):
            with gr.Column(scale=6, min_width=340):
                self._data()
                self._model()
                self._method()
                self.problem = chrome.sheet(visible=False)
                self.start = gr.Button(
                    text("train.need_both"),
                    variant="primary",
                    interactive=False,
                    elem_classes=["start"],
                    elem_id="start",
                )
            with gr.Column(scale=5, min_width=340, elem_classes=["side"]):
                self._learn()
                self._fit()
        # Kept by the browser, so that they outlive a restart of the server.
        self.suggested = gr.JSON({}, visible=False)
        self.shown = gr.Textbox("", visible=False)
        self.go = gr.Textbox(visible=False)
        self.timer = gr.Timer(POLL_SECONDS, active=False)

    def _data(self) -> None:
        with gr.Column(elem_classes=["card"]):
            self.head_data = chrome.sheet(views.step_head(1, text("train.data")))
            self.file = gr.File(
                label=label("train.drop"),
                show_label=False,
                file_types=FILES,
                height=88,
                elem_classes=["drop"],
                elem_id="drop",
            )
            self.dataset = gr.Dropdown(choices=[], value=None, label=label("train.dataset_choose"), elem_id="dataset")
            chrome.open_choice(self.dataset)
            self.found = chrome.sheet()

    def _model(self) -> None:
        with gr.Column(elem_classes=["card"]):
            self.head_model = chrome.sheet(views.step_head(2, text("train.model")))
            self.model = gr.Radio(
                choices=[],
                show_label=False,
                label=label("train.model"),
                elem_classes=["choices"],
                elem_id="model",
                container=False,
            )
            chrome.open_choice(self.model)
            self.earlier = form.start_field(self.form)
            chrome.open_choice(self.earlier)
            self.prepared = chrome.sheet()

    def _method(self) -> None:
        with gr.Column(elem_classes=["card"]):
            self.head_method = chrome.sheet(views.step_head(3, text("train.method")))
            self.method = form.method_field(self.form)
            form.front(self.form, FRONT)
            self.reward = gr.Dropdown(
                choices=views.rewards(known()),
                value="",
                show_label=False,
                label=label("train.reward_add"),
                visible=False,
                elem_id="add-reward",
            )
            chrome.open_choice(self.reward)
            self.words = chrome.sheet(views.method(None, []))
        with gr.Accordion(label("train.advanced"), open=False, elem_classes=["advanced"]):
            form.name_field(self.form)
            form.draw(self.form)
            self.reset = gr.Button(label("train.reset"), size="sm")

    def _learn(self) -> None:
        self.learning = Learning()
        with gr.Column(elem_classes=["card", "learn"]):
            self.learning.draw_rows()
            self.learning.draw_numbers()

    def _fit(self) -> None:
        with gr.Column(elem_classes=["card"]):
            self.fit = chrome.sheet(fit.panel(None, wanted=False))
            self.repair = gr.Button("", visible=False, size="sm", elem_id="repair")

    def components(self) -> list[Block]:
        """Everything that an event may change."""
        own = [one for held in (self, self.learning) for one in vars(held).values() if isinstance(one, Component)]
        places = [place for _, place in self.form.places]
        return [
            *own,
            *self.learning.columns.components(),
            *self.form.fields.values(),
            *self.form.errors.values(),
            *places,
        ]
