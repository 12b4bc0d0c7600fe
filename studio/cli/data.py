"""`atelier data`: datasets, and what is wrong with a file, row by row."""

from pathlib import Path
from typing import Annotated

import typer

from engine.rows.check import check as check_rows
from engine.rows.files import EXTENSIONS, sniff
from studio import datasets
from studio.api.objects import file_of
from studio.cli.console import say, say_json, table
from studio.cli.installation import AsJson, DataDir, open_studio
from studio.errors import Invalid
from studio.queue import send_prepare

app = typer.Typer(no_args_is_help=True)
MOST_SHOWN = 50  # problems listed on the terminal; --json has more


@app.command("list")
def list_data(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List datasets, newest first."""
    with open_studio(data_dir) as studio, studio.session() as session:
        found = datasets.list_datasets(session)
    if as_json:
        say_json([file_of(dataset).model_dump(mode="json") for dataset in found])
        return
    rows = [(one.id, one.status, one.name, one.kind, f"{one.usable:,} of {one.rows:,}", one.error) for one in found]
    table(
        ("ID", "STATUS", "NAME", "KIND", "USABLE ROWS", ""),
        rows,
        "There are no datasets yet. Add one: atelier data add",
    )


@app.command()
def add(
    source: Annotated[
        str, typer.Argument(help="A JSONL, JSON, CSV or Parquet file, or the id of a dataset on the Hub.")
    ],
    name: Annotated[str, typer.Option(help="A label; default: the file's name.")] = "",
    subset: Annotated[str, typer.Option(help="Of a Hub dataset.")] = "",
    split: Annotated[str, typer.Option(help="Of a Hub dataset.")] = "train",
    data_dir: DataDir = None,
) -> None:
    """Add a file, or fetch a dataset from the Hub; a worker then reads every row."""
    path = Path(source).expanduser()
    looks_like_file = path.is_file() or source.startswith(("/", ".", "~")) or is_file_name(path)
    if looks_like_file and not path.is_file():
        raise Invalid(f"There is no file {source!r}.", param="source")
    with open_studio(data_dir) as studio:
        with studio.session() as session:
            if looks_like_file:
                dataset = datasets.add(
                    session, studio.storage, studio.settings, path=path, filename=path.name, name=name
                )
            else:
                dataset = datasets.add_from_hub(session, source, subset, split)
        send_prepare(studio.celery, "check_dataset" if looks_like_file else "fetch_dataset", dataset.id)
    say(dataset.id)


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="A JSONL, JSON, CSV or Parquet file.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole report as JSON.")] = False,
) -> None:
    """Read every row of a file and tell what is wrong with which; nothing is stored.

    Exit status 1 when no row can be used.
    """
    report = check_rows(file, sniff(file, file.name))
    if as_json:
        say_json(report.model_dump(mode="json"))
    else:
        say(f"{file.name}: {report.kind or 'no kind'}, {report.usable:,} of {report.rows:,} rows usable")
        found = report.problems[:MOST_SHOWN]
        if found:
            table(("ROW", "LINE", "PROBLEM", "FIX"), [(one.row, one.line, one.message, one.fix) for one in found], "")
        if (more := sum(report.problem_counts.values()) - len(found)) > 0:
            say(f"and {more:,} more")
    raise typer.Exit(0 if report.usable else 1)


def is_file_name(path: Path) -> bool:
    """Whether a text that names no file here was still meant as one, and not as a dataset of the Hub."""
    return path.suffix.lower() in EXTENSIONS or (path.suffix != "" and path.name == str(path))
