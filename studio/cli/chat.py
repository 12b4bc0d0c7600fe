"""`atelier chat`: talk to the result of a run, in the terminal, through an engine process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from engine.rundir import RunDir
from studio import runs
from studio.cli.console import err, out, plain, say
from studio.cli.installation import DataDir, open_studio
from studio.db.tables import Model
from studio.errors import Invalid
from studio.storage import RUN_ID

ENGINE = (sys.executable, "-P", "-m", "engine")
HELP = "Enter sends. /new starts over, /quit or Ctrl-D ends."
Message = dict[str, str]


@dataclass(frozen=True)
class Result:
    """Where a run's result lies, and the base model it belongs to."""

    folder: Path
    base: str


def chat(
    run: Annotated[str, typer.Argument(help="Id of a finished run, or a run folder.", show_default=False)],
    level: Annotated[
        str | None,
        typer.Option(
            help="Reasoning level, such as low or enable_thinking=False; default: as trained.", show_default=False
        ),
    ] = None,
    system: Annotated[str, typer.Option(help="A system prompt.")] = "",
    temperature: Annotated[float, typer.Option(min=0.0, max=5.0, help="0 takes the likeliest token always.")] = 0.0,
    max_new_tokens: Annotated[int, typer.Option(min=1, max=65_536, help="Tokens after which an answer is cut.")] = 512,
    data_dir: DataDir = None,
) -> None:
    """Talk to what a run has learned. Questions come from the keyboard, or one a line from a pipe."""
    found = located(run, data_dir)
    options = ["--base", found.base, "--temperature", str(temperature), "--max-new-tokens", str(max_new_tokens)]
    options += [] if level is None else ["--level", level]
    with engine([*ENGINE, "chat", str(found.folder), *options]) as process:
        told = heard(process)
        if "error" in told:
            raise Invalid(plain(told["error"]["message"]), advice=" ".join(told["error"]["advice"]))
        if out.is_terminal:
            say(f"{HELP} Level: {told['level']}." if told.get("level") else HELP, style="dim")
        converse(process, [{"role": "system", "content": system}] if system else [])


def located(run: str, data_dir: Path | None) -> Result:
    """The result of a run of the studio, or of one in a folder. Raises Invalid when there is none."""
    if RUN_ID.fullmatch(run):
        with open_studio(data_dir) as studio, studio.session() as session:
            found = runs.get(session, run)
            model = session.get(Model, found.model_id)
            run_dir, base = studio.storage.run_dir(run), model.path if model is not None else found.model_id
    else:
        run_dir = RunDir(Path(run).expanduser().absolute())
        base = run_dir.read_spec().model if run_dir.spec.is_file() else ""
    folder = next((one for one in (run_dir.adapter, run_dir.model) if one.is_dir()), None)
    if folder is None or not base:
        raise Invalid(f"{run!r} has no result to talk to.", advice="Choose a finished run: `atelier runs list`.")
    return Result(folder, base)


def converse(process: "subprocess.Popen[str]", first: list[Message]) -> None:
    """Question and answer until there are no more questions."""
    messages = list(first)
    while (asked := question()) is not None:
        if asked == "/new":
            messages = list(first)
        elif asked:
            messages.append({"role": "user", "content": asked})
            answer = reply(process, messages)
            if answer is None:
                messages.pop()
            else:
                messages.append({"role": "assistant", "content": answer})


def question() -> str | None:
    """The next question; None at the end."""
    try:
        asked = out.input("\n> ") if out.is_terminal else input()
    except (EOFError, KeyboardInterrupt):
        return None
    asked = asked.strip()
    return None if asked == "/quit" else asked


def reply(process: "subprocess.Popen[str]", messages: list[Message]) -> str | None:
    """Send the conversation and print the answer as it comes; None when there is none, with the reason printed."""
    if process.stdin is None:
        raise Invalid("The engine does not listen.")
    process.stdin.write(json.dumps({"messages": messages}) + "\n")
    process.stdin.flush()
    answer = ""
    while "done" not in (told := heard(process)):
        if "error" in told:
            err.print(plain(told["error"]["message"]), style="red", soft_wrap=True)
            return None
        answer += told["piece"]
        out.print(plain(told["piece"]), end="", soft_wrap=True)
    out.print(" [cut off]" if told["truncated"] else "")
    return answer


def heard(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """The engine's next line. Raises Invalid when it has ended."""
    line = process.stdout.readline() if process.stdout is not None else ""
    if not line:
        raise Invalid(f"The engine ended with exit code {process.wait()}.", advice="Its last words are above.")
    found: dict[str, Any] = json.loads(line)
    return found


@contextmanager
def engine(argv: list[str]) -> "Iterator[subprocess.Popen[str]]":
    """The engine process; it ends when its input does, and with the block at the latest."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ATELIER_")}
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()
