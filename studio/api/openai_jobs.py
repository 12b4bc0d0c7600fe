"""OpenAI's fine-tuning job <-> our run: what a job asks for as a RunSpec, and a run told as a job. No routes."""

from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from sqlalchemy import select
from sqlalchemy.orm import Session

from engine.spec import DPO, Optimizer, RunSpec
from studio import runs
from studio.db.tables import Dataset, Run, RunEvent, now
from studio.errors import Invalid

JobStatus = Literal["validating_files", "queued", "running", "paused", "succeeded", "failed", "cancelled"]
STATUS: dict[str, JobStatus] = {
    "draft": "queued",
    "queued": "queued",
    "preparing": "running",
    "running": "running",
    "paused": "paused",
    "succeeded": "succeeded",
    "failed": "failed",
    "cancelled": "cancelled",
}
METHODS_HERE = {"supervised": "sft", "dpo": "dpo"}  # OpenAI's names and ours
DEFAULT_RATE = Optimizer().learning_rate
RESULTS_PREFIX = "results-"  # + the run id: the metrics of a run, as a file of the files API

Key = Annotated[str, StringConstraints(max_length=64)]
Text = Annotated[str, StringConstraints(max_length=512)]
Metadata = Annotated[dict[Key, Text], Field(max_length=16)]


class Asked(BaseModel):
    """A part of a request; an unknown key is an error that names it."""

    model_config = ConfigDict(extra="forbid")


class Hyperparameters(Asked):
    """`auto` leaves the choice to the studio, which looks at the data and the model."""

    n_epochs: Literal["auto"] | Annotated[int, Field(ge=1, le=1000)] = Field(
        default="auto", description="Passes over the file."
    )
    batch_size: Literal["auto"] | Annotated[int, Field(ge=1, le=4096)] = Field(
        default="auto", description="Sequences per step."
    )
    learning_rate_multiplier: Literal["auto"] | Annotated[float, Field(gt=0, le=1000)] = Field(
        default="auto", description=f"Times {DEFAULT_RATE:g}, the default learning rate."
    )


class Supervised(Asked):
    """Settings of supervised fine-tuning."""

    hyperparameters: Hyperparameters = Hyperparameters()


class PreferenceHyperparameters(Hyperparameters):
    """Those of every method, and how strongly the model is held to where it started."""

    beta: Literal["auto"] | Annotated[float, Field(gt=0, le=100)] = "auto"


class Preference(Asked):
    """Settings of direct preference optimisation."""

    hyperparameters: PreferenceHyperparameters = PreferenceHyperparameters()


class Method(Asked):
    """How the file is learned from."""

    type: Literal["supervised", "dpo", "reinforcement"] = "supervised"
    supervised: Supervised | None = None
    dpo: Preference | None = None
    reinforcement: dict[str, Any] | None = None


class JobRequest(Asked):
    """Body of `POST /v1/fine_tuning/jobs`."""

    model: str = Field(
        min_length=1, max_length=300, description="Id of a base model, or of a finished job to go on from."
    )
    training_file: str = Field(min_length=1, max_length=300, description="Id of an uploaded file.")
    validation_file: str | None = Field(
        default=None, description="Not supported: a share of the training file is held out instead. Leave it out."
    )
    suffix: str | None = Field(default=None, max_length=64, description="A label; it becomes the run's name.")
    seed: int | None = Field(default=None, ge=0, le=2**32 - 1)
    hyperparameters: Hyperparameters | None = Field(
        default=None, description="Older place of method.supervised.hyperparameters."
    )
    method: Method | None = None
    metadata: Metadata | None = None
    integrations: list[dict[str, Any]] | None = Field(default=None, description="Not supported; leave it out.")


class UsedHyperparameters(BaseModel):
    """What a run is really trained with; the multiplier is against the default learning rate."""

    n_epochs: int | float
    batch_size: int
    learning_rate_multiplier: float


class UsedSupervised(BaseModel):
    """Settings of supervised fine-tuning, as used."""

    hyperparameters: UsedHyperparameters


class UsedPreferenceHyperparameters(UsedHyperparameters):
    """Those of every method, and the beta."""

    beta: float


class UsedPreference(BaseModel):
    """Settings of direct preference optimisation, as used."""

    hyperparameters: UsedPreferenceHyperparameters


class UsedMethod(BaseModel):
    """How the file is learned from."""

    type: Literal["supervised", "dpo"] = "supervised"
    supervised: UsedSupervised | None = None
    dpo: UsedPreference | None = None


class JobError(BaseModel):
    """Why a job failed; all empty when it did not."""

    code: str
    message: str
    param: str | None = None


class Job(BaseModel):
    """`fine_tuning.job`: a run as OpenAI's clients read it."""

    id: str
    object: Literal["fine_tuning.job"] = "fine_tuning.job"
    created_at: int
    finished_at: int | None
    estimated_finish: int | None
    model: str
    fine_tuned_model: str | None
    organization_id: str = "atelier"
    status: JobStatus
    training_file: str
    validation_file: str | None = None
    result_files: list[str]
    trained_tokens: int | None
    seed: int
    suffix: str | None
    error: JobError | None
    hyperparameters: UsedHyperparameters
    method: UsedMethod
    metadata: dict[str, Any] | None
    integrations: list[dict[str, Any]] = []


def check_supported(request: JobRequest) -> None:
    """Raise Invalid for what OpenAI's API knows and this studio does not do, instead of ignoring it."""
    if request.validation_file:
        raise Invalid(
            "A validation file of its own is not supported: a share of the training file is held out and measured.",
            param="validation_file",
            advice="Leave it out, or set data.eval_fraction through POST /v1/runs.",
        )
    if request.method is not None and request.method.type not in METHODS_HERE:
        raise Invalid(
            f"The method {request.method.type} is not supported; use {' or '.join(METHODS_HERE)}.", param="method.type"
        )
    if request.integrations:
        raise Invalid("Integrations are not supported; leave them out.", param="integrations")


def asked_hyperparameters(request: JobRequest) -> Hyperparameters:
    """The hyperparameters from wherever the request has them; `method` wins over the older place."""
    method = request.method or Method()
    own = {"supervised": method.supervised, "dpo": method.dpo}.get(method.type)
    if own is not None:
        return own.hyperparameters
    return request.hyperparameters or Hyperparameters()


def spec_of(request: JobRequest, suggested: RunSpec) -> RunSpec:
    """What the job asks for, on top of the settings the studio suggests for this file and model.

    `suggested` names the model and the dataset. Raises Invalid for what is not supported.
    """
    check_supported(request)
    asked = asked_hyperparameters(request)
    training: dict[str, Any] = {}
    optimizer: dict[str, Any] = {}
    if request.seed is not None:
        training["seed"] = request.seed
    if asked.n_epochs != "auto":
        training |= {"num_train_epochs": float(asked.n_epochs), "max_steps": -1}
    if asked.batch_size != "auto":
        training |= split_batch(asked.batch_size, suggested.training.per_device_train_batch_size)
    if asked.learning_rate_multiplier != "auto":
        optimizer["learning_rate"] = DEFAULT_RATE * asked.learning_rate_multiplier
    values = suggested.model_dump()
    values["training"] |= training
    values["optimizer"] |= optimizer
    values["method"] = method_of(request, suggested)
    values["name"] = request.suffix or suggested.name
    return RunSpec.model_validate(values)


def method_of(request: JobRequest, suggested: RunSpec) -> dict[str, Any]:
    """The method that the job names, supervised where it names none, with its own settings."""
    name = METHODS_HERE[request.method.type if request.method else "supervised"]
    method: dict[str, Any] = suggested.method.model_dump() if suggested.method.type == name else {"type": name}
    asked = asked_hyperparameters(request)
    if isinstance(asked, PreferenceHyperparameters) and asked.beta != "auto":
        method["beta"] = asked.beta
    return method


def split_batch(batch_size: int, fits: int) -> dict[str, int]:
    """Sequences per step as (per device, accumulated): the largest part that divides it and is known to fit."""
    per_device = max(size for size in range(1, min(batch_size, fits) + 1) if batch_size % size == 0)
    return {"per_device_train_batch_size": per_device, "gradient_accumulation_steps": batch_size // per_device}


def seconds(moment: datetime) -> int:
    """Unix time in whole seconds."""
    return int(moment.timestamp())


def job_status(run: Run, dataset: Dataset | None) -> JobStatus:
    """A run's status in OpenAI's words; a queued run whose file is not read through yet is `validating_files`."""
    unread = dataset is not None and dataset.status in runs.PENDING_DATASET
    return "validating_files" if run.status == "queued" and unread else STATUS[run.status]


def trained_tokens(session: Session, run: Run) -> int | None:
    """Tokens with a loss that the finished run has learned from: those of an epoch times the epochs done."""
    if run.finished_at is None:
        return None
    newest = {kind: newest_event(session, run.id, kind) for kind in ("started", "step")}
    started, step = newest["started"], newest["step"]
    if started is None or step is None:
        return 0
    return int(started.data.get("trained_tokens", 0) * step.data.get("epoch", 0.0))


def newest_event(session: Session, run_id: str, kind: str) -> RunEvent | None:
    """The last event of a kind that the run has said."""
    query = select(RunEvent).where(RunEvent.run_id == run_id, RunEvent.kind == kind)
    return session.scalars(query.order_by(RunEvent.offset.desc()).limit(1)).first()


def job_error(run: Run) -> JobError | None:
    """Why the run failed, with what to change."""
    if not run.error:
        return None
    lines = [str(run.error.get("message", "")), *(str(line) for line in run.error.get("advice") or [])]
    return JobError(code=str(run.error.get("code") or "failed"), message=" ".join(line for line in lines if line))


def used(spec: RunSpec) -> UsedHyperparameters:
    """The three settings that OpenAI's API knows."""
    training = spec.training
    epochs = training.num_train_epochs
    return UsedHyperparameters(
        n_epochs=int(epochs) if epochs.is_integer() else epochs,
        batch_size=training.per_device_train_batch_size * training.gradient_accumulation_steps,
        learning_rate_multiplier=round(spec.optimizer.learning_rate / DEFAULT_RATE, 6),
    )


def used_method(spec: RunSpec) -> UsedMethod:
    """The run's method as OpenAI's API tells it; a method that it does not know is told as supervised."""
    common = used(spec)
    if isinstance(spec.method, DPO):
        own = UsedPreferenceHyperparameters(**common.model_dump(), beta=spec.method.beta)
        return UsedMethod(type="dpo", dpo=UsedPreference(hyperparameters=own))
    return UsedMethod(supervised=UsedSupervised(hyperparameters=common))


def job_of(session: Session, run: Run) -> Job:
    """The run as a job."""
    spec = runs.spec_of(run)
    succeeded, ended = run.status == "succeeded", run.finished_at is not None
    ends_at = None if ended or run.seconds_left is None else now() + timedelta(seconds=run.seconds_left)
    return Job(
        id=run.id,
        created_at=seconds(run.created_at),
        finished_at=seconds(run.finished_at) if run.finished_at else None,
        estimated_finish=seconds(ends_at) if ends_at else None,
        model=run.model_id,
        fine_tuned_model=run.id if succeeded else None,
        status=job_status(run, session.get(Dataset, run.dataset_id)),
        training_file=run.dataset_id,
        result_files=[RESULTS_PREFIX + run.id] if succeeded else [],
        trained_tokens=trained_tokens(session, run),
        seed=spec.training.seed,
        suffix=run.name or None,
        error=job_error(run),
        hyperparameters=used(spec),
        method=used_method(spec),
        metadata=run.user_metadata,
    )
