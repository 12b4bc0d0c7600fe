"""Who may come in: the password, the session cookie, the slow-down of guessing, and what may be exposed at all."""

import hashlib
import hmac
import ipaddress
import os
import secrets
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from studio.errors import Invalid
from studio.settings import Settings

SESSION_SECONDS = 7 * 24 * 3600
FREE_TRIES = 5  # wrong passwords in a row that cost nothing, so that a typing error does not hurt
LONGEST_WAIT = 60.0  # seconds
FORGET_AFTER = 15 * 60.0  # seconds without a wrong password after which an address starts afresh
MOST_ADDRESSES = 10_000  # remembered at once; the oldest go first


def is_loopback(host: str) -> bool:
    """Whether `host` (a name or an address, without a port) can only mean this machine."""
    name = host.strip("[]").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def has_password(settings: Settings) -> bool:
    """Whether pages and API ask for a password."""
    return bool(settings.password.get_secret_value())


def check_exposure(settings: Settings) -> None:
    """Raise Invalid when the server would answer other machines without asking for a password."""
    if is_loopback(settings.host):
        return
    if not settings.password.get_secret_value().strip():
        raise Invalid(
            f"The address {settings.host} can be reached by other machines, so a password is needed.",
            code="password_needed",
            param="password",
            advice="Set ATELIER_PASSWORD, or bind to 127.0.0.1.",
        )


def read_or_make_key(path: Path) -> bytes:
    """32 random bytes kept in `path` (readable by its owner only); two processes starting at once agree on one key."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".key-")  # made with mode 0600
        fresh = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(secrets.token_bytes(32))
            path.hardlink_to(fresh)
        except FileExistsError:
            pass  # another process was first: its key is the key
        finally:
            fresh.unlink()
    key = path.read_bytes()
    if len(key) < 32:
        raise Invalid(
            f"The key file {path} is damaged.", code="damaged_key", advice="Delete it; everybody logs in again."
        )
    return key


class Throttle:
    """Slows down guessing: after a few wrong passwords an address waits, twice as long after each further one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def seconds_to_wait(self, address: str) -> float:
        """Seconds until this address may try again; 0 when it may now."""
        count, last = self._failures.get(_network(address), (0, 0.0))
        if count < FREE_TRIES:
            return 0.0
        wait = min(LONGEST_WAIT, 2.0 ** (count - FREE_TRIES))
        return max(0.0, last + wait - self._clock())

    def failed(self, address: str) -> None:
        """Note a wrong password."""
        network, now = _network(address), self._clock()
        count, last = self._failures.pop(network, (0, now))
        self._failures[network] = (1 if now - last > FORGET_AFTER else count + 1, now)
        while len(self._failures) > MOST_ADDRESSES:
            self._failures.popitem(last=False)

    def succeeded(self, address: str) -> None:
        """Forget the wrong passwords of this address."""
        self._failures.pop(_network(address), None)


def _network(address: str) -> str:
    """The unit that is slowed down: an IPv4 address, or the /64 that one IPv6 host can choose from."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ipaddress.ip_network((parsed, 64), strict=False)) if parsed.version == 6 else address


class Gate:
    """Checks passwords and session cookies.

    A cookie is `<expiry>.<nonce>.<signature>`. The signing key is made of the key file and the password, so a changed
    password ends all sessions, and so does deleting the key file.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        self.needed = has_password(settings)
        self.throttle = Throttle()
        self._clock = clock
        self._ended: dict[str, int] = {}
        if self.needed:
            key = read_or_make_key(settings.data_dir / "session.key")
            self._compare_key = key
            self._password = self._digest(settings.password.get_secret_value())
            self._key = hmac.digest(key, b"session" + self._password, "sha256")
            self.cookie_name = (
                f"atelier_{hashlib.sha256(key).hexdigest()[:8]}"  # cookies ignore ports: one name per studio
            )

    def _digest(self, text: str) -> bytes:
        return hmac.digest(self._compare_key, text.encode(), "sha256")

    def try_password(self, given: str, address: str) -> bool:
        """Whether `given` is the password, compared in constant time; a wrong one counts against `address`.

        The caller asks `throttle.seconds_to_wait` first.
        """
        right = hmac.compare_digest(self._digest(given), self._password)
        if right:
            self.throttle.succeeded(address)
        else:
            self.throttle.failed(address)
        return right

    def new_session(self) -> str:
        """The value of a fresh session cookie."""
        text = f"{int(self._clock()) + SESSION_SECONDS}.{secrets.token_urlsafe(16)}"
        return f"{text}.{self._sign(text)}"

    def session_is_valid(self, cookie: str) -> bool:
        """Whether the cookie was made here, is not too old and was not logged out."""
        text, _, signature = cookie.rpartition(".")
        if not text or not hmac.compare_digest(signature.encode(), self._sign(text).encode()):
            return False
        return int(text.partition(".")[0]) > self._clock() and text not in self._ended

    def end_session(self, cookie: str) -> None:
        """Log out: the cookie is refused from now on, also when somebody kept a copy (until this process restarts)."""
        if self.session_is_valid(cookie):
            text = cookie.rpartition(".")[0]
            now = self._clock()
            self._ended = {kept: until for kept, until in self._ended.items() if until > now}
            self._ended[text] = int(text.partition(".")[0])

    def _sign(self, text: str) -> str:
        return hmac.new(self._key, text.encode(), "sha256").hexdigest()
