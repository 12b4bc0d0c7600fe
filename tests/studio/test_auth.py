"""Passwords, sessions and their slow-down; what may be exposed; and the door in front of a small app of our own."""

import stat
from concurrent.futures import ThreadPoolExecutor

import pytest
from fastapi import FastAPI, WebSocket
from pydantic import SecretStr
from starlette.responses import StreamingResponse
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from studio.api import login
from studio.api.guard import Guard
from studio.auth import FREE_TRIES, SESSION_SECONDS, Gate, Throttle, check_exposure, is_loopback, read_or_make_key
from studio.errors import Invalid
from studio.settings import Settings

PASSWORD = "open sesame ☃"
ADDRESS = "http://127.0.0.1:7860"
BROWSER = {"Accept": "text/html,application/xhtml+xml"}


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def guarded(settings: Settings) -> TestClient:
    gate = Gate(settings)
    app = FastAPI(docs_url=None)
    app.include_router(login.make_router(gate))

    @app.api_route("/page", methods=["GET", "POST"])
    def page():
        return "inside"

    @app.get("/v1/thing")
    def thing():
        return "inside"

    @app.get("/healthz")
    def healthz():
        return "ok"

    @app.get("/stream")
    def stream():
        return StreamingResponse(iter([b"data: inside\n\n"]), media_type="text/event-stream")

    @app.websocket("/socket")
    async def socket(websocket: WebSocket):
        await websocket.accept()
        await websocket.send_text("inside")
        await websocket.close()

    app.add_middleware(Guard, gate=gate, max_upload_bytes=2**20)
    return TestClient(app, base_url=ADDRESS, follow_redirects=False)


@pytest.fixture
def locked(settings):
    return guarded(settings.model_copy(update={"password": SecretStr(PASSWORD)}))


@pytest.fixture
def unlocked(settings):
    return guarded(settings)


def log_in(client, password=PASSWORD, **form):
    return client.post("/login", data={"password": password} | form)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "a.localhost", "127.0.0.1", "127.9.9.9", "::1", "[::1]"])
def test_loopback_names_are_known(host):
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["", "0.0.0.0", "::", "192.168.1.2", "example.org", "localhost.example.org", "127.0.0.1.nip.io"]
)
def test_other_names_are_not_loopback(host):
    assert not is_loopback(host)


@pytest.mark.parametrize("password", ["", "   "])
def test_no_other_address_is_bound_without_a_password(settings, password):
    exposed = settings.model_copy(update={"host": "0.0.0.0", "password": SecretStr(password)})
    with pytest.raises(Invalid, match="a password is needed") as refused:
        check_exposure(exposed)
    assert "ATELIER_PASSWORD" in refused.value.advice


def test_an_address_with_a_password_and_loopback_without_one_are_fine(settings):
    check_exposure(settings)
    check_exposure(settings.model_copy(update={"host": "0.0.0.0", "password": SecretStr(PASSWORD)}))


def test_the_key_is_made_once_and_for_its_owner_only(tmp_path):
    path = tmp_path / "session.key"
    with ThreadPoolExecutor(8) as threads:
        keys = set(threads.map(lambda _: read_or_make_key(path), range(8)))
    assert len(keys) == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["session.key"]


def test_a_damaged_key_is_refused(tmp_path):
    (tmp_path / "session.key").write_bytes(b"short")
    with pytest.raises(Invalid, match="damaged"):
        read_or_make_key(tmp_path / "session.key")


def test_a_session_ends_by_age_by_logout_and_by_a_new_password(settings):
    clock = Clock()
    settings = settings.model_copy(update={"password": SecretStr(PASSWORD)})
    gate = Gate(settings, clock)
    cookie, other = gate.new_session(), gate.new_session()
    assert gate.session_is_valid(cookie)
    assert Gate(settings, clock).session_is_valid(cookie)  # a restart keeps people logged in
    assert not Gate(settings.model_copy(update={"password": SecretStr("new")}), clock).session_is_valid(cookie)
    gate.end_session(cookie)
    assert not gate.session_is_valid(cookie)
    assert gate.session_is_valid(other)
    clock.now += SESSION_SECONDS
    assert not gate.session_is_valid(other)


@pytest.mark.parametrize(
    "change",
    [lambda c: "9" + c, lambda c: c[:-1], lambda c: "", lambda c: "a.b.c", lambda c: c + "\x00", lambda c: ".é"],
)
def test_a_cookie_that_was_touched_is_refused(settings, change):
    gate = Gate(settings.model_copy(update={"password": SecretStr(PASSWORD)}))
    assert not gate.session_is_valid(change(gate.new_session()))


def test_guessing_gets_slower_and_is_forgotten():
    clock = Clock()
    throttle = Throttle(clock)
    for _ in range(FREE_TRIES - 1):
        throttle.failed("10.0.0.1")
        assert throttle.seconds_to_wait("10.0.0.1") == 0
    waits = []
    for _ in range(8):
        throttle.failed("10.0.0.1")
        waits.append(throttle.seconds_to_wait("10.0.0.1"))
        clock.now += waits[-1]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    assert throttle.seconds_to_wait("10.0.0.2") == 0
    clock.now += 3600
    throttle.failed("10.0.0.1")
    assert throttle.seconds_to_wait("10.0.0.1") == 0


def test_one_host_of_ipv6_has_one_allowance():
    throttle = Throttle(Clock())
    for number in range(FREE_TRIES):
        throttle.failed(f"2001:db8::{number:x}")
    assert throttle.seconds_to_wait("2001:db8::ffff") > 0


def test_the_form_logs_in_and_out(locked):
    assert locked.get("/page", headers=BROWSER).headers["location"] == "/login?next=%2Fpage"
    page = locked.get("/login?next=/page")
    assert page.status_code == 200
    assert '<input type="hidden" name="next" value="/page">' in page.text
    answer = log_in(locked, next="/page?id=1")
    assert (answer.status_code, answer.headers["location"]) == (303, "/page?id=1")
    cookie = answer.headers["set-cookie"]
    assert all(word in cookie for word in ("HttpOnly", "SameSite=strict", "Max-Age=", "Path=/"))
    assert "Secure" not in cookie
    assert locked.get("/page").text == '"inside"'
    kept = dict(locked.cookies)
    assert locked.post("/logout").headers["location"] == "/login"
    assert locked.get("/page").status_code == 401
    locked.cookies.update(kept)
    assert locked.get("/page").status_code == 401  # a copy of the cookie is worth nothing


def test_over_https_the_cookie_is_for_https_only(settings):
    client = guarded(settings.model_copy(update={"password": SecretStr(PASSWORD)}))
    client.base_url = "https://studio.example.org"
    assert "Secure" in log_in(client).headers["set-cookie"]


def test_the_login_page_is_complete_and_shows_text_as_text(locked):
    answer = locked.get("/login", params={"next": '/x"><script>alert(1)</script>'})
    assert "<script" not in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"
    for word in ("http://", "https://", " src=", "@import", "url("):
        assert word not in answer.text
    for word in ("width=device-width", "prefers-color-scheme: dark", "current-password", 'for="password"'):
        assert word in answer.text


@pytest.mark.parametrize(
    "target", ["https://evil.example", "//evil.example", "/\\evil", "\\evil", "page", "/a\r\nb", "/login", ""]
)
def test_after_the_login_nobody_is_sent_elsewhere(locked, target):
    assert log_in(locked, next=target).headers["location"] == "/"


def test_a_wrong_password_says_so_and_then_waits(locked):
    for _ in range(FREE_TRIES):
        answer = log_in(locked, "guess")
        assert answer.status_code == 401
        assert "not the password" in answer.text
    answer = log_in(locked)
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) >= 1


def test_a_bearer_token_is_the_password(locked):
    right = {"Authorization": f"Bearer {PASSWORD}".encode()}
    assert (
        locked.get("/v1/thing", headers={"Authorization": b"Bearer wrong"}).json()["error"]["code"] == "invalid_api_key"
    )
    assert locked.get("/v1/thing", headers={"Authorization": f"Basic {PASSWORD}".encode()}).status_code == 401
    assert locked.get("/v1/thing", headers=right).status_code == 200
    for _ in range(FREE_TRIES):
        locked.get("/v1/thing", headers={"Authorization": "Bearer guess"})
    assert locked.get("/v1/thing", headers=right).json()["error"]["type"] == "rate_limit_error"


@pytest.mark.parametrize(
    "path",
    ["/v1/thing", "/page", "/stream", "/openapi.json", "/nowhere", "//healthz", "/healthz/", "/login/x", "/LOGIN"],
)
def test_the_anonymous_get_nothing(locked, path):
    answer = locked.get(path)
    assert answer.status_code == 401
    assert answer.json()["error"]["type"] == "authentication_error"
    assert answer.headers["www-authenticate"] == "Bearer"
    answer = locked.get(path, headers=BROWSER)
    assert answer.status_code == (401 if path.startswith("/v1/") else 303)
    assert locked.post(path, headers=BROWSER).status_code == 401


def test_sockets_are_closed_to_the_anonymous(locked):
    with pytest.raises(WebSocketDisconnect) as closed, locked.websocket_connect("/socket"):
        pass
    assert closed.value.code == 1008
    log_in(locked)
    cookie = "; ".join(f"{name}={value}" for name, value in locked.cookies.items())
    with locked.websocket_connect("/socket", headers={"Cookie": cookie}) as socket:
        assert socket.receive_text() == "inside"


def test_the_health_check_needs_no_password(locked):
    assert locked.get("/healthz").text == '"ok"'


def test_without_a_password_only_loopback_names_are_answered(unlocked):
    for host in ("localhost", "127.0.0.1:7860", "[::1]:7860"):
        assert unlocked.get("/page", headers={"Host": host}).status_code == 200
    for host in ("evil.example", "evil.example:7860", "127.0.0.1.nip.io", "localhost@evil.example", "[::1", ""):
        answer = unlocked.get("/page", headers={"Host": host})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "wrong_host"), host


def test_with_a_password_any_name_is_answered(locked):
    assert locked.get("/healthz", headers={"Host": "studio.example.org"}).status_code == 200


def test_without_a_password_no_other_machine_is_served(settings):
    app = guarded(settings).app
    assert TestClient(app, base_url=ADDRESS, client=("192.168.0.9", 5)).get("/page").status_code == 403
    for address in ("127.0.0.1", "::1", "::ffff:127.0.0.1"):
        assert TestClient(app, base_url=ADDRESS, client=(address, 5)).get("/page").status_code == 200


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "null", "http://127.0.0.1:3000", "http://localhost:7860", "file://", "junk", "http://[x"],
)
def test_other_sites_are_refused(unlocked, origin):
    for method in ("GET", "POST"):
        answer = unlocked.request(method, "/page", headers={"Origin": origin})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "wrong_origin")
    with (
        pytest.raises(WebSocketDisconnect),
        unlocked.websocket_connect("/socket", headers={"Host": "127.0.0.1:7860", "Origin": origin}),
    ):
        pass


def test_the_own_origin_is_let_through(locked, unlocked):
    assert unlocked.post("/page", headers={"Origin": ADDRESS}).status_code == 200
    secure = {"Host": "studio.example.org", "Origin": "https://studio.example.org"}  # a proxy ends TLS before us
    assert locked.post("/login", data={"password": PASSWORD}, headers=secure).status_code == 303


def test_a_link_from_elsewhere_works_and_nothing_else_does(unlocked):
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert unlocked.get("/page", headers=link).status_code == 200
    assert unlocked.post("/page", headers=link).status_code == 403
    assert (
        unlocked.get("/page", headers={"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"}).status_code == 403
    )
    assert unlocked.get("/page", headers={"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}).status_code == 200


def test_every_answer_has_security_headers(locked):
    for path in ("/page", "/login", "/v1/thing", "/healthz"):
        headers = locked.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
        assert "frame-ancestors" in headers["content-security-policy"]


def test_without_a_password_the_login_leads_to_the_page(unlocked):
    assert unlocked.get("/login").headers["location"] == "/"
    assert unlocked.post("/logout").headers["location"] == "/"


def test_an_oversized_login_is_not_read(locked):
    assert log_in(locked, "x" * 2**15).status_code == 413

    def endless():
        for _ in range(64):
            yield b"x" * 2**10

    assert locked.post("/login", content=endless()).status_code == 413
