"""All routes of the API in one place, and what happens where none fits."""

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.routing import compile_path

from studio.api import docs, errors, files, health, jobs, models, runs
from studio.errors import NotFound

ANY_METHOD = ["GET", "POST", "PUT", "PATCH", "DELETE"]


def add_routes(app: FastAPI) -> None:
    """All routes of the API and its way of telling errors; `app.state.studio` is the studio they work on."""
    errors.install(app)
    for module in (files, jobs, models, runs, health, docs):
        app.include_router(module.router)
    app.api_route("/v1/{rest:path}", methods=ANY_METHOD, include_in_schema=False)(no_such_route)


def no_such_route(request: Request, rest: str) -> None:
    """What no route has taken; without this the page behind the API would answer.

    405 where only the method is wrong.
    """
    routes = request.app.openapi()["paths"].items()
    fitting = [item for path, item in routes if compile_path(path)[0].match(request.url.path)]
    known = sorted({method.upper() for item in fitting for method in item})
    if known:
        told = f"{request.method} is not offered at {request.url.path[:200]}, only {' and '.join(known)}."
        raise HTTPException(405, told, {"Allow": ", ".join(known)})
    raise NotFound(f"There is no route /v1/{rest[:200]}; /docs lists those there are.", code="unknown_url")
