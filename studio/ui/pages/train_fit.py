"""The plan that belongs to what is chosen and set on the Train page."""

from sqlalchemy.orm import Session

from studio import plans
from studio.context import Studio
from studio.db import when_over
from studio.db.tables import Plan
from studio.queue import send_prepare
from studio.ui import chrome
from studio.ui.form import Values
from studio.ui.views.train import Chosen

SOON_SECONDS = 0.3  # from one look to the next while it is made


def plan_of(session: Session, studio: Studio, chosen: Chosen) -> Plan | None:
    """The plan of these settings, asked for where it is new; None while something is missing or still being read."""
    if not wanted(chosen) or chosen.spec is None or reading(chosen):
        return None
    plan, new = plans.ask(session, chosen.spec, chrome.devices(session, studio))
    if plan is not None and new:
        key = plan.id
        when_over(session, committed=lambda: _send(studio, key))
    return plan


def _send(studio: Studio, key: str) -> None:
    send_prepare(studio.celery, "plan", key)


def found(session: Session, studio: Studio, chosen: Chosen) -> Plan | None:
    """The same plan as far as it is there."""
    if not wanted(chosen) or chosen.spec is None:
        return None
    return plans.found(session, chosen.spec, chrome.devices(session, studio))


def wanted(chosen: Chosen) -> bool:
    """Whether there is a run to plan."""
    return chosen.ready and chosen.spec is not None and not chosen.unfit


def reading(chosen: Chosen) -> bool:
    """Whether the rows are still being read, whose lengths the plan needs."""
    return wanted(chosen) and chosen.preview is not None and chosen.preview.status == "waiting"


def waits(plan: Plan | None) -> bool:
    """Whether it is being made."""
    return plan is not None and plan.status == "waiting"


def mark(plan: Plan | None) -> str:
    """Changes whenever there is more of it to see."""
    return f"{plan.id[:8]} {plan.status}" if plan is not None else ""


def repaired(plan: Plan | None, values: Values) -> Values:
    """The form's values with the smallest change that makes the run fit."""
    changes = (plan.told or {}).get("changes") if plan is not None else None
    return values | {name: value for change in changes or () for name, value in change["settings"].items()}
