"""A small byte-level tokenizer, and chat templates of several kinds written for these tests."""

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

MARKERS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|eot|>"]
CORPUS = ["the quick brown fox jumps over the lazy dog", "hello world, what is the answer?", "ab ac bc the answer is"]

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# thinking is shown in the last turn only, as most reasoning models do
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and m.reasoning_content and loop.last %}"
    "<think>\n{{ m.reasoning_content.strip('\\n') }}\n</think>\n\n{% endif %}"
    "{{ (m.content or '').lstrip('\\n') }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# a turn ends with the header of the next one
NEXT_HEADER = (
    "{% for m in messages %}{% if m.role == 'tool' %}<|observation|>{% else %}<|{{ m.role }}|>{% endif %}{{ '\\n' }}"
    "{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
WITH_BOS = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]\n{{ m.content | trim }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]\n{% endif %}"
)
# the cue ends in a space that the answer's first word would swallow
SPACED = WITH_BOS.replace("\n", " ")
# the prompt opens a thought that no row can contain
ORPHAN_CUE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
PARTS_ONLY = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
DATED = "{{ strftime_now('%d %b %Y') }}|" + CHATML
TEMPLATES = {
    "chatml": CHATML,
    "thinking": THINKING,
    "next_header": NEXT_HEADER,
    "with_bos": WITH_BOS,
    "spaced": SPACED,
    "orphan_cue": ORPHAN_CUE,
    "parts_only": PARTS_ONLY,
    "dated": DATED,
    "none": None,
}


def build(template: str, *, pad_is_eos: bool = False, adds_bos: bool = False) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=MARKERS, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(CORPUS * 3, trainer)
    if adds_bos:
        backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")
    if pad_is_eos:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.chat_template = TEMPLATES.get(template, template)
    tokenizer.name_or_path = template
    return tokenizer


@pytest.fixture(scope="session")
def tokenizer_with():
    """Builds tokenizers by the template's name or text; the same one twice is the same object."""
    made = {}

    def get(template, **options):
        key = (template, *sorted(options.items()))
        if key not in made:
            made[key] = build(template, **options)
        return made[key]

    return get
