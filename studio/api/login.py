"""The login page: one form."""

from html import escape
from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from studio.api.guard import MOST_LOGIN_BYTES, address_of
from studio.api.plain import page
from studio.auth import SESSION_SECONDS, Gate

_FORM = """<p>This studio is protected by a password.</p>
{problem}<form method="post" action="/login">
<input type="hidden" name="next" value="{next}">
<input type="text" name="username" value="atelier" autocomplete="username" hidden>
<label for="password">Password</label>
<input id="password" name="password" type="password" autocomplete="current-password" required autofocus{invalid}>
<button type="submit">Log in</button>
</form>
"""


def login_page(after: str, problem: str = "", status: int = 200, headers: dict[str, str] | None = None) -> HTMLResponse:
    """The form; `after` is where to go once logged in, `problem` what went wrong with the last try."""
    alert = f'<p role="alert" id="problem">{escape(problem)}</p>\n' if problem else ""
    invalid = ' aria-invalid="true" aria-describedby="problem"' if problem else ""
    form = _FORM.format(problem=alert, next=escape(after, quote=True), invalid=invalid)
    return page("Log in", "Atelier", form, status, headers)


def safe_next(target: str) -> str:
    """A path of this studio to go to, or `/`: never another site."""
    is_path = target.startswith("/") and not target.startswith(("//", "/\\", "/login", "/logout"))
    return target if is_path and target.isprintable() and "\\" not in target else "/"


def make_router(gate: Gate) -> APIRouter:
    """`/login` and `/logout`; without a password both lead to the first page."""
    router = APIRouter(include_in_schema=False, max_body_size=MOST_LOGIN_BYTES)

    @router.get("/login")
    def show(request: Request, next: str = "/") -> Response:
        """The form, or straight on for somebody who is logged in."""
        after = safe_next(next)
        if not gate.needed or gate.session_is_valid(request.cookies.get(gate.cookie_name, "")):
            return RedirectResponse(after, 303)
        return login_page(after)

    @router.post("/login")
    async def log_in(request: Request) -> Response:
        """Checks the password and hands out the session cookie."""
        form = parse_qs((await request.body()).decode("utf-8", "replace"))
        after = safe_next(form.get("next", ["/"])[0])
        if not gate.needed:
            return RedirectResponse(after, 303)
        address = address_of(request)
        if (wait := gate.throttle.seconds_to_wait(address)) > 0:
            seconds = int(wait) + 1
            problem = f"Too many wrong passwords. Try again in {seconds} s."
            return login_page(after, problem, 429, {"Retry-After": str(seconds)})
        if not gate.try_password(form.get("password", [""])[0], address):
            return login_page(after, "That is not the password.", 401)
        response = RedirectResponse(after, 303)
        response.set_cookie(
            gate.cookie_name,
            gate.new_session(),
            max_age=SESSION_SECONDS,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return response

    @router.post("/logout")
    def log_out(request: Request) -> Response:
        """Ends the session here and in the browser."""
        if not gate.needed:
            return RedirectResponse("/", 303)
        gate.end_session(request.cookies.get(gate.cookie_name, ""))
        response = RedirectResponse("/login", 303)
        response.delete_cookie(gate.cookie_name, httponly=True, samesite="strict")
        return response

    return router
