"""`atelier web`: the web server alone, for installations that start each process by themselves."""

import os
import socket
from typing import Annotated

import typer
import uvicorn

from engine import lifeline
from studio import starter
from studio.app import build_app
from studio.auth import check_exposure
from studio.cli.console import say
from studio.cli.installation import DataDir, open_studio
from studio.cli.listener import listen
from studio.settings import Settings

STOP_SECONDS = 5  # open event streams of pages are cut after this


def web(
    host: Annotated[
        str | None, typer.Option(help="Address to bind to; any but loopback needs ATELIER_PASSWORD.")
    ] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Start only the web server, until SIGTERM."""
    lifeline.hold(2 * STOP_SECONDS)
    with open_studio(data_dir) as studio:
        starter.ensure(studio)
        given = {"host": host, "port": port}
        settings = studio.settings.model_copy(
            update={name: value for name, value in given.items() if value is not None}
        )
    check_exposure(settings)
    with listen(settings.host, settings.port) as listener:
        bound = listener.getsockname()
        say(f"Atelier answers at http://{f'[{bound[0]}]' if ':' in bound[0] else bound[0]}:{bound[1]}")
        serve(settings.model_copy(update={"port": bound[1]}), listener)


def serve(settings: Settings, listener: socket.socket) -> None:
    """Serve the app on an open socket until a signal comes.

    A proxy's X-Forwarded-For counts only where FORWARDED_ALLOW_IPS names the proxy: else anybody on this machine could
    pass for ever new clients while guessing the password.
    """
    config = uvicorn.Config(
        build_app(settings),
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers="FORWARDED_ALLOW_IPS" in os.environ,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    uvicorn.Server(config).run(sockets=[listener])
