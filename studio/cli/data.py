"""`atelier data`: datasets, and what is wrong with a file, row by row."""

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from engine.rows.declared import columns_of
from engine.rows.files import EXTENSIONS
from engine.spec import RunSpec
from studio import datasets
from studio.api.objects import file_of
from studio.cli.console import say, say_json, table
from studio.cli.inspection import ask_engine, model_folder, say_report, say_row
from studio.cli.installation import AsJson, DataDir, open_studio
from studio.cli.spec import apply
from studio.errors import Invalid
from studio.queue import send_prepare

app = typer.Typer(no_args_is_help=True)
File = Annotated[Path, typer.Argument(help="A JSONL, JSON, CSV or Parquet file.", show_default=False)]
Level = Annotated[
    str, typer.Option(help="Reasoning level, such as low or enable_thinking=False; empty: as in the data.")
]


Map = Annotated[
    list[str] | None,
    typer.Option("--map", metavar="HOLDS=COLUMN", help="Which column holds what: prompt=question. May be repeated."),
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="a.b=c", help="Read it as a run with this setting; may be repeated."),
]


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
def tasks(
    task: Annotated[str, typer.Argument(help="A task of reasoning-gym, such as chain_sum.", show_default=False)],
    rows: Annotated[int, typer.Option(min=1, max=100_000, help="Different questions.")] = 500,
    seed: Annotated[int, typer.Option(min=0, help="Other seeds make other questions.")] = 0,
    data_dir: DataDir = None,
) -> None:
    """Make a dataset of procedural tasks whose answers can be checked: for GRPO with the reward reasoning_task."""
    with tempfile.TemporaryDirectory(prefix="atelier-") as scratch:
        path = Path(scratch) / f"{task if task.isidentifier() else 'tasks'}.jsonl"
        made, _ = ask_engine("make-tasks", task, str(path), "--rows", str(rows), "--seed", str(seed))
        with open_studio(data_dir) as studio:
            with studio.session() as session:
                dataset = datasets.add(
                    session, studio.storage, studio.settings, path=path, filename=path.name, source="tasks"
                )
                dataset.origin = {"task": task, "rows": rows, "seed": seed}
            send_prepare(studio.celery, "check_dataset", dataset.id)
    say(f"{dataset.id}  {made['rows']:,} rows")


@app.command()
def check(
    file: File,
    model: Annotated[str, typer.Option(help="Also as this model would learn it: a folder or a model's id.")] = "",
    level: Level = "",
    columns: Map = None,
    changes: Changes = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole report as JSON.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Read every row of a file and tell what is wrong with which; nothing is stored.

    Exit status 1 when too few of the rows can be used.
    """
    options = ["--model", model_folder(model, data_dir)] if model else []
    report, status = ask_engine("check-data", str(file), *options, "--spec", as_read(level, columns, changes))
    if as_json:
        say_json(report)
    else:
        say_report(file.name, report)
    raise typer.Exit(status)


@app.command()
def show(
    file: File,
    model: Annotated[str, typer.Option(help="A model folder, or a model's id.", show_default=False)],
    row: Annotated[int, typer.Option(min=1, help="Number of the row.")] = 1,
    level: Level = "",
    changes: Changes = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print every token as JSON.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Show a row as the tokens that the model would see; what is trained stands out."""
    options = ("--model", model_folder(model, data_dir), "--row", str(row))
    shown, status = ask_engine("show-data", str(file), *options, "--spec", as_read(level, None, changes))
    if as_json:
        say_json(shown)
    else:
        say_row(shown)
    raise typer.Exit(status)


def as_read(level: str, columns: list[str] | None, changes: list[str] | None) -> str:
    """The settings of the run that a file is read for, as JSON. Raises as `read_spec` does."""
    values: dict[str, Any] = {"data": {"dataset": "", "reasoning_level": level, "columns": columns_of(columns or [])}}
    for change in changes or []:
        apply(values, change)
    spec = RunSpec.model_validate({"model": "", **values})
    return spec.model_dump_json(include={"data", "method"})


def is_file_name(path: Path) -> bool:
    """Whether a text that names no file here was still meant as one, and not as a dataset of the Hub."""
    return path.suffix.lower() in EXTENSIONS or (path.suffix != "" and path.name == str(path))
