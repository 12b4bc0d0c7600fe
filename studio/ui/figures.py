"""Numbers as people read them: separators, units, and words for time."""

import math
from datetime import UTC, datetime

from studio.ui.texts import text

KIB = 1024
MINUTE = 60.0
HOUR = 3600.0
DAY = 86400.0


def count(number: float) -> str:
    """1234567 as 1,234,567."""
    return f"{number:,.0f}"


def size(number: float | None) -> str:
    """Bytes as KiB, MiB or GiB, three figures at most."""
    if number is None:
        return text("figure.unknown")
    value, unit = float(number), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < KIB or unit == "TiB":
            break
        value /= KIB
    digits = 0 if unit == "B" or value >= 100 else 1
    return f"{value:,.{digits}f} {unit}"


def parameters(number: float | None) -> str:
    """134515008 as 135 M parameters."""
    if not number:
        return ""
    for limit, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if number >= limit:
            value = number / limit
            return text("figure.parameters", number=f"{value:.0f}" if value >= 100 else f"{value:.3g}", unit=unit)
    return text("figure.parameters", number=count(number), unit="").replace("  ", " ")


def small(number: float | None) -> str:
    """A loss or a norm: three decimals near one, three figures elsewhere."""
    if number is None or not math.isfinite(number):
        return text("figure.none")
    if number == 0:
        return "0"
    if 0.01 <= abs(number) < 100:
        return f"{number:.3f}"
    return scientific(number) if abs(number) < 0.01 else f"{number:,.1f}"


def reward(loss: float | None) -> str:
    """The mean reward that an eval loss of GRPO is the negative of."""
    return small(None if loss is None else 0.0 - loss)


def scientific(number: float | None) -> str:
    """0.00013 as 1.3e-4."""
    if number is None or not math.isfinite(number):
        return text("figure.none")
    if number == 0:
        return "0"
    mantissa, exponent = f"{number:.2e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".")
    return f"{mantissa}e{int(exponent)}"


def value(setting: object) -> str:
    """A setting as text: yes and no for switches, short numbers, names joined by commas."""
    if isinstance(setting, bool):
        return text("figure.yes") if setting else text("figure.no")
    if isinstance(setting, float):
        return scientific(setting) if setting and abs(setting) < 0.001 else f"{setting:g}"
    if isinstance(setting, int):
        return count(setting)
    if isinstance(setting, list):
        return ", ".join(str(item) for item in setting)
    return str(setting) if setting not in ("", None) else text("figure.none")


def duration(seconds: float | None) -> str:
    """75.2 as 1 min 15 s; exact enough to plan with, never a long fraction."""
    if seconds is None or not math.isfinite(seconds):
        return text("figure.none")
    if seconds < MINUTE:
        return text("time.seconds", n=max(round(seconds), 0))
    if seconds < HOUR:
        minutes, rest = divmod(round(seconds), 60)
        return text("time.minutes_seconds", minutes=minutes, seconds=rest) if rest else text("time.minutes", n=minutes)
    hours, rest = divmod(round(seconds / MINUTE), 60)
    return text("time.hours_minutes", hours=hours, minutes=rest)


def roughly(seconds: float) -> str:
    """An estimate: whole minutes, or a few seconds."""
    if seconds < MINUTE:
        return text("time.seconds", n=max(5 * math.ceil(seconds / 5), 5))
    if seconds < HOUR:
        return text("time.minutes", n=round(seconds / MINUTE))
    hours, rest = divmod(round(seconds / MINUTE), 60)
    return text("time.hours_minutes", hours=hours, minutes=rest)


def age(moment: datetime | None, now: datetime | None = None) -> str:
    """How long ago: just now, 2 min ago, 3 h ago, 4 days ago."""
    if moment is None:
        return text("figure.none")
    seconds = ((now or datetime.now(UTC)) - moment).total_seconds()
    if seconds < MINUTE:
        return text("age.now")
    if seconds < HOUR:
        return text("age.minutes", n=int(seconds // MINUTE))
    if seconds < DAY:
        return text("age.hours", n=int(seconds // HOUR))
    return text("age.days", n=int(seconds // DAY)) if seconds >= 2 * DAY else text("age.day")
