"""The web server: the API and the pages in one app, with one door in front of both."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI
from starlette.middleware.body_limit import RequestBodyLimitMiddleware

from studio.api import login
from studio.api.guard import FORM_OVERHEAD_BYTES, Guard
from studio.api.lost import Lost
from studio.api.routes import add_routes
from studio.auth import Gate, check_exposure
from studio.context import make_studio
from studio.settings import Settings
from studio.ui import mount

DESCRIPTION = "Fine-tune language models: OpenAI's fine-tuning API, on this machine. A job's id is its run's id."


def build_app(settings: Settings) -> FastAPI:
    """The whole app: `build_api` with the pages at /."""
    app = build_api(settings)

    async def with_pages() -> FastAPI:
        return mount(app, app.state.studio)

    return asyncio.run(with_pages())  # without a running loop Gradio would open several and close none


def build_api(settings: Settings) -> FastAPI:
    """API, login and the door in front of everything; connects to neither database nor broker before a request.

    Raises Invalid for an address that other machines reach without a password, Unavailable for a data folder that
    cannot be written.
    """
    check_exposure(settings)
    studio = make_studio(settings)
    gate = Gate(settings)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        studio.close()

    app = FastAPI(
        title="Atelier",
        description=DESCRIPTION,
        version=version("atelier"),
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        swagger_ui_oauth2_redirect_url=None,
    )
    app.state.studio = studio
    app.include_router(login.make_router(gate))
    add_routes(app)
    most = settings.max_upload_mib * 2**20
    app.add_middleware(RequestBodyLimitMiddleware, max_body_size=most + FORM_OVERHEAD_BYTES)
    app.add_middleware(Lost)
    app.add_middleware(Guard, gate=gate, max_upload_bytes=most)  # added last: outermost
    return app
