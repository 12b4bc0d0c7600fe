"""The one door in front of every route, Gradio's included: host, origin, password, body size, security headers."""

import ipaddress
from urllib.parse import quote, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from studio.api.errors import error_response
from studio.auth import Gate, is_loopback

KNOWN = "atelier.known"  # in the ASGI scope: whether the caller has shown the password, or none is needed
OPEN_PATHS = frozenset({"/login", "/healthz"})  # compared exactly; everything else is closed
UPLOAD_PATHS = frozenset({"/v1/files", "/gradio_api/upload"})
MOST_BODY_BYTES = 16 * 2**20  # of anything that is not an upload
MOST_LOGIN_BYTES = 16 * 2**10
FORM_OVERHEAD_BYTES = 2**20  # boundaries and headers of a multipart form

# Gradio's page needs inline scripts, and evaluates the functions of its events; nothing may come from another host.
PAGE_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; media-src 'self' data: blob:; connect-src 'self' data: blob:; "
    "worker-src 'self' blob:; object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'self'"
)
FILE_POLICY = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:"  # files people uploaded
KEPT = "private, max-age=31536000, immutable"  # so a page opens without asking for its forty scripts again
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "SAMEORIGIN",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}


class Guard:
    """ASGI middleware. Refuses, or hands on and adds security headers to what comes back."""

    def __init__(self, app: ASGIApp, gate: Gate, max_upload_bytes: int) -> None:
        self.app = app
        self.gate = gate
        self.max_upload_bytes = max_upload_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, WebSocket or lifespan message stream."""
        if scope["type"] not in {"http", "websocket"}:
            await self.app(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        refusal = self.refuse(connection)
        if scope["type"] == "websocket" and refusal is not None:
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": "refused"})
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                add_headers(headers, scope["path"])
                if message["status"] == 200 and is_named_by_content(scope):
                    headers["Cache-Control"] = KEPT
            await send(message)

        await (self.app if refusal is None else refusal)(scope, receive, send_guarded)

    def refuse(self, connection: HTTPConnection) -> Response | None:
        """The answer to a request that may not pass, or None."""
        return (
            self.wrong_host(connection)
            or wrong_origin(connection)
            or self.not_logged_in(connection)
            or self.body_too_large(connection)
        )

    def wrong_host(self, connection: HTTPConnection) -> Response | None:
        """Without a password only this machine is served, under a name that no foreign DNS record can take."""
        if self.gate.needed:
            return None
        if not is_loopback(_hostname(connection.headers.get("host", ""))):
            return error_response(
                403, "Without a password this studio answers only as localhost or 127.0.0.1.", code="wrong_host"
            )
        if connection.client is not None and _is_remote(connection.client.host):
            return error_response(
                403, "Without a password this studio serves only its own machine.", code="password_needed"
            )
        return None

    def not_logged_in(self, connection: HTTPConnection) -> Response | None:
        """Asks for the session cookie or `Authorization: Bearer <password>`; notes in the scope who is known."""
        if not self.gate.needed or self.gate.session_is_valid(connection.cookies.get(self.gate.cookie_name, "")):
            connection.scope[KNOWN] = True
            return None
        scheme, _, token = connection.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and token:
            refusal = self.wrong_token(_as_text(token), address_of(connection))
            connection.scope[KNOWN] = refusal is None
            return refusal
        if connection.scope["path"] in OPEN_PATHS:
            return None
        if wants_page(connection):
            path = connection.scope["path"] + (f"?{query}" if (query := connection.url.query) else "")
            return RedirectResponse(f"/login?next={quote(path, safe='')}", 303)
        return error_response(
            401,
            "This studio needs its password: log in at /login, or send it as `Authorization: Bearer <password>`.",
            headers={"WWW-Authenticate": "Bearer"},
        )

    def wrong_token(self, token: str, address: str) -> Response | None:
        """Compares a bearer token with the password, no faster than the throttle allows."""
        if (wait := self.gate.throttle.seconds_to_wait(address)) > 0:
            return too_many_tries(wait)
        if self.gate.try_password(token, address):
            return None
        headers = {"WWW-Authenticate": 'Bearer error="invalid_token"'}
        return error_response(
            401, "The bearer token is not this studio's password.", code="invalid_api_key", headers=headers
        )

    def body_too_large(self, connection: HTTPConnection) -> Response | None:
        """A request that announces more than is accepted, refused before a byte is read.

        Bodies that do not announce their size are counted while they are read (Starlette's RequestBodyLimitMiddleware).
        """
        announced = connection.headers.get("content-length", "")
        limit = self.body_limit(connection.scope["path"])
        if not announced.isdigit() or int(announced) <= limit:
            return None
        return error_response(413, f"The request is larger than the {limit / 2**20:,.4g} MiB accepted here.")

    def body_limit(self, path: str) -> int:
        """Bytes accepted on `path`."""
        if path in UPLOAD_PATHS:
            return self.max_upload_bytes + FORM_OVERHEAD_BYTES
        return MOST_LOGIN_BYTES if path == "/login" else MOST_BODY_BYTES


def wrong_origin(connection: HTTPConnection) -> Response | None:
    """Refuse what another site's page asks for: nobody but our own pages has a reason to send a foreign Origin.

    Programs (curl, the openai client) send neither header. Reads are refused too, because Gradio would let any page
    of this machine, on whatever port, read its answers. A link from elsewhere into the studio still works.
    """
    headers = connection.headers
    method = connection.scope.get("method", "GET")
    origin = headers.get("origin")
    foreign = origin is not None and _origin_host_and_port(origin) != _host_and_port(headers.get("host", ""))
    if headers.get("sec-fetch-site") in {"cross-site", "same-site"}:
        is_link = method in {"GET", "HEAD"} and headers.get("sec-fetch-mode") == "navigate"
        foreign = foreign or not is_link
    if not foreign:
        return None
    return error_response(403, "Requests from other sites are refused.", code="wrong_origin")


def address_of(connection: HTTPConnection) -> str:
    """Address of the client, for the throttle."""
    return connection.client.host if connection.client else ""


def too_many_tries(wait: float) -> Response:
    """429 that says when to come back; `wait` in seconds."""
    seconds = int(wait) + 1
    message = f"Too many wrong passwords. Try again in {seconds} s."
    return error_response(429, message, code="too_many_tries", headers={"Retry-After": str(seconds)})


def add_headers(headers: MutableHeaders, path: str) -> None:
    """Security headers; a page that brings a policy of its own keeps it."""
    is_file = path.startswith(("/gradio_api/file", "/file")) or (
        path.startswith("/v1/files/") and path.endswith("/content")
    )
    headers.setdefault("Content-Security-Policy", FILE_POLICY if is_file else PAGE_POLICY)
    for name, value in HEADERS.items():
        headers.setdefault(name, value)
    if path.startswith(("/v1/", "/login")):
        headers.setdefault("Cache-Control", "no-store")


def is_named_by_content(scope: Scope) -> bool:
    """Whether other content would have another address: the page's scripts and styles, and the theme with its hash."""
    path, query = str(scope["path"]), bytes(scope.get("query_string", b""))
    return path.startswith("/assets/") or (path == "/theme.css" and query.startswith(b"v="))


def wants_page(connection: HTTPConnection) -> bool:
    """Whether a person's browser is opening a page (and not a program calling the API)."""
    path, method = connection.scope["path"], connection.scope.get("method", "")
    is_api = path.startswith(("/v1/", "/gradio_api/"))
    return method in {"GET", "HEAD"} and not is_api and "text/html" in connection.headers.get("accept", "")


def _as_text(token: str) -> str:
    """A header's text as it was meant: clients send UTF-8, ASGI servers read it as Latin-1."""
    try:
        return token.strip().encode("latin-1").decode("utf-8")
    except UnicodeError:
        return token.strip()


def _hostname(host: str) -> str:
    """The name in a Host header, without its port; empty when it cannot be read."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _host_and_port(host: str) -> tuple[str, int | None]:
    """Name and port of a Host header. Both default ports count as none: a proxy may end TLS before us."""
    try:
        parts = urlsplit(f"//{host}")
        return (parts.hostname or "").lower(), None if parts.port in {80, 443} else parts.port
    except ValueError:
        return "", None


def _origin_host_and_port(origin: str) -> tuple[str, int | None] | None:
    """Host and port of an Origin header; None for `null` and for what cannot be read."""
    scheme, separator, host = origin.partition("://")
    return _host_and_port(host) if separator and scheme in {"http", "https"} else None


def _is_remote(address: str) -> bool:
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False  # a Unix socket or a test client: not an address of the network
    return not (getattr(parsed, "ipv4_mapped", None) or parsed).is_loopback
