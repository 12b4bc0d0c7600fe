"""`/v1/models`: what a job can start from, and the results of jobs, as OpenAI's models."""

from fastapi import APIRouter
from sqlalchemy.orm import Session

from studio import models, runs
from studio.api.deps import Page, TheStudio, page_of
from studio.api.objects import ModelObject, model_of, result_of
from studio.db.tables import Run
from studio.errors import NotFound

router = APIRouter(prefix="/v1/models", tags=["Models"])
MOST_RESULTS = 1000


def _results(session: Session) -> list[Run]:
    return runs.list_runs(session, status="succeeded", limit=MOST_RESULTS)


@router.get("")
def list_models(studio: TheStudio) -> Page[ModelObject]:
    """Base models, then the results of runs that succeeded, newest first."""
    with studio.session() as session:
        found = [model_of(model) for model in models.list_models(session)]
        found += [result_of(run) for run in _results(session)]
        return page_of(((model.id, model) for model in found), len(found))


@router.get("/{model_id:path}")
def show(studio: TheStudio, model_id: str) -> ModelObject:
    """One model; `model_id` may be a Hub id with its slash."""
    with studio.session() as session:
        if model_id.startswith("run-"):
            run = runs.get(session, model_id)
            if run.status != "succeeded":
                raise NotFound(f"The run {model_id[:80]!r} is {run.status} and has no result.")
            return result_of(run)
        return model_of(models.get(session, model_id))
