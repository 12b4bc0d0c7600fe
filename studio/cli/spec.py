"""`atelier spec`: an example to start from and the schema, both made from the RunSpec itself."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from pydantic import BaseModel

from engine.spec import METHODS, Data, RunSpec
from studio.cli.console import out, say_json
from studio.errors import Invalid

app = typer.Typer(no_args_is_help=True)
MOST_BYTES = 2**20
EXAMPLE = RunSpec(name="first try", model="smollm2-135m-instruct", data=Data(dataset="rows.jsonl"))


@app.command()
def example(
    method: Annotated[
        str, typer.Option(help=f"How to learn: {', '.join(METHODS)}. Each has settings of its own.")
    ] = "sft",
) -> None:
    """Print a complete spec as YAML, every setting with its default and what it means."""
    if method not in METHODS:
        raise Invalid(f"There is no method {method[:40]!r}.", param="method", advice=f"There are {', '.join(METHODS)}.")
    out.file.write("".join(lines(EXAMPLE.model_copy(update={"method": METHODS[method]()}))))


@app.command()
def schema() -> None:
    """Print the JSON schema of a spec, for editors and programs."""
    say_json(RunSpec.model_json_schema())


def lines(section: BaseModel, indent: str = "") -> Iterator[str]:
    """A spec as commented YAML."""
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if field.description:
            yield f"{indent}# {field.description}\n"
        if isinstance(value, BaseModel):
            yield f"{indent}{name}:\n"
            yield from lines(value, indent + "  ")
        else:
            yield f"{indent}{name}: {as_yaml(value)}\n"


def as_yaml(value: Any) -> str:
    """One value on one line."""
    if isinstance(value, float):
        return f"{value:g}" if "e" not in f"{value:g}" else f"{value:.1e}"
    return yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("\n...\n").strip()


def read_spec(path: Path, changes: list[str]) -> RunSpec:
    """The spec in a YAML or JSON file with `a.b=c` changes on top.

    Raises Invalid for a file that cannot be read, pydantic's ValidationError for settings that are not valid.
    """
    values = read_yaml(path)
    for change in changes:
        apply(values, change)
    return RunSpec.model_validate(values)


def read_yaml(path: Path) -> dict[Any, Any]:
    """A mapping from a YAML file in UTF-8, with or without a byte order mark, whatever its line ends."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise Invalid(f"{path} cannot be read: {error.strerror}.") from error
    if len(content) > MOST_BYTES:
        raise Invalid(f"{path} is larger than 1 MiB; that is not a spec.")
    try:
        values = yaml.safe_load(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise Invalid(f"{path} is not text in UTF-8.", advice="Save it as UTF-8.") from error
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        place = f", line {where.line + 1}" if where is not None else ""
        raise Invalid(f"{path}{place}: {getattr(error, 'problem', None) or 'this is not YAML'}.") from error
    if not isinstance(values, dict):
        raise Invalid(f"{path} holds no settings.", advice="`atelier spec example` prints a spec to start from.")
    return values


def apply(values: dict[Any, Any], change: str) -> None:
    """Set one setting from `a.b=c`, where c is read as YAML. Raises Invalid for anything else."""
    place, separator, text = change.partition("=")
    keys = place.strip().split(".")
    if not separator or not all(keys):
        raise Invalid(
            f"{change!r} is no change.", param="set", advice="Write it as --set optimizer.learning_rate=0.0001"
        )
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise Invalid(f"The value in {change!r} cannot be read.", param="set") from error
    for depth, key in enumerate(keys[:-1], start=1):
        inner = values.setdefault(key, {})
        if not isinstance(inner, dict):
            raise Invalid(f"{'.'.join(keys[:depth])} has no settings inside.", param="set")
        values = inner
    values[keys[-1]] = value
