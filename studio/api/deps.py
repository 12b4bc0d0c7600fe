"""What every route needs: the studio behind the request, and lists that are read page by page."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Generic, Literal, TypeVar

from fastapi import Depends, Query, Request
from pydantic import BaseModel

from studio.context import Studio

Item = TypeVar("Item", bound=BaseModel)


def get_studio(request: Request) -> Studio:
    """The studio that `build_app` put into the app."""
    studio: Studio = request.app.state.studio
    return studio


TheStudio = Annotated[Studio, Depends(get_studio)]
After = Annotated[str | None, Query(max_length=300, description="Id of the last object of the page before.")]
Limit = Annotated[int, Query(ge=1, le=1000, description="Most objects on this page.")]


class Page(BaseModel, Generic[Item]):
    """A part of a list; `last_id` is the `after` of the next part."""

    object: Literal["list"] = "list"
    data: Sequence[Item]
    first_id: str | None = None
    last_id: str | None = None
    has_more: bool = False


def page_of(found: Iterable[tuple[str, Item]], limit: int) -> Page[Item]:
    """The first `limit` of (id, object) pairs; give one more than `limit` so that `has_more` is known."""
    rows = list(found)
    shown = rows[:limit]
    first, last = (shown[0][0], shown[-1][0]) if shown else (None, None)
    return Page(data=[item for _, item in shown], first_id=first, last_id=last, has_more=len(rows) > limit)
