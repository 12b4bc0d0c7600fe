"""Conversations of every shape that rendering has to get right."""

from engine.rows import Row


def user(text):
    return {"role": "user", "content": text}


def said(text, thought="", **more):
    return {"role": "assistant", "content": text, **({"reasoning_content": thought} if thought else {}), **more}


def system(text):
    return {"role": "system", "content": text}


def called(*calls, content="", thought=""):
    made = [
        {"type": "function", "id": f"call0000{at}", "function": {"name": name, "arguments": arguments}}
        for at, (name, arguments) in enumerate(calls)
    ]
    turn = {"role": "assistant", "tool_calls": made}
    return turn | ({"content": content} if content else {}) | ({"reasoning_content": thought} if thought else {})


def result(text, at=0, name="get_weather"):
    return {"role": "tool", "name": name, "tool_call_id": f"call0000{at}", "content": text}


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Tells the weather of a town.",
            "parameters": {
                "type": "object",
                "properties": {"town": {"type": "string", "description": "Its name."}},
                "required": ["town"],
            },
        },
    }
]
PARIS, ROME = ("get_weather", {"town": "Paris"}), ("get_weather", {"town": "Rome"})


def chat(*messages, tools=()):
    return Row(kind="chat", shape="messages", messages=list(messages), tools=list(tools), number=1)


def rows(stop):
    """Rows by name; `stop` is a stop token's text, to be said in one."""
    return talks() | tools() | oddities(stop)


def talks():
    return {
        "one turn": chat(user("What is the answer?"), said("The answer is a quick fox.")),
        "system": chat(
            system("You are a lazy dog."),
            user("Question one?"),
            said("First answer."),
            user("Question two?"),
            said("Second answer."),
            user("Question three?"),
            said("Third answer."),
        ),
        "one thought": chat(user("How many letters?"), said("Five letters.", "We have to look at the word.")),
        "thoughts": chat(
            user("Question one?"),
            said("First answer.", "I think of one."),
            user("Question two?"),
            said("Second answer.", "I think of two,\n\nthen of three."),
            user("Question three?"),
            said("Third answer.", "I think of four."),
        ),
        "a thought in the middle": chat(
            user("Question one?"),
            said("First answer."),
            user("Question two?"),
            said("Second answer.", "Now I think."),
            user("Question three?"),
            said("Third answer."),
        ),
    }


def tools():
    return {
        "tool": chat(
            user("Weather in Paris?"),
            called(PARIS),
            result("It is sunny, 21 degrees."),
            said("Sunny in Paris."),
            user("Thanks, and then?"),
            said("Then it rains."),
            tools=TOOLS,
        ),
        "tool with thoughts": chat(
            user("Weather in Paris?"),
            called(PARIS, thought="The user wants the weather."),
            result("It is sunny."),
            said("Sunny in Paris.", "The tool says sunny."),
            tools=TOOLS,
        ),
        "tool with words": chat(
            user("Weather in Paris?"),
            called(PARIS, content="Let me look."),
            result("It is sunny."),
            said("Sunny in Paris."),
            tools=TOOLS,
        ),
        "two calls": chat(
            user("Weather in Paris and Rome?"),
            called(PARIS, ROME),
            result("It is sunny."),
            result("It is foggy.", 1),
            said("Sunny in Paris, foggy in Rome."),
            tools=TOOLS,
        ),
    }


def oddities(stop):
    return {
        "white space": chat(
            user("  Two\n\nlines \n"), said("\n  one é ü 漢字 🙂 \n\n two  \n"), user("\tand?"), said("Yes.\n")
        ),
        "markers": chat(user(f"Say {stop} now"), said(f"I say {stop} and go on."), user("More?"), said("No more.")),
        "the template's words": chat(
            user("user"), said("assistant"), user("assistant"), said("user"), user("who?"), said("final")
        ),
        "a stray tag": chat(user("Tag?"), said("Write </think> to end it."), user("And?"), said("That is all.")),
        "assistant first": chat(said("Hello, I am here."), user("Question?"), said("An answer.")),
        "weights": chat(
            user("Question one?"),
            said("Not to be learned.", weight=0),
            user("Question two?"),
            said("To be learned."),
            user("Never answered."),
        ),
        "short": chat(user("2+2?"), said("4"), user("a?"), said("a")),
    }
