"""`atelier train`: one spec, trained here and now by an engine process that this one starts, shows and stops."""

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from engine.rundir import RunDir
from engine.spec import RunSpec
from studio.cli.console import out, say
from studio.cli.foreground import Lines, Screen, follow
from studio.cli.inputs import find_adapter, find_dataset, find_model
from studio.cli.spec import read_spec
from studio.errors import Conflict, Invalid
from studio.settings import Settings
from studio.storage import Storage


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
    before = find_adapter(spec.adapter_from, beside, storage) if spec.adapter_from else ""
    model = find_model(spec.model, beside, storage)
    return spec.model_copy(update={"data": data, "model": model, "adapter_from": before})


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
