"""Chat templates with one bad habit each."""

HEAD = "{% for m in messages %}<|{{ m.role }}|>"
CUE = "{% if add_generation_prompt %}<|assistant|>{% endif %}"
THOUGHT = "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
PLAIN = HEAD + THOUGHT + "{{ m.content }}<|end|>{% endfor %}" + CUE
STOP = "<|end|>"
STOPS = {
    "the stop belongs to the next turn": ["<|user|>", "<|tool|>"],
    "never stops": ["<|end|>"],
}

NASTY = {
    "the stop belongs to the next turn": HEAD + THOUGHT + "{{ m.content }}{% endfor %}" + CUE,
    "no system role": "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + PLAIN,
    "the system text is dropped": PLAIN.replace("in messages %}", "in messages if m.role != 'system' %}"),
    "trims": HEAD + "\n{{ m.content | trim }}\n<|end|>\n{% endfor %}" + CUE + "{{ '\\n' if add_generation_prompt }}",
    "tells the date": "{{ strftime_now('%A %d %B %Y, %-d %j') }}" + PLAIN,
    "shows the last two messages": PLAIN.replace("in messages", "in messages[-2:]"),
    "counts the messages": "{{ messages | length }} messages" + PLAIN,
    "numbers backwards": HEAD + "{{ loop.revindex }}{{ m.content }}<|end|>{% endfor %}" + CUE,
    "drops tools": PLAIN,
    "renders nothing": "{# nothing #}",
    "renders nothing but the cue": CUE,
    "renders nothing but answers": "{% for m in messages if m.role == 'assistant' %}{{ m.content }}<|end|>{% endfor %}",
    "shouts": HEAD + "{{ m.content | upper }}<|end|>{% endfor %}" + CUE,
    "says everything twice": HEAD + "{{ m.content }} {{ m.content }}<|end|>{% endfor %}" + CUE,
    "stops in the middle": HEAD + THOUGHT + "<|end|>{{ m.content }}<|end|>{% endfor %}" + CUE,
    "another stop in history": HEAD
    + THOUGHT
    + "{{ m.content }}{{ '<|end|>' if loop.last or m.role != 'assistant' else '<|past|>' }}{% endfor %}"
    + CUE,
    "never stops": HEAD + "{{ m.content }}{% endfor %}",
    "thinks in the last turn": PLAIN.replace("if m.reasoning_content", "if m.reasoning_content and loop.last"),
    "an empty thought for all": PLAIN.replace("if m.reasoning_content", "if m.role == 'assistant'"),
    "opens a thought": PLAIN.replace("<|assistant|>{% endif %}", "<|assistant|><think>{% endif %}"),
    "begins": "{{ bos_token }}" + PLAIN,
    "begins twice": "{{ bos_token }}{{ bos_token }}" + PLAIN,
    "more after the end": PLAIN + "{% if not add_generation_prompt %}<|end|>goodbye{% endif %}",
    "the answer first": "{% for m in messages | reverse %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}" + CUE,
    "its own words": HEAD + "assistant final user a {{ m.content }}<|end|>{% endfor %}" + CUE,
    "a level that hides answers": "{% if effort_level == 'high' %}{{ 1 / 0 }}{% endif %}" + PLAIN,
}
