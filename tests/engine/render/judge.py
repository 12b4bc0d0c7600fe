"""What serving sends, worked out without the renderer: plain jinja, one rendering, one tokenisation."""

import datetime
import itertools
import json

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(Extension):
    tags = frozenset({"generation"})

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_same"), [], [], body).set_lineno(line)

    def _same(self, caller):
        return caller()


def refuse(message):
    raise TemplateError(message)


class Judge:
    """Knows a template, a tokenizer and a day, and nothing of how rows are trained."""

    def __init__(self, tokenizer, date):
        self.tokenizer = tokenizer
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = lambda x, ensure_ascii=False, indent=None, separators=None, sort_keys=False: (
            json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
        )
        moment = datetime.datetime.combine(date, datetime.time())
        environment.globals |= {"raise_exception": refuse, "strftime_now": moment.strftime}
        self.template = environment.from_string(tokenizer.chat_template)

    def texts(self, messages, tools, level, *, cue=True):
        """What serving may send for `messages`: a text for every way in which a client may write them."""
        found = []
        calls = (False, True) if any("tool_calls" in one for one in messages) else (False,)
        for form in itertools.product((False, True), calls, calls):
            try:
                text = self.template.render(
                    messages=[written(one, *form) for one in messages],
                    tools=tools or None,
                    documents=None,
                    add_generation_prompt=cue,
                    **self.tokenizer.special_tokens_map,
                    **level,
                )
            except (TemplateError, TypeError, ValueError, AttributeError, KeyError, IndexError):
                continue
            if text not in found:
                found.append(text)
                yield text

    def ids(self, text):
        return self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]


def written(message, in_parts, arguments_as_text, with_content):
    """One message as a client may send it."""
    one = {key: value for key, value in message.items() if key != "weight"}
    thought = one.get("reasoning_content")
    if thought:  # a server gives it to templates under both names
        one |= {"reasoning_content": thought, "thinking": thought}
    if "tool_calls" in one:
        one["tool_calls"] = [call_as(call, arguments_as_text) for call in one["tool_calls"]]
        if with_content:
            one.setdefault("content", "")
        elif not one.get("content"):
            one.pop("content", None)
    if in_parts and isinstance(one.get("content"), str):
        one["content"] = [{"type": "text", "text": one["content"]}]
    return one


def call_as(call, text):
    arguments = call["function"]["arguments"]
    if text and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    if not text and isinstance(arguments, str):
        arguments = json.loads(arguments)
    return {**call, "function": {**call["function"], "arguments": arguments}}


def shows(text, string):
    """Whether a text shows a string, give or take white space at its ends and JSON's escapes."""
    forms = {string.strip(), json.dumps(string)[1:-1], json.dumps(string, ensure_ascii=False)[1:-1]}
    return any(form in text for form in forms)


def arguments_of(call):
    arguments = call["function"]["arguments"]
    values = json.loads(arguments) if isinstance(arguments, str) else arguments
    return [value for value in values.values() if isinstance(value, str)]


def strings(message):
    """(what it is, string) of all text of a message."""
    role = message["role"]
    kinds = {"system": "system_text", "user": "user_text", "tool": "tool_result", "assistant": "earlier_answer"}
    found = [(kinds[role], message.get("content") or ""), ("earlier_reasoning", message.get("reasoning_content") or "")]
    for call in message.get("tool_calls") or []:
        found += [("earlier_call", word) for word in [call["function"]["name"], *arguments_of(call)]]
    return [(kind, text) for kind, text in found if text.strip()]


def runs(sample):
    """(start, end) of each stretch of trained tokens."""
    edges, inside = [], False
    for at, trained in enumerate([*sample.trained.tolist(), False]):
        if trained != inside:
            edges.append(at)
            inside = trained
    return list(zip(edges[::2], edges[1::2], strict=True))


def broken_laws(judge, row, rendered, stops, begin):
    """Sentences, one for each way in which the samples of a row break a law; empty when all hold."""
    found = []
    messages, notes = row.messages, {note.code for note in rendered.warnings}
    learned = []
    for sample in rendered.samples:
        spans = {at: span for span in sample.spans for at in range(span.start, span.end)}
        found += ["spans do not cover the sample"] * (sorted(spans) != list(range(len(sample.ids))))
        found += [
            f"L3: a {span.kind} token is trained"
            for span in sample.spans
            if span.kind in ("prompt", "cue") and sample.trained[span.start : span.end].any()
        ]
        for start, end in runs(sample):
            k = spans[start].turn
            learned.append(k)
            before, after = sample.ids[:start].tolist(), sample.ids[start:end].tolist()
            text, said = judge.tokenizer.decode(before), judge.tokenizer.decode(after)
            served = judge.texts(messages[:k], row.tools, sample.level)
            sent = next((one for one in served if judge.ids(one) == before), None)
            if sent is None:
                found.append(f"L1: turn {k}: serving would not send {text[-80:]!r}")
            if after[-1] not in stops or stops & set(after[:-1]):
                found.append(f"L2: turn {k} ends {said[-30:]!r}")
            found += [
                f"{'L4' if kind == 'earlier_reasoning' else 'L6'}: turn {k} lacks its {kind} {own!r}: {said!r}"
                for kind, own in strings(messages[k])
                if not shows(said, own)
            ]
            expected = [begin] * (judge.tokenizer.bos_token in (sent or "")) + [one for one in before if one != begin]
            if begin is not None and before != expected and "many_bos" not in notes:
                found.append(f"L5: turn {k}: {before.count(begin)} BOS")
            for one in messages[:k]:
                found += [
                    f"L6: turn {k}: {kind} {earlier!r} is not shown and nothing is said"
                    for kind, earlier in strings(one)
                    if not shows(text, earlier) and f"{kind}_lost" not in notes
                ]
    refused = [one.turn for one in rendered.refusals]
    wanted = [k for k, one in enumerate(messages) if one["role"] == "assistant" and one.get("weight", 1)]
    if sorted(learned + refused) != wanted:
        found.append(f"turns {wanted} became {learned} and {refused}")
    found += [f"a refusal says nothing: {one}" for one in rendered.refusals if not one.code or len(one.message) < 20]
    return found
