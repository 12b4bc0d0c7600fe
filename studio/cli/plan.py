"""`atelier plan`: what a run will need on each device and how long it takes, asked of an engine process."""

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from engine.spec import RunSpec
from studio.cli.console import out, plain, say, say_json, table
from studio.cli.inputs import find_dataset, find_model
from studio.cli.inspection import ask_engine
from studio.cli.spec import read_spec
from studio.errors import Invalid
from studio.settings import Settings
from studio.storage import Storage

TOLD = ("fits", "layout", "per_device", "parameters", "tokens_per_step", "steps", "seconds", "disk_gib", "why")
GIB = 2**30
WIDTH = 60  # characters of the bar
PARTS = (
    ("weights", "base weights", "blue"),
    ("adapter", "adapter", "cyan"),
    ("gradients", "gradients", "magenta"),
    ("optimizer", "optimizer", "yellow"),
    ("activations", "activations", "green"),
    ("cache", "answers being sampled", "bright_cyan"),
    ("gathered", "gathered layers", "bright_blue"),
    ("head", "head tiles", "bright_green"),
    ("dispatch", "rows to experts", "bright_magenta"),
    ("reserve", "process", "white"),
)


def plan(
    spec_file: Annotated[
        Path, typer.Argument(metavar="SPEC.yaml", help="A spec; see `atelier spec example`.", show_default=False)
    ],
    devices: Annotated[
        str, typer.Option(help="Such as 8xB300, 2x24GB or cpu:16GB; default: those of this machine.")
    ] = "",
    auto: Annotated[
        bool, typer.Option("--auto", help="Choose layout, recompute, micro-batch and length for the devices.")
    ] = False,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="a.b=c", help="Change a setting; may be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Tell what a spec will need on each device, whether it fits, and how long it will take. Exit status 1: no fit."""
    spec = located(read_spec(spec_file, changes or []), spec_file.parent)
    with tempfile.TemporaryDirectory(prefix="atelier-") as folder:
        file = Path(folder) / "spec.json"
        file.write_text(spec.model_dump_json(), encoding="utf-8")
        options = ["--full", *(["--devices", devices] if devices else []), *(["--auto"] if auto else [])]
        found, _ = ask_engine("plan", str(file), *options)
    if as_json:
        say_json({name: found[name] for name in TOLD})
    else:
        say_plan(found)
    raise typer.Exit(0 if found["fits"] else 1)


def located(spec: RunSpec, beside: Path) -> RunSpec:
    """The spec with its model as a folder or Hub id; a dataset that is not there leaves steps and time open."""
    storage = Storage(Settings().data_dir)
    try:
        dataset = str(find_dataset(spec.data.dataset, beside, storage))
    except Invalid:
        dataset = spec.data.dataset
    data = spec.data.model_copy(update={"dataset": dataset})
    return spec.model_copy(update={"data": data, "model": find_model(spec.model, beside, storage)})


def say_plan(found: dict[str, Any]) -> None:
    """A headline, a bar, the parts, and why."""
    number = found["devices"]
    head = f"{'Fits' if found['fits'] else 'Does not fit'}: {gib(found['peak'])} of {gib(found['room'])} on each of "
    say(head + (f"{number} devices" if number > 1 else "1 device"), style="bold green" if found["fits"] else "bold red")
    out.print(bar(found))
    rows = [(label, gib(found["parts"][name])) for name, label, _ in PARTS if found["parts"][name]]
    table(("PART", "GIB"), rows, "")
    counts = found["parameters"]
    say(
        f"{counts['total']:,} parameters, {counts['active']:,} active, {counts['trainable']:,} trained, "
        f"{counts['local']:,} on a device"
    )
    steps = "steps unknown" if found["steps"] is None else f"{found['steps']:,} steps, {duration(found['seconds'])}"
    say(f"{found['tokens_per_step']:,} tokens a step, {steps}, {found['disk_gib']:.2f} GiB on disk")
    for name, value in found.get("settings", {}).items():
        say(f"  --set {name}={str(value).lower() if isinstance(value, bool) else value}", style="cyan")
    for line in found["why"]:
        say(f"- {line}")


def bar(found: dict[str, Any]) -> Text:
    """The parts to scale, and what stays free."""
    scale = WIDTH / max(found["room"], found["peak"])
    line, used = Text(), 0
    for name, _, colour in PARTS:
        width = round(found["parts"][name] * scale)
        line.append("█" * width, style=colour)
        used += width
    line.append("░" * max(0, WIDTH - used), style="dim")
    return line


def gib(size: float) -> str:
    """Bytes as GiB."""
    return plain(f"{size / GIB:.2f} GiB")


def duration(seconds: float) -> str:
    """About how long, as people say it."""
    for limit, unit in ((86400.0, "days"), (3600.0, "hours"), (60.0, "min")):
        if seconds >= 1.5 * limit:
            return f"about {seconds / limit:.0f} {unit}"
    return f"about {max(1, round(seconds))} s"
