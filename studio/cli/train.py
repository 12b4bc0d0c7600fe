"""`atelier train`: one spec, trained here and now by an engine process that this one starts, shows and stops."""

import re
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from engine.rundir import RunDir
from engine.spec import RunSpec
from studio.cli.console import out, say
from studio.cli.foreground import Lines, Screen, follow
from studio.cli.spec import read_spec
from studio.errors import Conflict, Invalid
from studio.settings import Settings
from studio.storage import FORMATS, MODEL_SLUG, Storage

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
DATASET_ID = re.compile(r"file-[0-9a-f]{16}")


def train(
    spec_file: Annotated[
        Path, typer.Argument(metavar="SPEC.yaml", help="A spec; see `atelier spec example`.", show_default=False)
    ],
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="a.b=c", help="Change a setting; may be repeated.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--out", help="Run folder; default: runs/<time>.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the run's events as JSON lines.")] = False,
) -> None:
    """Train a spec here and now, without a server. Ctrl-C saves; the same command with --out goes on from there."""
    spec = located(read_spec(spec_file, changes or []), spec_file.parent)
    run_dir = RunDir((folder or Path("runs") / datetime.now().strftime("%Y%m%d-%H%M%S")).absolute())
    prepare(run_dir, spec)
    if not as_json:
        say(f"Run folder: {run_dir.path}")
    code = follow(run_dir, Lines() if as_json else Screen(out, run_dir))
    raise typer.Exit(code)


def located(spec: RunSpec, beside: Path) -> RunSpec:
    """The spec with model and dataset as absolute paths (a Hub id stays): from here, the spec's folder or the studio's.

    Raises Invalid for a model or dataset that is in none of them.
    """
    storage = Storage(Settings().data_dir)
    data = spec.data.model_copy(update={"dataset": str(find_dataset(spec.data.dataset, beside, storage))})
    return spec.model_copy(update={"data": data, "model": find_model(spec.model, beside, storage)})


def find_model(name: str, beside: Path, storage: Storage) -> str:
    """A model folder as an absolute path, or a Hub id."""
    places = [Path(name).expanduser(), beside / name]
    if MODEL_SLUG.fullmatch(name):
        places.append(storage.model_dir(name))
    for place in places:
        if (place / "config.json").is_file():
            return str(place.absolute())
    if HUB_ID.fullmatch(name) and not Path(name).exists():
        return name
    raise Invalid(
        f"There is no model {name!r}: no folder with a config.json, and no model of the studio.",
        param="model",
        advice="Give a model folder, the id of a model in `atelier models list`, or a Hub id like owner/name.",
    )


def find_dataset(name: str, beside: Path, storage: Storage) -> Path:
    """A dataset file as an absolute path."""
    places = [Path(name).expanduser(), beside / name]
    if DATASET_ID.fullmatch(name):
        places += [storage.dataset_dir(name) / f"data.{format}" for format in FORMATS]
    for place in places:
        if place.is_file():
            return place.absolute()
    raise Invalid(
        f"There is no dataset {name!r}: no file here or beside the spec, and no dataset of the studio.",
        param="data.dataset",
        advice="Give a JSONL, JSON, CSV or Parquet file, or an id of `atelier data list`.",
    )


def prepare(run_dir: RunDir, spec: RunSpec) -> None:
    """Make the run folder, or check that the one that is there belongs to the same spec, so that it is resumed."""
    if run_dir.spec.exists():
        if run_dir.read_spec() != spec:
            raise Conflict(
                f"{run_dir.path} is the folder of a run with other settings.", advice="Choose another one with --out."
            )
        run_dir.stop.unlink(missing_ok=True)
        return
    try:
        if run_dir.path.exists() and any(run_dir.path.iterdir()):
            raise Conflict(f"{run_dir.path} is not empty.", advice="Choose another folder with --out.")
        run_dir.write_spec(spec)
    except OSError as error:
        raise Invalid(f"{run_dir.path} cannot be written: {error.strerror}.", param="out") from error
