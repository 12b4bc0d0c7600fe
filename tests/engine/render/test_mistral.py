"""Mistral's own encoder as the judge of ids: prompts and whole conversations, where its package is installed.

Both sides read one file in Tekken's format, cut from the one in the package so that it is built in a moment. The
templates are written here, after the vendor's format.
"""

import json
from pathlib import Path

import pytest
from transformers.integrations.mistral import convert_tekken_tokenizer

from engine.render.renderer import Renderer
from tests.engine.render.conversations import PARIS, TOOLS, called, chat, result, said, system, user

mistral_common = pytest.importorskip("mistral_common")
from mistral_common.protocol.instruct.request import ChatCompletionRequest  # noqa: E402
from mistral_common.protocol.instruct.validator import ValidationMode  # noqa: E402
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer  # noqa: E402
from mistral_common.tokens.tokenizers.tekken import Tekkenizer  # noqa: E402

FINETUNING = ValidationMode.finetuning
VOCABULARY, SPECIAL = 3_000, 1_000
ANSWERS = (
    "{% elif m.role == 'assistant' %}{% if m.tool_calls %}[TOOL_CALLS]["
    "{% for c in m.tool_calls %}{{ ', ' if loop.index0 }}"
    '{"name": {{ c.function.name | tojson }}, "arguments": {{ c.function.arguments | tojson }}, "id": "{{ c.id }}"}'
    "{% endfor %}]{% else %}{{ m.content }}{% endif %}{{ eos_token }}"
)
V3 = (
    "{{ bos_token }}{% set s = messages[0].content if messages[0].role == 'system' else '' %}"
    "{% set ns = namespace(at=-1) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.at = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% if m.role == 'user' %}"
    "[INST]{{ s + '\\n\\n' if s and loop.index0 == ns.at }}{{ m.content }}[/INST]" + ANSWERS + "{% endif %}{% endfor %}"
)
V7 = (
    "{{ bos_token }}{% set ns = namespace(at=-1) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.at = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% if m.role == 'system' %}[SYSTEM_PROMPT]{{ m.content }}[/SYSTEM_PROMPT]"
    "{% elif m.role == 'user' %}{% if tools and loop.index0 == ns.at %}"
    "[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}[INST]{{ m.content }}[/INST]"
    "{% elif m.role == 'tool' %}[TOOL_RESULTS]{{ m.tool_call_id }}[TOOL_CONTENT]{{ m.content }}[/TOOL_RESULTS]"
    + ANSWERS
    + "{% endif %}{% endfor %}"
)
TALKS = {
    "one turn": [user("What is the answer?"), said("The answer is 42.")],
    "turns": [
        user("Question one?"),
        said("First."),
        user("Et l'été, 漢字?"),
        said("Oui \n\n- deux\t!"),
        user("And?"),
        said("No."),
    ],
    "system": [system("Be brief."), user("Question one?"), said("First."), user("Question two?"), said("Second.")],
    "spaces": [user("  two  spaces "), said("1234567 and  more"), user("\nnew line"), said("x")],
}


@pytest.fixture(scope="module")
def sides(tmp_path_factory):
    """(their encoder of prompts, their encoder of whole conversations, our renderer) by version."""
    source = Path(mistral_common.__file__).parent / "data" / "tekken_240911.json"
    kept = json.loads(source.read_text(encoding="utf-8"))
    kept["vocab"] = kept["vocab"][:VOCABULARY]
    kept["special_tokens"] = [
        {"rank": one["rank"], "token_str": getattr(one["token_str"], "value", one["token_str"]), "is_control": True}
        for one in Tekkenizer.DEPRECATED_SPECIAL_TOKENS
    ]
    kept.pop("image", None)
    made = {}
    for version, template in (("v3", V3), ("v7", V7)):
        sizes = {"default_vocab_size": VOCABULARY + SPECIAL, "num_vocab_tokens": VOCABULARY, "version": version}
        kept["config"] |= {**sizes, "default_num_special_tokens": SPECIAL}
        path = tmp_path_factory.mktemp(version) / "tekken.json"
        path.write_text(json.dumps(kept), encoding="utf-8")
        theirs = [MistralTokenizer.from_file(str(path), mode=mode) for mode in (ValidationMode.test, FINETUNING)]
        tokenizer = convert_tekken_tokenizer(str(path), chat_template=template)
        made[version] = (*theirs, Renderer(tokenizer, [tokenizer.eos_token_id]))
    return made


def encoded(theirs, messages, tools=()):
    """Their ids of a conversation."""
    given = {"messages": messages, "tools": list(tools) or None}
    return theirs.encode_chat_completion(ChatCompletionRequest.from_openai(**given)).tokens


@pytest.mark.parametrize("version", ["v3", "v7"])
@pytest.mark.parametrize("talk", TALKS)
def test_prompts_and_answers_have_the_ids_of_the_vendors_own_encoder(sides, version, talk):
    serving, training, renderer = sides[version]
    messages = TALKS[talk]
    rendered = renderer.render(chat(*messages))
    assert not rendered.refusals
    learned = {}
    for sample in rendered.samples:
        spans = {span.turn: span.end for span in sample.spans if span.kind == "stop"}
        learned |= {turn: sample.ids[:end].tolist() for turn, end in spans.items()}
    for k in (at for at, one in enumerate(messages) if one["role"] == "assistant"):
        prompt = encoded(serving, messages[:k])
        assert renderer.prompt_ids(messages[:k]).tolist() == prompt
        assert learned[k][: len(prompt)] == prompt
    assert learned[len(messages) - 1] == encoded(training, messages)


def test_tools_calls_and_results_have_the_ids_of_the_vendors_own_encoder(sides):
    serving, _, renderer = sides["v7"]
    call = called(PARIS)
    call["tool_calls"][0]["id"] = "abcdefghi"
    talk = [user("Weather in Paris?"), call, {**result("Sunny."), "tool_call_id": "abcdefghi"}, said("Sunny in Paris.")]
    for k in (1, 3):
        assert renderer.prompt_ids(talk[:k], TOOLS).tolist() == encoded(serving, talk[:k], TOOLS)
    rendered = renderer.render(chat(*talk, tools=TOOLS))
    assert [one.message for one in rendered.refusals] == []
