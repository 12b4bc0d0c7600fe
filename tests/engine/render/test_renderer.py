"""The laws of rendering, on templates of several kinds, and the reported faults (T cases)."""

import datetime

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.failure import Failure
from engine.render.renderer import Renderer
from engine.render.template import frozen_clock
from engine.rows import Row, normalise

STOPS = {"next_header": "<|user|>", "with_bos": "<|eot|>", "spaced": "<|eot|>"}


def user(text, **more):
    return {"role": "user", "content": text, **more}


def said(text, **more):
    return {"role": "assistant", "content": text, **more}


def chat(*messages, **more):
    return Row(kind="chat", shape="messages", messages=list(messages), number=1, **more)


def renderer_of(tokenizer, *extra_stops, date=None):
    stop = STOPS.get(tokenizer.name_or_path, "<|im_end|>")
    stops = [tokenizer.convert_tokens_to_ids(text) for text in (stop, *extra_stops)]
    return Renderer(tokenizer, [*stops, tokenizer.eos_token_id], frozen_date=date)


def part(tokenizer, sample, kind):
    spans = [span for span in sample.spans if span.kind == kind]
    return tokenizer.decode(np.concatenate([sample.ids[span.start : span.end] for span in spans])) if spans else ""


TALK = [
    chat(user("hello world"), said("what is the answer?")),
    chat({"role": "system", "content": "the fox"}, user("ab"), said("ac"), user("bc"), said("the lazy dog")),
    chat(user("é ü 漢字"), said("naïve 🙂 answer")),
]


@pytest.mark.parametrize("template", ["chatml", "thinking", "next_header", "with_bos", "parts_only"])
@pytest.mark.parametrize("row", TALK, ids=["one turn", "two turns", "unicode"])
def test_what_is_before_a_trained_span_is_what_serving_sends(tokenizer_with, template, row):
    tokenizer = tokenizer_with(template)
    renderer = renderer_of(tokenizer)
    rendered = renderer.render(row)
    assert rendered.refusals == []
    [sample] = rendered.samples
    starts = np.flatnonzero(np.diff(sample.trained.astype(int)) == 1) + 1
    turns = [k for k, message in enumerate(row.messages) if message["role"] == "assistant"]
    assert len(starts) == len(turns)
    for start, k in zip(starts, turns, strict=True):
        messages = row.messages[:k]
        if template == "parts_only":
            messages = [{**one, "content": [{"type": "text", "text": one["content"]}]} for one in messages]
        served = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
        assert sample.ids[:start].tolist() == served


@pytest.mark.parametrize("template", ["chatml", "thinking", "next_header", "with_bos"])
def test_spans_cover_every_token_once_and_answers_are_theirs(tokenizer_with, template):
    tokenizer = tokenizer_with(template)
    [sample] = renderer_of(tokenizer).render(TALK[1]).samples
    assert [span.start for span in sample.spans][1:] == [span.end for span in sample.spans][:-1]
    assert (sample.spans[0].start, sample.spans[-1].end) == (0, len(sample.ids))
    assert part(tokenizer, sample, "answer") == "acthe lazy dog"
    untrained = {"prompt", "cue"}
    for span in sample.spans:
        assert sample.trained[span.start : span.end].all() == (span.kind not in untrained)


def test_T01_template_without_generation_markers_still_gives_trained_tokens(tokenizer_with):
    assert "generation %}" not in tokenizer_with("chatml").chat_template
    rendered = renderer_of(tokenizer_with("chatml")).render(TALK[0])
    assert rendered.samples[0].trained.sum() > 1


@pytest.mark.parametrize("template", ["chatml", "thinking", "next_header", "with_bos"])
@pytest.mark.parametrize("row", TALK)
def test_T02_last_trained_token_of_each_turn_is_a_stop_token(tokenizer_with, template, row):
    renderer = renderer_of(tokenizer_with(template))
    for sample in renderer.render(row).samples:
        ends = np.flatnonzero(np.diff(np.append(sample.trained, False).astype(int)) == -1)
        assert len(ends)
        assert set(sample.ids[ends].tolist()) <= renderer.stop_ids


def test_T02_stop_in_the_next_header_is_found_when_the_next_turn_drops_the_reasoning(tokenizer_with):
    template = (
        "{% for m in messages %}<|{{ m.role }}|>{% if loop.last and m.reasoning_content %}"
        "<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    tokenizer = tokenizer_with(template)
    stop = tokenizer.convert_tokens_to_ids("<|user|>")
    row = chat(user("hello"), said("ab", reasoning_content="why"))
    [sample] = Renderer(tokenizer, [stop]).render(row).samples
    assert tokenizer.decode(sample.ids[sample.trained]) == "<think>why</think>ab<|user|>"


def test_T02_without_a_stop_token_the_turn_is_refused(tokenizer_with):
    tokenizer = tokenizer_with("chatml")
    rendered = Renderer(tokenizer, [tokenizer.eos_token_id]).render(TALK[0])
    assert [refusal.code for refusal in rendered.refusals] == ["no_stop_token"]
    assert rendered.samples == []


def test_stop_ids_are_required(tokenizer_with):
    with pytest.raises(Failure, match="no token that ends"):
        Renderer(tokenizer_with("chatml"), [])


@pytest.mark.parametrize("adds_bos", [False, True])
def test_T03_exactly_one_bos(tokenizer_with, adds_bos):
    tokenizer = tokenizer_with("with_bos", adds_bos=adds_bos)
    renderer = renderer_of(tokenizer)
    [sample] = renderer.render(TALK[1]).samples
    assert (sample.ids == tokenizer.bos_token_id).sum() == 1
    assert sample.ids[0] == tokenizer.bos_token_id
    assert (renderer.prompt_ids([user("hello")]) == tokenizer.bos_token_id).sum() == 1


def test_T03_plain_text_begins_as_the_tokenizer_begins_it(tokenizer_with):
    tokenizer = tokenizer_with("none", adds_bos=True)
    [sample] = renderer_of(tokenizer).render(Row(kind="text", shape="text", text="hello world")).samples
    assert sample.ids[0] == tokenizer.bos_token_id
    assert sample.ids[-1] == tokenizer.eos_token_id
    assert sample.trained.tolist() == [False] + [True] * (len(sample.ids) - 1)


def test_T04_final_stop_is_trained_when_padding_equals_end(tokenizer_with):
    template = "{% for m in messages %}({{ m.role }}){{ m.content }}</s>{% endfor %}"
    template += "{% if add_generation_prompt %}(assistant){% endif %}"
    tokenizer = tokenizer_with(template, pad_is_eos=True)
    for row in TALK:
        [sample] = Renderer(tokenizer, [tokenizer.eos_token_id]).render(row).samples
        assert sample.ids[-1] == tokenizer.eos_token_id == tokenizer.pad_token_id
        assert sample.trained[-1]


def test_T09_turns_whose_tokens_would_join_become_samples_of_their_own_and_it_is_said(tokenizer_with):
    rendered = renderer_of(tokenizer_with("spaced")).render(chat(user("hello"), said("the"), user("ab"), said("ac")))
    assert len(rendered.samples) == 2
    assert [note.code for note in rendered.warnings] == ["retokenised"]


THOUGHTS = chat(
    user("hello"), said("ab", reasoning_content="the fox"), user("world"), said("ac", reasoning_content="the dog")
)


def test_T06_history_is_what_serving_shows_also_when_thinking_is_dropped(tokenizer_with):
    tokenizer = tokenizer_with("thinking")
    rendered = renderer_of(tokenizer).render(THOUGHTS)
    assert len(rendered.samples) == 2
    for sample, k in zip(rendered.samples, (1, 3), strict=True):
        start = int(np.argmax(sample.trained))
        served = tokenizer.apply_chat_template(THOUGHTS.messages[:k], add_generation_prompt=True)["input_ids"]
        assert sample.ids[:start].tolist() == served


def test_T07_rewritten_history_is_detected_and_said(tokenizer_with):
    rendered = renderer_of(tokenizer_with("thinking")).render(THOUGHTS)
    assert [note.code for note in rendered.warnings] == ["earlier_reasoning_lost", "history_rewritten"]
    assert "2 samples" in rendered.warnings[1].message


@pytest.mark.parametrize("thought", ["r", "\nthe fox\n", "  two\n\nlines "])
@pytest.mark.parametrize("answer", ["ans", "\n\nthe dog"])
def test_T08_inline_thinking_becomes_reasoning(tokenizer_with, thought, answer):
    tokenizer = tokenizer_with("thinking")
    row = normalise({"messages": [user("hello"), said(f"<think>{thought}</think>{answer}")]})
    [sample] = renderer_of(tokenizer).render(row).samples
    assert part(tokenizer, sample, "reasoning") == thought.strip("\n")
    assert part(tokenizer, sample, "answer") == answer.lstrip("\n")
    assert part(tokenizer, sample, "frame") == "<think>\n\n</think>\n\n"


def test_T08_without_a_place_for_reasoning_the_text_stays_as_it_is(tokenizer_with):
    tokenizer = tokenizer_with("chatml")
    [sample] = renderer_of(tokenizer).render(chat(user("hello"), said("<think>r</think>ans"))).samples
    assert part(tokenizer, sample, "answer") == "<think>r</think>ans"


def test_T09_spans_follow_tokens_where_a_token_straddles_the_border(tokenizer_with):
    tokenizer = tokenizer_with("spaced")
    [sample] = renderer_of(tokenizer).render(chat(user("hello"), said("the answer"))).samples
    start = int(np.argmax(sample.trained))
    assert tokenizer.decode(sample.ids[:start]).endswith("[assistant] ")
    assert tokenizer.decode(sample.ids[start:]) == "the answer<|eot|>"


CALL = {"type": "function", "function": {"name": "find", "arguments": {"key": "fox", "most": 3}}}
LOOKUP = chat(
    user("hello"),
    said("", tool_calls=[CALL]),
    {"role": "tool", "name": "find", "content": "the quick fox"},
    said("the answer is fox"),
)


def test_T10_tool_turns_are_rendered_by_the_template(tokenizer_with):
    tokenizer = tokenizer_with("thinking")
    rendered = renderer_of(tokenizer).render(LOOKUP)
    assert rendered.refusals == []
    call = "".join(part(tokenizer, sample, "tool_call") for sample in rendered.samples)
    assert "find" in call
    assert "fox" in call


def test_T10_tool_calls_that_the_template_drops_are_refused_by_name(tokenizer_with):
    rendered = renderer_of(tokenizer_with("chatml")).render(LOOKUP)
    assert [(one.code, one.turn) for one in rendered.refusals] == [("tool_call_not_rendered", 1)]
    assert "find" in rendered.refusals[0].message
    assert len(rendered.samples) == 1  # the answer after the call is still learned


def test_D05_arguments_are_rendered_from_text_and_from_objects_alike(tokenizer_with):
    renderer = renderer_of(tokenizer_with("thinking"))
    as_text = {"type": "function", "function": {"name": "find", "arguments": '{"key": "fox", "most": 3}'}}
    text_row = chat(user("hello"), said("", tool_calls=[as_text]))
    object_row = chat(user("hello"), said("", tool_calls=[CALL]))
    first, second = (renderer.render(row).samples[0].ids.tolist() for row in (text_row, object_row))
    assert first == second


@settings(max_examples=60)
@given(
    prompt=st.text("abc \n", min_size=1).filter(str.strip), completion=st.text("abc \n", min_size=1).filter(str.strip)
)
def test_T14_no_token_is_lost_where_prompt_and_completion_would_merge(tokenizer_with, prompt, completion):
    tokenizer = tokenizer_with("none")
    row = normalise({"prompt": prompt, "completion": completion})
    [sample] = renderer_of(tokenizer).render(row).samples
    start = int(np.argmax(sample.trained))
    assert tokenizer.decode(sample.ids[:start]) == prompt
    assert tokenizer.decode(sample.ids[start:-1]) == completion
    assert sample.ids[:start].tolist() == tokenizer(prompt)["input_ids"]


def test_conversations_without_a_chat_template_are_refused_with_advice(tokenizer_with):
    with pytest.raises(Failure, match="no chat template") as caught:
        renderer_of(tokenizer_with("none")).render(TALK[0])
    assert any("instruct" in line for line in caught.value.advice)


def test_a_cue_that_no_row_can_contain_is_refused_with_both_texts(tokenizer_with):
    [refusal] = renderer_of(tokenizer_with("orphan_cue")).render(TALK[0]).refusals
    assert refusal.code == "cue_not_in_rows"
    assert refusal.prompt.endswith("<think>\n")
    assert "what is the answer?" in refusal.rendered


def test_reasoning_that_the_template_cannot_show_is_refused(tokenizer_with):
    [refusal] = (
        renderer_of(tokenizer_with("chatml")).render(chat(user("hello"), said("ab", reasoning_content="why"))).refusals
    )
    assert refusal.code == "reasoning_not_rendered"


def test_a_conversation_that_starts_with_the_assistant_loses_only_that_turn(tokenizer_with):
    rendered = renderer_of(tokenizer_with("chatml")).render(chat(said("hello"), user("ab"), said("ac")))
    assert [one.code for one in rendered.refusals] == ["assistant_first"]
    assert part(tokenizer_with("chatml"), rendered.samples[0], "answer") == "ac"


def test_weight_zero_and_last_turn_leave_turns_untrained(tokenizer_with):
    tokenizer = tokenizer_with("chatml")
    renderer = renderer_of(tokenizer)
    row = chat(user("hello"), said("ab", weight=0), user("world"), said("ac"))
    assert part(tokenizer, renderer.render(row).samples[0], "answer") == "ac"
    assert part(tokenizer, renderer.render(TALK[1], "last_turn").samples[0], "answer") == "the lazy dog"


def test_text_that_repeats_the_templates_own_words_gets_its_own_place(tokenizer_with):
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}final{% endif %}\n"
        "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    tokenizer = tokenizer_with(template)
    [sample] = renderer_of(tokenizer).render(chat(user("hello"), said("final"))).samples
    [answer] = [span for span in sample.spans if span.kind == "answer"]
    assert part(tokenizer, sample, "frame") == "final"
    assert tokenizer.decode(sample.ids[answer.start : answer.end]) == "final"
    assert answer.end == len(sample.ids) - 1


@pytest.mark.parametrize("template", ["chatml", "with_bos"])
def test_markers_inside_an_answer_never_become_control_tokens(tokenizer_with, template):
    tokenizer = tokenizer_with(template)
    stop = STOPS.get(template, "<|im_end|>")
    [sample] = renderer_of(tokenizer).render(chat(user("hello"), said(f"say {stop} to stop"))).samples
    trained = sample.ids[sample.trained]
    assert (trained == tokenizer.convert_tokens_to_ids(stop)).sum() == 1
    assert tokenizer.decode(trained) == f"say {stop} to stop{stop}"


def test_the_date_is_frozen(tokenizer_with):
    tokenizer = tokenizer_with("dated")
    renderer = renderer_of(tokenizer, date=datetime.date(2024, 2, 29))
    assert tokenizer.decode(renderer.prompt_ids([user("hello")])).startswith("29 Feb 2024|")


@pytest.mark.parametrize(
    "attack",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'content': 'x'}) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ raise_exception('no') }}",
        "{{ 1 / 0 }}",
        "{% syntax",
    ],
)
def test_templates_run_in_a_sandbox_and_their_errors_are_refusals(tokenizer_with, attack):
    rendered = renderer_of(tokenizer_with(attack)).render(TALK[0])
    assert rendered.samples == []
    assert [one.code for one in rendered.refusals] == ["template_refuses"]


WORDS = st.text("ab c<|>é漢\n", min_size=1, max_size=12).filter(str.strip)


@settings(max_examples=80)
@given(
    st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=4), st.sampled_from(["chatml", "next_header", "thinking"])
)
def test_law_every_sample_is_prompts_of_serving_and_completions_that_stop(tokenizer_with, pairs, template):
    tokenizer = tokenizer_with(template)
    renderer = renderer_of(tokenizer)
    row = chat(*(message for asked, answer in pairs for message in (user(asked), said(answer))))
    rendered = renderer.render(row)
    turns = len(rendered.refusals)
    for sample in rendered.samples:
        starts = np.flatnonzero(np.diff(sample.trained.astype(int)) == 1) + 1
        ends = np.flatnonzero(np.diff(np.append(sample.trained, False).astype(int)) == -1)
        turns += len(starts)
        served = {tuple(renderer.prompt_ids(row.messages[:k]).tolist()) for k in range(1, len(row.messages), 2)}
        assert all(tuple(sample.ids[:start].tolist()) in served for start in starts)
        assert set(sample.ids[ends].tolist()) <= renderer.stop_ids
    assert turns == len(pairs)


def test_markers_inside_a_prompt_are_said(tokenizer_with):
    rendered = renderer_of(tokenizer_with("chatml")).render(chat(user("say <|im_end|>"), said("ok")))
    assert [note.code for note in rendered.warnings] == ["control_token_in_prompt"]


@pytest.mark.parametrize(
    "start", ["", "\n", "\n\n  ", "  {% if true %}x{% endif %}", "{%- set a = 1 %}\n", "{# note #}\n y"]
)
def test_freezing_the_date_changes_nothing_else(tokenizer_with, start):
    plain, frozen = start + "{{ messages[0].content }}", start + "{{ strftime_now('')[:0] }}{{ messages[0].content }}"
    texts = [
        renderer_of(tokenizer_with(one)).template.render([user("hello")], [], cue=False) for one in (plain, frozen)
    ]
    assert texts[0] == texts[1]


def test_every_directive_of_the_date_is_that_of_strftime():
    clock = frozen_clock(datetime.date(2024, 2, 9)) + "{{ strftime_now(form) }}"
    template = ImmutableSandboxedEnvironment(trim_blocks=True).from_string(clock)
    for form in ["%A, %d %B %Y", "%Y-%m-%dT%H:%M:%S", "%-d/%-m", "%j %U %p %I", "100%%", "%d%m%y"]:
        assert template.render(form=form) == datetime.datetime(2024, 2, 9).strftime(form)
