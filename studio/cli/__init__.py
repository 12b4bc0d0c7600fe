"""The command line. Each command lies in a module of its own, and only the one that was asked for is imported."""

import importlib
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

import typer

from studio.cli.console import run_and_explain

HELP = "Fine-tune language models: from your rows to an adapter that loads everywhere."
CONTEXT = {"help_option_names": ["-h", "--help"]}


class Command(NamedTuple):
    """Where a command lies: `module:name`, a function or a typer app, and its one line of help."""

    target: str
    help: str


COMMANDS = {
    "up": Command("studio.cli.up:up", "Start the studio: web server and workers, until Ctrl-C."),
    "train": Command("studio.cli.train:train", "Train a spec here and now, without a server."),
    "chat": Command("studio.cli.chat:chat", "Talk to what a run has learned."),
    "plan": Command("studio.cli.plan:plan", "What a spec will need on each device, and how long it takes."),
    "runs": Command("studio.cli.runs:app", "List, show, stop, resume and download runs."),
    "models": Command("studio.cli.models:app", "List and add base models."),
    "data": Command("studio.cli.data:app", "List, add and check datasets."),
    "spec": Command("studio.cli.spec:app", "An example of a spec, and its schema."),
    "web": Command("studio.cli.web:web", "Start only the web server."),
    "worker": Command("studio.cli.worker:worker", "Start only one worker."),
    "version": Command("studio.cli.version:version", "Print the version."),
}


def build(arguments: Sequence[str], *, everything: bool = False) -> typer.Typer:
    """The app for these arguments: the command they name is complete, of the others only the line of help is known.

    So `--help` answers at once, and `runs list` does not wait for the web server's libraries.
    """
    app = typer.Typer(help=HELP, no_args_is_help=True, context_settings=CONTEXT, pretty_exceptions_enable=False)
    app.callback()(_root)
    wanted = arguments[0] if arguments else ""
    for name, command in COMMANDS.items():
        if not everything and name != wanted:
            app.command(name, help=command.help)(_not_loaded)
            continue
        module, _, attribute = command.target.partition(":")
        target = getattr(importlib.import_module(module), attribute)
        if isinstance(target, typer.Typer):
            app.add_typer(target, name=name, help=command.help, context_settings=CONTEXT)
        else:
            app.command(name, help=command.help)(target)
    return app


def _root() -> None:
    """Holds the commands."""


def _not_loaded() -> None:
    """Stands for a command that was not asked for."""


def main() -> None:
    """Entry point of `atelier`. Errors that were written for a person are printed as such, with exit status 1."""
    completing = "_ATELIER_COMPLETE" in os.environ
    sys.exit(run_and_explain(lambda: build(sys.argv[1:], everything=completing)(prog_name="atelier")))
