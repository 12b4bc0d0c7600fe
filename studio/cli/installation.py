"""The installation that a command works on: settings from the environment and --data-dir, database migrated."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from studio.context import Studio, make_studio
from studio.db.migrate import upgrade
from studio.errors import Invalid
from studio.settings import Settings

DataDir = Annotated[
    Path | None,
    typer.Option(help="Folder of database, datasets, models and runs (or ATELIER_DATA_DIR).", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, as the API tells it.")]


def read_settings(data_dir: Path | None = None) -> Settings:
    """Settings of the environment, with the folder given on the command line; Invalid names the variables at fault."""
    try:
        return Settings() if data_dir is None else Settings(data_dir=data_dir.expanduser().absolute())
    except ValidationError as error:
        faults = [f"ATELIER_{fault['loc'][0]!s}".upper() + f": {fault['msg']}" for fault in error.errors()]
        raise Invalid(f"The environment cannot be used. {'; '.join(faults)}.") from error


@contextmanager
def open_studio(data_dir: Path | None) -> Iterator[Studio]:
    """The studio of this installation; raises what makes it unusable as a StudioError."""
    settings = read_settings(data_dir)
    studio = make_studio(settings)
    try:
        upgrade(settings)
        yield studio
    finally:
        studio.close()
