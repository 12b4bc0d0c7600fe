"""`atelier models`: the base models that runs can start from."""

from pathlib import Path
from typing import Annotated

import typer

from studio import models
from studio.api.objects import model_of
from studio.cli.console import say, say_json, table
from studio.cli.installation import AsJson, DataDir, open_studio
from studio.db.tables import Model
from studio.queue import send_prepare

app = typer.Typer(no_args_is_help=True)


@app.command("list")
def list_models(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the models of the data folder, of the Hub's cache, and those that were added."""
    with open_studio(data_dir) as studio:
        with studio.session() as session:
            new = models.scan(session, studio.storage)
            found = models.list_models(session)
        for model in new:
            send_prepare(studio.celery, "check_model", model.id)
    if as_json:
        say_json([model_of(model).model_dump(mode="json") for model in found])
        return
    rows = [(model.id, model.status, *figures(model), model.error) for model in found]
    table(
        ("ID", "STATUS", "PARAMETERS", "CONTEXT", "SIZE", ""),
        rows,
        "There are no models yet. Add one: atelier models add",
    )


@app.command()
def add(
    source: Annotated[str, typer.Argument(help="A model folder, or the id of a model on the Hub (owner/name).")],
    data_dir: DataDir = None,
) -> None:
    """Add a folder of this machine, or fetch a model from the Hub."""
    is_folder = Path(source).expanduser().exists() or source.startswith(("/", ".", "~"))
    with open_studio(data_dir) as studio:
        with studio.session() as session:
            model = models.add_folder(session, source) if is_folder else models.add_hub(session, source)
        if model.status == "fetching":
            send_prepare(studio.celery, "fetch_model", model.id)
        elif model.status == "checking":
            send_prepare(studio.celery, "check_model", model.id)
    say(f"{model.id} is added ({model.status}). `atelier models list` shows how it goes on.")


def figures(model: Model) -> tuple[str, str, str]:
    """Parameters, context length and size, as far as they are known."""
    facts = models.facts(model)
    parameters = f"{facts.parameters / 1e6:,.0f} M" if facts.parameters else ""
    context = f"{facts.context_length:,}" if facts.context_length else ""
    return parameters, context, f"{facts.bytes / 2**30:,.2f} GiB" if facts.bytes else ""
