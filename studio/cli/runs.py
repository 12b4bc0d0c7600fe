"""`atelier runs`: see and steer the runs of this installation, with or without its server."""

import os
import shutil
import tempfile
from pathlib import Path
from typing import IO, Annotated

import typer

from studio import adapters, runs
from studio.api.objects import run_of
from studio.cli.console import say, say_json, table
from studio.cli.installation import AsJson, DataDir, open_studio
from studio.db.tables import Run, now
from studio.errors import Conflict, Invalid
from studio.queue import send_run

app = typer.Typer(no_args_is_help=True)
RunId = Annotated[str, typer.Argument(help="Id of the run, as `runs list` shows it.", show_default=False)]


@app.command("list")
def list_runs(
    status: Annotated[list[str] | None, typer.Option(help="Only this status; may be repeated.")] = None,
    text: Annotated[str, typer.Option(help="Only runs with this in their name.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=10_000)] = 50,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List runs, newest first."""
    for word in status or ():
        if word not in runs.STATUSES:
            raise Invalid(f"There is no status {word!r}; there are {', '.join(runs.STATUSES)}.", param="status")
    with open_studio(data_dir) as studio, studio.session() as session:
        found = runs.list_runs(session, status=status, text=text, limit=limit)
    if as_json:
        say_json([run_of(run).model_dump(mode="json") for run in found])
        return
    rows = [(run.id, run.status, run.name, run.model_id, progress(run), figure(run.loss), age(run)) for run in found]
    table(("ID", "STATUS", "NAME", "MODEL", "STEP", "LOSS", "AGE"), rows, "There are no runs yet.")


@app.command()
def show(run_id: RunId, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show one run: where it stands, and its settings."""
    with open_studio(data_dir) as studio, studio.session() as session:
        told = run_of(runs.get(session, run_id)).model_dump(mode="json")
    if as_json:
        say_json(told)
        return
    spec, error = told.pop("spec"), told.pop("error")
    for name, value in told.items():
        if value not in (None, "", {}):
            say(f"{name:<16} {value}")
    if error:
        say(f"{'error':<16} {error.get('message', '')}", style="red")
        for line in error.get("advice") or ():
            say(f"{'':<16} {line}")
    say("spec")
    say_json(spec)


@app.command()
def cancel(run_id: RunId, data_dir: DataDir = None) -> None:
    """End a run for good; a running one saves first."""
    with open_studio(data_dir) as studio, studio.session() as session:
        run = runs.cancel(session, run_id)
    say(f"{run.id} is cancelled." if run.status == "cancelled" else f"{run.id} saves and ends.")


@app.command()
def pause(run_id: RunId, data_dir: DataDir = None) -> None:
    """Let a run save and wait."""
    with open_studio(data_dir) as studio, studio.session() as session:
        run = runs.pause(session, run_id)
    say(f"{run.id} is paused." if run.status == "paused" else f"{run.id} saves and pauses.")


@app.command()
def resume(run_id: RunId, data_dir: DataDir = None) -> None:
    """Queue a paused or failed run again, from its last checkpoint."""
    with open_studio(data_dir) as studio:
        with studio.session() as session:
            run = runs.resume(session, run_id)
        with studio.session() as session:
            sent = send_run(studio.celery, session, runs.get(session, run.id))
    say(f"{run.id} is queued." if sent else f"{run.id} is queued; it starts when the queue's server is back.")


@app.command()
def download(
    run_id: RunId,
    out: Annotated[
        Path | None, typer.Option(help="File or folder to write to; default: here.", show_default=False)
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Write the adapter of a run that succeeded as a zip file."""
    with open_studio(data_dir) as studio:
        with studio.session() as session:
            run = runs.get(session, run_id)
        name = adapters.download_name(run)
        target = out / name if out is not None and out.is_dir() else out or Path(name)
        if target.exists() and not force:
            raise Conflict(
                f"{target} is there already.", advice="Choose another file with --out, or overwrite it: --force"
            )
        with adapters.zip_file(studio.storage, run) as source:
            write(source, target)
    say(f"Written to {target}.")


def write(source: IO[bytes], target: Path) -> None:
    """Copy an open file so that `target` is either whole or not there."""
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}-")
        growing = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                shutil.copyfileobj(source, file)
            growing.chmod(0o644)
            growing.replace(target)
        finally:
            growing.unlink(missing_ok=True)
    except OSError as error:
        raise Invalid(f"{target} cannot be written: {error.strerror}.", param="out") from error


def progress(run: Run) -> str:
    """Steps done of all."""
    return f"{run.step} of {run.total_steps}" if run.total_steps else ""


def figure(value: float | None) -> str:
    """A loss."""
    return "" if value is None else f"{value:.4f}"


def age(run: Run) -> str:
    """Time since the run was made, in one unit."""
    seconds = (now() - run.created_at).total_seconds()
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
