"""Base models: found in the data folder and the Hub's cache, added from a folder or the Hub, searched for there."""

import re
import secrets
from pathlib import Path
from typing import Any

import httpx
import huggingface_hub
from huggingface_hub import constants
from huggingface_hub.errors import CacheNotFound, HfHubHTTPError
from pydantic import BaseModel
from sqlalchemy import delete as remove
from sqlalchemy import exists, select
from sqlalchemy.orm import Session

from studio.db.tables import Model, Preview, Run, now
from studio.errors import Conflict, Invalid, NotFound, Unavailable
from studio.facts import Facts, read_facts
from studio.labels import shortened
from studio.storage import MODEL_SLUG, Storage

__all__ = [
    "Facts",
    "Found",
    "add_folder",
    "add_hub",
    "agree_on_bridge",
    "delete",
    "facts",
    "get",
    "list_models",
    "scan",
    "search_hub",
]

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
SEARCH_SECONDS = 3.0


class Found(BaseModel):
    """A model that the Hub knows."""

    id: str
    downloads: int = 0
    likes: int = 0
    gated: bool = False
    licence: str = ""


def scan(session: Session, storage: Storage) -> list[Model]:
    """Add the models that lie in the data folder and in the Hub's cache, and drop those whose folder is gone.

    Returns the new ones, status `checking`; send "check_model" for each after the commit. A folder that no run can
    start from is listed as `unusable` with the reason.
    """
    known = {model.path: model for model in session.scalars(select(Model)) if model.path}
    for place, model in known.items():
        if model.status == "ready" and not Path(place).is_dir():
            model.status, model.error = "unusable", f"Its folder {place} is gone."
    new = []
    for path in sorted(storage.models.iterdir()) if storage.models.is_dir() else []:
        fresh = str(path) not in known and session.get(Model, path.name) is None
        if path.is_dir() and MODEL_SLUG.fullmatch(path.name) and fresh:
            found = Model(id=path.name, name=path.name, source="folder", path=str(path), created_at=now())
            new.append(_looked_at(session, found))
    for hub_id, revision, path in _cached():
        stored = session.get(Model, hub_id)
        if stored is None:
            new.append(
                _looked_at(
                    session,
                    Model(id=hub_id, name=hub_id, source="hub", path=str(path), revision=revision, created_at=now()),
                )
            )
        elif stored.status == "unusable" and stored.path != str(path):
            stored.path, stored.revision = str(path), revision
            new.append(_looked_at(session, stored))
    session.flush()
    return [model for model in new if model.status == "checking"]


def _looked_at(session: Session, model: Model) -> Model:
    try:
        found = read_facts(Path(model.path))
        model.facts, model.status, model.error = found.model_dump(), "checking", ""
    except Invalid as error:
        model.facts, model.status, model.error = (
            Facts(trainable=False, why_not=error.message).model_dump(),
            "unusable",
            error.message,
        )
    session.add(model)
    return model


def _cached() -> list[tuple[str, str, Path]]:
    """(Hub id, revision, folder) of each model in the Hub's cache that has a config; the newest revision of each."""
    try:
        cache = huggingface_hub.scan_cache_dir(constants.HF_HUB_CACHE)  # by default, where it was at the first import
    except (CacheNotFound, OSError, ValueError):  # none, unreadable, or a file in its place
        return []
    found = []
    for repo in sorted(cache.repos, key=lambda repo: repo.repo_id):
        if repo.repo_type != "model" or not repo.revisions:
            continue
        newest = max(repo.revisions, key=lambda revision: revision.last_modified)
        if (newest.snapshot_path / "config.json").exists():
            found.append((repo.repo_id, newest.commit_hash, newest.snapshot_path))
    return found


def add_folder(session: Session, path: str | Path) -> Model:
    """A model in a folder of this machine, status `checking`; send "check_model" after the commit.

    Raises Invalid, with the reason, for a folder that no run can start from. Adding a folder again checks it again.
    """
    try:
        folder = Path(path).expanduser()
    except RuntimeError:  # a ~name of nobody
        folder = Path(path)
    if not str(path).strip() or "\x00" in str(path) or not folder.is_dir():
        raise Invalid(f"There is no folder {str(path)[:300]!r} on this machine.", code="no_such_folder", param="path")
    folder = folder.resolve()
    found = read_facts(folder)
    model = session.scalar(select(Model).where(Model.path == str(folder)))
    if model is None:
        name = shortened(folder.name) or "model"
        model = Model(id=_free_slug(session, name), name=name, source="folder", path=str(folder), created_at=now())
        session.add(model)
    model.facts, model.status, model.error = found.model_dump(), "checking", ""
    session.execute(remove(Preview).where(Preview.model_id == model.id))  # its files may be others now
    session.flush()
    return model


def _free_slug(session: Session, name: str) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:50].strip("-") or "model"
    while session.get(Model, slug) is not None:
        slug = f"{slug[:50]}-{secrets.token_hex(3)}"
    return slug


def add_hub(session: Session, hub_id: str, revision: str = "") -> Model:
    """A model of the Hub, status `fetching`; send "fetch_model" after the commit. Harmless for one that is here."""
    hub_id = hub_id.strip().removeprefix("https://huggingface.co/").rstrip("/")
    if not HUB_ID.fullmatch(hub_id) or ".." in hub_id:
        raise Invalid(f"{hub_id[:100]!r} is not a model id of the Hub; it looks like owner/name.", param="hub_id")
    model = session.get(Model, hub_id)
    if model is None:
        model = Model(id=hub_id, name=hub_id, source="hub", revision=revision, created_at=now(), status="unusable")
        session.add(model)
    if model.status == "unusable":
        model.status, model.error, model.progress = "fetching", "", 0.0
        model.facts = Facts(cached=False).model_dump()
    session.flush()
    return model


def search_hub(text: str, limit: int = 20) -> list[Found]:
    """Language models of the Hub whose name fits, most downloaded first.

    Raises Unavailable at once with HF_HUB_OFFLINE set, and within some seconds when the Hub does not answer.
    """
    if constants.HF_HUB_OFFLINE:
        raise Unavailable("This machine is set to work offline (HF_HUB_OFFLINE); the Hub is not asked.", code="offline")
    params: dict[str, Any] = {
        "search": text[:200],
        "pipeline_tag": "text-generation",
        "sort": "downloads",
        "limit": limit,
        "full": "true",
    }
    try:
        answer = httpx.get(
            f"{constants.ENDPOINT}/api/models",
            params=params,
            timeout=SEARCH_SECONDS,
            follow_redirects=True,
        )
        answer.raise_for_status()
        listed = answer.json()
    except (httpx.HTTPError, HfHubHTTPError, ValueError) as error:
        raise Unavailable(
            "The Hub cannot be reached from here; models on this machine can be used.", code="offline"
        ) from error
    return [_found(entry) for entry in listed if isinstance(entry, dict) and entry.get("id")]


def _found(entry: dict[str, Any]) -> Found:
    tags = [tag for tag in entry.get("tags") or () if isinstance(tag, str)]
    named = next((tag.removeprefix("license:") for tag in tags if tag.startswith("license:")), "")
    return Found(
        id=str(entry["id"]),
        downloads=int(entry.get("downloads") or 0),
        likes=int(entry.get("likes") or 0),
        gated=bool(entry.get("gated")),
        licence=named,
    )


def get(session: Session, model_id: str) -> Model:
    """The model of this id; NotFound when there is none."""
    model = session.get(Model, model_id)
    if model is None:
        raise NotFound(f"There is no model {model_id[:300]!r}.")
    return model


def list_models(session: Session) -> list[Model]:
    """All models: usable ones first, then by name."""
    found = list(session.scalars(select(Model)))
    return sorted(found, key=lambda model: (model.status == "unusable", model.name.lower()))


def facts(model: Model) -> Facts:
    """The facts as far as they are known."""
    return Facts.model_validate(model.facts or {"cached": False})


def delete(session: Session, model_id: str) -> None:
    """Forget a model; its files stay. Conflict while a run that needs it has not ended."""
    model = get(session, model_id)
    waiting = ("queued", "preparing", "running", "paused")
    if session.scalar(select(exists().where(Run.model_id == model.id, Run.status.in_(waiting)))):
        raise Conflict(f"A run that has not ended needs the model {model.name!r}; cancel it first.")
    session.delete(model)
    session.flush()


def agree_on_bridge(session: Session, model: Model, *, agreed: bool) -> None:
    """Remember that a person wants the thought closed that the model's chat template opens, or does not."""
    model.facts = {**facts(model).model_dump(), "bridge": agreed}
