"""All pages in one Gradio app, and the app in the web server: own look, no calls out, no endpoints for others."""

import asyncio
import warnings
from collections.abc import Callable
from importlib.resources import files
from typing import TypeVar

import gradio as gr
from fastapi import FastAPI
from gradio.blocks import Blocks

from studio.context import Studio
from studio.ui import theme
from studio.ui.pages import compare, datasets, models, run, runs, train
from studio.ui.texts import catalogue, text

HOUR = 3600
T = TypeVar("T")


def build_pages(studio: Studio) -> Blocks:
    """The pages, each at its own address."""
    return inside_a_loop(lambda: _pages(studio))


def mount(app: FastAPI, studio: Studio) -> FastAPI:
    """The app with the pages at /; routes that it has already come first."""
    return inside_a_loop(lambda: _mounted(app, studio))


def inside_a_loop(build: Callable[[], T]) -> T:
    """Build while an event loop runs: without one, every lock that Gradio makes leaves a loop of its own open."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:

        async def building() -> T:
            return build()

        return asyncio.run(building())
    return build()


def _pages(studio: Studio) -> Blocks:
    cleaning = (HOUR, 24 * HOUR)  # uploads that were left in Gradio's own folder
    with gr.Blocks(title=text("app"), analytics_enabled=False, fill_width=True, delete_cache=cleaning) as demo:
        train.Train(demo, studio)
    for page, path in (
        (run.RunPage, "/run"),
        (runs.Runs, "/runs"),
        (compare.Compare, "/compare"),
        (datasets.Datasets, "/datasets"),
        (models.Models, "/models"),
    ):
        with demo.route(path.strip("/"), path, show_in_navbar=False):
            page(demo, studio)
    built: Blocks = demo
    return built


def _mounted(app: FastAPI, studio: Studio) -> FastAPI:
    with warnings.catch_warnings():
        # It is off, and Gradio says so all the same.
        warnings.filterwarnings("ignore", message="SSR mode is not supported")
        mounted: FastAPI = gr.mount_gradio_app(
            app,
            _pages(studio),
            path="/",
            footer_links=[],
            run_history=False,
            enable_monitoring=False,
            ssr_mode=False,
            mcp_server=False,
            show_error=False,
            max_file_size=f"{studio.settings.max_upload_mib}mb",
            favicon_path=str(files("studio.ui").joinpath("assets", "icon.svg")),
            i18n=catalogue(),
            theme=theme.theme(),
            head=theme.head(),
        )
    return mounted
