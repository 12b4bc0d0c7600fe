"""Writes what documents repeat from code: docs/reference.md and the file structure in README.md.

`--check` writes nothing and says whether they are fresh.
"""

import ast
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from engine.spec import RunSpec, sections_in
from studio.settings import Settings

ROOT = Path(__file__).parents[1]
REFERENCE, README = ROOT / "docs" / "reference.md", ROOT / "README.md"
PACKAGES = ("engine", "studio", "worker", "migrations", "bench")
BLOCK = re.compile(r"(?<=<!-- files -->\n).*?(?=<!-- end of files -->)", re.DOTALL)
OTHERS = {
    "atelier": "The wrapper: environment on first use, then up, test, check or the command line.",
    "docs/": "Architecture, adding things, reference, API, decisions.",
    "tests/": "The same tree once more, plus whole journeys in a real browser.",
    ".ci/run": "What must pass before anything lands.",
    "pyproject.toml": "Dependencies and the configuration of every tool.",
    "constraints.txt": "Exact versions of all packages.",
    "Dockerfile": "One image for web server and workers.",
    "compose.yaml": "Web server, workers, Redis and PostgreSQL.",
}
SIGNS = ((annotated_types.Ge, "ge", ">="), (annotated_types.Gt, "gt", ">"), (annotated_types.Le, "le", "<="))
MORE_SIGNS = ((annotated_types.Lt, "lt", "<"), (annotated_types.MaxLen, "max_length", "length <="))

HEAD = """# Reference

Written by `docs/generate.py` from `engine/spec.py` and `studio/settings.py`: change those, then run
`.venv/bin/python docs/generate.py`. `./atelier check` compares.

## A run: the RunSpec

What the page *Train* offers under *Advanced*, what `POST /v1/runs` takes, what a YAML file for `./atelier train`
contains and what `--set` changes: the same names everywhere. An unknown name is an error.
"""

SETTINGS_HEAD = """
## This installation: environment variables

Read when a process starts, and from nowhere else.
"""


def name_of(annotation: Any) -> str:
    """A type as a person writes it: `sft`, `auto or cpu`, `whole number`, `list of text`."""
    words = {
        int: "whole number",
        float: "number",
        str: "text",
        bool: "true or false",
        Path: "folder",
        types.NoneType: "empty",
    }
    if get_origin(annotation) is Annotated:
        return name_of(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return " or ".join(f"`{value}`" for value in get_args(annotation))
    if get_origin(annotation) in (Union, types.UnionType):
        return " or ".join(name_of(part) for part in get_args(annotation))
    if get_origin(annotation) is list:
        return f"list of {name_of(get_args(annotation)[0])}"
    if get_origin(annotation) is dict:
        return "names, each with a text"
    return words.get(annotation, "text")


def bounds_of(field: FieldInfo) -> str:
    """The limits that the field itself checks: `>= 1, <= 1024`."""
    parts = [
        f"{sign} {getattr(rule, attribute):,.10g}"
        for rule in field.metadata
        for kind, attribute, sign in SIGNS + MORE_SIGNS
        if isinstance(rule, kind)
    ]
    return ", ".join(parts)


def default_of(field: FieldInfo) -> str:
    """The default in YAML's words."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(value, Path):
        return f"`~/{value.relative_to(Path.home())}`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    shown = value.get_secret_value() if hasattr(value, "get_secret_value") else value
    return "empty" if shown in ("", None, {}) else f"`{shown}`"


def tables(model: type[BaseModel], prefix: str = "", title: str = "") -> Iterator[str]:
    """A table for the model's own leaves, then one for each group inside it."""
    leaves = {name: field for name, field in model.model_fields.items() if not sections_in(field.annotation)}
    yield f"\n### {title or 'The run itself'}\n"
    if title:
        yield f"{model.__doc__}\n"
    yield from table({f"{prefix}{name}": field for name, field in leaves.items()})
    for name, field in model.model_fields.items():
        variants = sections_in(field.annotation)
        for variant in variants:
            kind = variant.model_fields["type"].default if "type" in variant.model_fields else ""
            yield from tables(variant, f"{prefix}{name}.", f"{prefix}{name}" + (f": {kind}" if kind else ""))


def table(fields: dict[str, FieldInfo]) -> Iterator[str]:
    """Markdown rows."""
    yield "| name | value | default | limits | meaning |\n|---|---|---|---|---|"
    for name, field in fields.items():
        cells = (f"`{name}`", name_of(field.annotation), default_of(field), bounds_of(field), field.description or "")
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def reference() -> str:
    """The whole reference page."""
    settings = {f"ATELIER_{name.upper()}": field for name, field in Settings.model_fields.items()}
    parts = [HEAD, *tables(RunSpec), SETTINGS_HEAD, *table(settings)]
    return "\n".join(parts).replace("\n\n\n", "\n\n") + "\n"


def job_of(module: Path) -> str:
    """The first sentence of a module's docstring."""
    text = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
    first, found, _ = " ".join(text.split("\n\n")[0].split()).partition(". ")
    return first + "." * bool(found)


def structure() -> str:
    """One line a file, in a code block: packages first, then the rest."""
    lines = []
    for package in PACKAGES:
        for folder in sorted({path.parent for path in (ROOT / package).rglob("*.py")} - {ROOT / "migrations/versions"}):
            lines.append(f"{f'{folder.relative_to(ROOT)}/':<22} {job_of(folder / '__init__.py')}".rstrip())
            modules = sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")
            lines += [f"  {module.name:<20} {job_of(module)}".rstrip() for module in modules]
    lines += [f"{name:<22} {text}" for name, text in OTHERS.items()]
    return "```text\n" + "\n".join(lines) + "\n```\n"


def pages() -> dict[Path, str]:
    """Every page that is written here, as it should be now."""
    readme = README.read_text(encoding="utf-8")
    return {REFERENCE: reference(), README: BLOCK.sub(lambda _: structure(), readme)}


def main(arguments: list[str]) -> int:
    """Write the pages, or with `--check` compare them."""
    stale = [path for path, text in pages().items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if "--check" in arguments and stale:
        names = ", ".join(str(path.relative_to(ROOT)) for path in stale)
        sys.stderr.write(f"Not up to date: {names}. Run .venv/bin/python docs/generate.py\n")
        return 1
    for path in stale:
        path.write_text(pages()[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
