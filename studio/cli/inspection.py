"""A dataset as a model would learn it, asked of an engine process and shown on the terminal."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from rich.text import Text

from studio.cli.console import out, plain, say, table
from studio.cli.foreground import ENGINE
from studio.cli.inputs import find_model
from studio.cli.installation import read_settings
from studio.errors import Invalid, StudioError
from studio.storage import Storage

MOST_SHOWN = 50  # problems listed on the terminal; --json has more
STYLES = {
    "cue": "dim underline",
    "stop": "bold magenta",
    "frame": "cyan",
    "reasoning": "bold cyan",
    "tool_call": "bold yellow",
}
PROMPT, ANSWER = "dim", "bold green"


def model_folder(name: str, data_dir: Path | None) -> str:
    """The folder of a model that is on this machine. Raises Invalid for one that is not."""
    found = find_model(name, Path.cwd(), Storage(read_settings(data_dir).data_dir))
    if not Path(found).is_dir():
        raise Invalid(f"The model {name!r} is not on this machine.", advice="Add it first: atelier models add")
    return found


def ask_engine(verb: str, *arguments: str) -> tuple[dict[str, Any], int]:
    """The engine's answer and its exit status. Raises StudioError for an answer that is an error."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ATELIER_")}
    done = subprocess.run([*ENGINE, verb, *arguments], capture_output=True, text=True, env=environment, check=False)
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        last = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        raise StudioError(f"The engine could not read the data: {last[0]}") from None
    if error := answer.get("error"):
        raise Invalid(error["message"], code=error["code"], advice=" ".join(error["advice"]))
    return answer, done.returncode


def say_report(name: str, report: dict[str, Any]) -> None:
    """A whole file in some lines, and its problems as a table."""
    say(f"{name}: {report['kind'] or 'no kind'}, {report['usable']:,} of {report['rows']:,} rows usable")
    if report.get("total_tokens"):
        lengths, share = report["lengths"], report["trained_tokens"] / report["total_tokens"]
        say(f"{share:.0%} of {report['total_tokens']:,} tokens are trained")
        say(f"tokens a row: half up to {lengths['p50']:,}, 99 % up to {lengths['p99']:,}, longest {lengths['max']:,}")
        longer = [f"{report[what]:,} {what}" for what in ("truncated", "dropped") if report[what]]
        say(f"maximum length {report['max_length']:,}: {', '.join(longer) or 'every row is whole'}")
    if report.get("nothing_to_learn"):
        say(
            f"{report['nothing_to_learn']:,} rows leave nothing to learn: their prompt fills the length", style="yellow"
        )
    if len(report.get("levels", [])) > 1:
        say(f"reasoning levels: {', '.join(level['name'] for level in report['levels'])}")
    for warning in report.get("warnings", []):
        say(f"{warning['rows']:,} rows: {warning['message']}", style="yellow")
    found = report["problems"][:MOST_SHOWN]
    if found:
        rows = [(one["row"], one["line"], one["message"], one["fix"]) for one in found]
        table(("ROW", "LINE", "PROBLEM", "FIX"), rows, "")
    if (more := sum(report["problem_counts"].values()) - len(found)) > 0:
        say(f"and {more:,} more")


def say_row(shown: dict[str, Any]) -> None:
    """A row's samples as text in which every token has the style of its kind."""
    for number, sample in enumerate(shown["samples"], 1):
        trained = sum(token["trained"] for token in sample["tokens"])
        what = sample["side"] or f"sample {number}"
        say(f"row {shown['row']}, {what}: {trained:,} of {len(sample['tokens']):,} tokens are trained")
        line = Text()
        for token in sample["tokens"]:
            line.append(plain(token["text"]), style=STYLES.get(token["kind"], ANSWER if token["trained"] else PROMPT))
        out.print(line)
    for one in [*shown["warnings"], *shown["refusals"]]:
        say(one["message"], style="yellow")
