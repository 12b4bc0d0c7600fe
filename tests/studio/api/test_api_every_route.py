"""Every route of the whole app, Gradio's included, is closed to those who have not shown the password."""

import re

import pytest
from pydantic import SecretStr
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from studio.api.guard import OPEN_PATHS
from studio.app import build_app
from studio.db.migrate import upgrade

ADDRESS = "http://127.0.0.1:7860"
PASSWORD = "open sesame"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
BROWSER = {"Accept": "text/html"}


@pytest.fixture
def whole_app(settings):
    settings = settings.model_copy(update={"password": SecretStr(PASSWORD)})
    upgrade(settings)
    return build_app(settings)


def walk(routes, prefix=""):
    """Paths of all routes with their parameters filled in; mounted apps and included routers are walked too."""
    for route in routes:
        path = prefix + getattr(route, "path", "")
        inner = getattr(getattr(route, "original_router", None), "routes", None) or getattr(route, "routes", None)
        if inner:
            yield from walk(inner, path.rstrip("/"))
        else:
            yield re.sub(r"{[^}]*}", "x", path) or "/"


def test_the_walk_reaches_the_api_and_the_pages(whole_app):
    paths = set(walk(whole_app.routes))
    assert {
        "/v1/files",
        "/v1/fine_tuning/jobs/x/events",
        "/v1/adapters/x",
        "/docs",
        "/openapi.json",
        "/metrics",
    } <= paths
    assert {"/gradio_api/upload", "/gradio_api/queue/join", "/gradio_api/queue/data", "/config", "/static/x"} <= paths
    assert len(paths) > 60


def test_every_route_is_closed_to_the_anonymous(whole_app):
    client = TestClient(whole_app, base_url=ADDRESS, follow_redirects=False)
    for path in sorted(
        set(walk(whole_app.routes)) | {"/", "/run?id=x", "/runs", "/assets/x.js", "/theme.css", "/nowhere"}
    ):
        if path in OPEN_PATHS:
            continue
        for method in METHODS:
            answer = client.request(method, path)
            assert answer.status_code == 401, (method, path)
            assert method == "HEAD" or answer.json()["error"]["type"] == "authentication_error"
        answer = client.get(path, headers=BROWSER)
        is_api = path.startswith(("/v1/", "/gradio_api/"))
        assert answer.status_code == (401 if is_api else 303), path
        assert is_api or answer.headers["location"].startswith("/login?next=")
        with pytest.raises(WebSocketDisconnect), client.websocket_connect(path):
            pass


def test_only_login_and_health_are_open(whole_app):
    assert {"/login", "/healthz"} == OPEN_PATHS
    client = TestClient(whole_app, base_url=ADDRESS, follow_redirects=False)
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/login").status_code == 200


def test_with_the_password_the_page_comes_and_loads_nothing_from_elsewhere(whole_app):
    with TestClient(whole_app, base_url=ADDRESS, follow_redirects=False) as client:
        answer = client.post("/login", data={"password": PASSWORD, "next": "/runs"})
        assert answer.headers["location"] == "/runs"
        page = client.get("/runs", headers=BROWSER)
        assert page.status_code == 200
        assert "default-src 'self'" in page.headers["content-security-policy"]
        assert "access-control-allow-origin" not in page.headers
        assert client.get("/healthz").json() == {"status": "ok", "database": "ok", "queue": "ok"}


def test_scripts_and_styles_are_kept_by_the_browser_and_nothing_else_is(whole_app):
    client = TestClient(whole_app, base_url=ADDRESS, headers={"Authorization": f"Bearer {PASSWORD}"})
    page = client.get("/").text
    script, theme = re.search(r'src="\./(assets/[^"]+)"', page), re.search(r'"theme_hash":\s*"(\w+)"', page)
    for path in (f"/{script[1]}", f"/theme.css?v={theme[1]}"):
        assert "immutable" in client.get(path).headers["cache-control"]
    for path in ("/", "/theme.css", "/assets/none.js", "/v1/models"):
        assert "immutable" not in client.get(path).headers.get("cache-control", "")
