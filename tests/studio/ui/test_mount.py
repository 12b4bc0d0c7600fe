"""The pages in the web server: there, private, and at home on this machine only."""

import re
from collections.abc import Iterator

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from studio.context import Studio
from studio.ui import build_pages, mount, theme

PATHS = ("/", "/run", "/runs", "/compare", "/datasets", "/models")


@pytest.fixture
def client(studio: Studio) -> Iterator[TestClient]:
    """A browser of plain requests."""
    with TestClient(mount(FastAPI(), studio)) as client:
        yield client


@pytest.mark.parametrize("path", PATHS)
def test_each_page_has_its_own_address(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 200
    assert "gradio_config" in answer.text


def test_no_handler_is_offered_to_others(studio: Studio) -> None:
    pages = build_pages(studio)
    assert pages.fns
    visible = {fn.api_name for fn in pages.fns.values() if fn.api_visibility != "private"}
    assert visible == set()


def test_no_handler_waits_in_a_stream_that_can_be_lost(studio: Studio) -> None:
    assert all(not fn.queue for fn in build_pages(studio).fns.values())


def test_look_and_scripts_name_no_other_host() -> None:
    own = theme.head()
    addresses = set(re.findall(r"https?://[^\s\"')]+", own)) - {"http://www.w3.org/2000/svg"}
    assert addresses == set()
    assert theme.theme()._stylesheets == []
