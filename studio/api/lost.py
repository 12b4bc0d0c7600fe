"""What a person sees at an address where nothing is; programs get the error as JSON."""

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from studio.api.guard import wants_page
from studio.api.plain import page

_BODY = """<p>Nothing is at this address. It may be mistyped, or what it named is gone.</p>
<nav aria-label="Pages">
<a href="/">Train</a><a href="/runs">Runs</a><a href="/compare">Compare</a><a href="/datasets">Datasets</a>
<a href="/models">Models</a><a href="/docs">API</a>
</nav>
"""


class Lost:
    """ASGI middleware: a browser that opens a page which does not exist gets one that says so."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http" or not wants_page(HTTPConnection(scope)):
            await self.app(scope, receive, send)
            return
        lost = False

        async def send_page(message: Message) -> None:
            nonlocal lost
            lost = lost or (message["type"] == "http.response.start" and message["status"] == 404)
            if not lost:
                await send(message)

        await self.app(scope, receive, send_page)
        if lost:
            await page("Not found", "There is no such page", _BODY, 404)(scope, receive, send)
