"""`/docs`: the API told as one plain page made on the server, so that it is complete with no internet and no scripts.

FastAPI's own page loads Swagger UI from a CDN, and its assets in a package of their own are megabytes of JavaScript
for a list of some thirty routes. Tools that want more read /openapi.json.
"""

from collections.abc import Iterator
from html import escape
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
DEEPEST = 4  # nested objects shown with all their fields
router = APIRouter(include_in_schema=False)

_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>API · Atelier</title>
<style>
:root { --back: #f6f7f9; --card: #fff; --text: #1b1f24; --soft: #57606a; --line: #d5dae0; --act: #1f5fbf }
@media (prefers-color-scheme: dark) {
  :root { --back: #0e1116; --card: #171b22; --text: #e6e9ee; --soft: #a3adb8; --line: #333b46; --act: #79a8f5 }
}
body { margin: 0 auto; max-width: 60rem; padding: 1rem; background: var(--back); color: var(--text);
  font: 1rem/1.5 system-ui, sans-serif }
a { color: var(--act) }
details { background: var(--card); border: 1px solid var(--line); border-radius: 8px; margin: .5rem 0 }
summary { padding: .6rem .8rem; cursor: pointer; overflow-wrap: anywhere }
details > div { padding: 0 .8rem .8rem }
code, pre { font: .9rem/1.5 ui-monospace, monospace }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .8rem; overflow-x: auto }
.method { display: inline-block; min-width: 4.2rem; font-weight: 700; color: var(--act) }
.soft { color: var(--soft) }
.scroll { overflow-x: auto }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem .3rem 0; border-bottom: 1px solid var(--line) }
@media (max-width: 40rem) {
  tr { display: block; padding: .3rem 0; border-bottom: 1px solid var(--line) }
  td { display: block; border: 0; padding: .15rem 0 }
}
:focus-visible { outline: 3px solid var(--act); outline-offset: 2px }
</style>
</head>
<body>
"""

_EXAMPLE = """from openai import OpenAI

client = OpenAI(base_url="{base}v1", api_key="the studio's password, or anything when it has none")
file = client.files.create(file=open("rows.jsonl", "rb"), purpose="fine-tune")
job = client.fine_tuning.jobs.create(model="smollm2-135m-instruct", training_file=file.id)
print(client.fine_tuning.jobs.retrieve(job.id).status)
"""


@router.get("/docs")
def docs(request: Request) -> HTMLResponse:
    """The page."""
    parts = "".join(page(request.app.openapi(), str(request.base_url)))
    return HTMLResponse(parts, headers={"Content-Security-Policy": POLICY})


def page(schema: dict[str, Any], base: str) -> Iterator[str]:
    """The page of an OpenAPI schema, part by part; all text is escaped."""
    yield _HEAD
    yield f"<h1>{escape(schema['info']['title'])} API</h1>\n<p>{escape(schema['info'].get('description', ''))}</p>\n"
    yield '<p>For tools: <a href="/openapi.json">openapi.json</a>.</p>\n'
    yield f"<pre>{escape(_EXAMPLE.format(base=base))}</pre>\n"
    for tag, routes in by_tag(schema).items():
        yield f"<h2>{escape(tag)}</h2>\n"
        for method, path, operation in routes:
            yield from route(method, path, operation, schema)
    yield "</body>\n</html>\n"


def by_tag(schema: dict[str, Any]) -> dict[str, list[tuple[str, str, dict[str, Any]]]]:
    """(METHOD, path, operation) of every route under its first tag, in the order they were added."""
    grouped: dict[str, list[tuple[str, str, dict[str, Any]]]] = {}
    for path, item in schema["paths"].items():
        for method, operation in item.items():
            grouped.setdefault(next(iter(operation.get("tags", [])), "Other"), []).append(
                (method.upper(), path, operation)
            )
    return grouped


def route(method: str, path: str, operation: dict[str, Any], schema: dict[str, Any]) -> Iterator[str]:
    """One route, folded; it opens without JavaScript."""
    about = operation.get("description", "") or operation.get("summary", "")
    yield f'<details><summary><span class="method">{escape(method)}</span> <code>{escape(path)}</code> '
    yield f'<span class="soft">{escape(about.splitlines()[0])}</span></summary>\n<div>\n<p>{escape(about)}</p>\n'
    parameters = [
        (one["name"], one["schema"], one.get("required", False), one.get("description", ""))
        for one in operation.get("parameters", [])
    ]
    yield from table(
        "Parameters", [(name, words(kind, schema), needed, text) for name, kind, needed, text in parameters]
    )
    for media, body in operation.get("requestBody", {}).get("content", {}).items():
        yield from table(f"Body · {media}", list(fields(body["schema"], schema)))
    for status, answer in operation.get("responses", {}).items():
        for media, body in answer.get("content", {}).items():
            if status == "200":
                yield from table(f"Answer · {media}", list(fields(body.get("schema", {}), schema)))
    yield "</div></details>\n"


def table(title: str, rows: list[tuple[str, str, bool, str]]) -> Iterator[str]:
    """Fields as name, type, whether needed, what it is; nothing for none."""
    if not rows:
        return
    yield f'<h3>{escape(title)}</h3>\n<div class="scroll"><table>\n'
    for name, kind, needed, text in rows:
        mark = " <strong>required</strong>" if needed else ""
        yield f"<tr><td><code>{escape(name)}</code>{mark}</td><td>{escape(kind)}</td><td>{escape(text)}</td></tr>\n"
    yield "</table></div>\n"


def resolved(node: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """The node, or what its `$ref` points to."""
    reference = node.get("$ref") or next((part["$ref"] for part in node.get("allOf", []) if "$ref" in part), None)
    if reference is None:
        return node
    found: dict[str, Any] = schema["components"]["schemas"][reference.rpartition("/")[2]]
    return found


def fields(
    node: dict[str, Any], schema: dict[str, Any], prefix: str = "", depth: int = 0
) -> Iterator[tuple[str, str, bool, str]]:
    """The fields of an object schema by dotted name."""
    target = resolved(node, schema)
    needed = target.get("required", [])
    for name, child in target.get("properties", {}).items():
        yield f"{prefix}{name}", words(child, schema), name in needed, child.get("description", "")
        inner = next((one for one in [child, *child.get("anyOf", [])] if "properties" in resolved(one, schema)), None)
        if inner is not None and depth < DEEPEST:
            yield from fields(inner, schema, f"{prefix}{name}.", depth + 1)


def words(node: dict[str, Any], schema: dict[str, Any]) -> str:
    """The type of a field in words."""
    target = resolved(node, schema)
    if "anyOf" in target:
        return " or ".join(dict.fromkeys(words(part, schema) for part in target["anyOf"]))
    if "const" in target or "enum" in target:
        return " | ".join(str(value) for value in target.get("enum", [target.get("const")]))
    kind = str(target.get("type", "object"))
    bounds = [f"{sign} {target[key]}" for key, sign in (("minimum", ">="), ("maximum", "<=")) if key in target]
    inner = f" of {words(target['items'], schema)}" if "items" in target else ""
    default = f", default {target['default']!r}" if isinstance(target.get("default"), str | int | float) else ""
    return f"{kind}{inner}{''.join(f' {bound}' for bound in bounds)}{default}"
