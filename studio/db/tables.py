"""The tables. Status words and legal moves of a run are in `studio.runs`; what a run said is in `events`."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    DateTime,
    Dialect,
    Float,
    ForeignKey,
    Index,
    LargeBinary,
    MetaData,
    String,
    Text,
    TypeDecorator,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

NAMES = {
    "ix": "ix_%(column_0_N_label)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


class Moment(TypeDecorator[datetime]):
    """A UTC time: aware in Python on every database."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """SQLite gives back naive times; they were UTC."""
        return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value


def now() -> datetime:
    """The present moment, UTC."""
    return datetime.now(UTC)


class Base(DeclarativeBase):
    """Common metadata, so that every constraint has a name that a migration can drop."""

    metadata = MetaData(naming_convention=NAMES)
    type_annotation_map = {datetime: Moment(), dict[str, Any]: JSON(), list[Any]: JSON()}  # noqa: RUF012 - SQLAlchemy's own hook


class Run(Base):
    """One attempt to train one adapter: what was asked, where it stands, who has it."""

    __tablename__ = "runs"
    __table_args__ = (Index(None, "status", "created_at"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    name: Mapped[str] = mapped_column(String(300), default="")
    status: Mapped[str] = mapped_column(String(20), default="draft")
    spec: Mapped[dict[str, Any]]
    dataset_id: Mapped[str] = mapped_column(String(40), index=True)
    model_id: Mapped[str] = mapped_column(String(300), index=True)
    method: Mapped[str] = mapped_column(String(20))
    created_at: Mapped[datetime] = mapped_column(default=now)
    queued_at: Mapped[datetime | None]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    wanted: Mapped[str] = mapped_column(String(10), default="", doc="'', 'pause' or 'cancel': what a person asked for.")
    phase: Mapped[str] = mapped_column(String(40), default="", doc="The engine's present phase.")
    phase_detail: Mapped[str] = mapped_column(Text, default="")
    step: Mapped[int] = mapped_column(default=0)
    total_steps: Mapped[int] = mapped_column(default=0)
    loss: Mapped[float | None]
    eval_loss: Mapped[float | None]
    best_eval_loss: Mapped[float | None]
    seconds_left: Mapped[float | None] = mapped_column(Float, doc="Estimate from the last steps.")
    error: Mapped[dict[str, Any] | None] = mapped_column(
        JSON, doc="{code, message, advice: [..], exit_code} of a failed run."
    )
    log_tail: Mapped[str] = mapped_column(Text, default="", doc="Last part of the engine's output.")
    events_offset: Mapped[int] = mapped_column(BigInteger, default=0, doc="Bytes of events.jsonl already relayed.")
    attempts: Mapped[int] = mapped_column(default=0, doc="How often a worker has claimed it.")
    worker_id: Mapped[str] = mapped_column(String(80), default="")
    lease_expires_at: Mapped[datetime | None]
    sent_at: Mapped[datetime | None] = mapped_column(doc="When a wake-up message was last sent for it.")
    planned_memory: Mapped[int | None] = mapped_column(BigInteger, doc="Bytes on each device, as planned.")
    user_metadata: Mapped[dict[str, Any] | None] = mapped_column(JSON, doc="`metadata` of the OpenAI-shaped API.")


class RunEvent(Base):
    """One event of a run, keyed by the byte offset at which its line ends."""

    __tablename__ = "events"
    __table_args__ = (Index(None, "run_id", "kind", "offset"),)

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    offset: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    kind: Mapped[str] = mapped_column(String(20))
    step: Mapped[int | None]
    time: Mapped[float]
    data: Mapped[dict[str, Any]]


class Pack(Base):
    """Events of a run that measure something, as columns: `studio.packs`. Made from `events`, never changed."""

    __tablename__ = "packs"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    kind: Mapped[str] = mapped_column(String(20), primary_key=True, doc="step or eval")
    offset: Mapped[int] = mapped_column(BigInteger, primary_key=True, doc="That of the last event in it.")
    names: Mapped[list[Any]] = mapped_column(JSON, doc="Of the columns.")
    data: Mapped[bytes] = mapped_column(LargeBinary, doc="Column after column, 64-bit floats, little-endian.")


class Dataset(Base):
    """An immutable file of rows, stored under its id; its label is free text."""

    __tablename__ = "datasets"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    name: Mapped[str] = mapped_column(String(300))
    filename: Mapped[str] = mapped_column(String(300), doc="As uploaded; only ever shown, never a path.")
    format: Mapped[str] = mapped_column(String(10), doc="jsonl, json, csv or parquet")
    sha256: Mapped[str] = mapped_column(String(64), index=True)
    bytes: Mapped[int] = mapped_column(BigInteger)
    source: Mapped[str] = mapped_column(String(20), default="upload", doc="upload, starter, hub or tasks")
    purpose: Mapped[str] = mapped_column(String(40), default="fine-tune", doc="As in OpenAI's files API.")
    created_at: Mapped[datetime] = mapped_column(default=now)
    status: Mapped[str] = mapped_column(
        String(20), default="checking", doc="fetching, checking, ready, unusable or deleted"
    )
    kind: Mapped[str] = mapped_column(String(20), default="", doc="chat, preference, rated, prompt or text")
    rows: Mapped[int] = mapped_column(default=0)
    usable: Mapped[int] = mapped_column(default=0)
    report: Mapped[dict[str, Any] | None] = mapped_column(JSON, doc="engine.rows.check.Report as JSON")
    error: Mapped[str] = mapped_column(Text, default="")
    origin: Mapped[dict[str, Any] | None] = mapped_column(JSON, doc="Hub id, subset, split and revision")


class Model(Base):
    """A base model that runs can start from: in the data folder, in the Hub cache, or in a folder of this machine."""

    __tablename__ = "models"

    id: Mapped[str] = mapped_column(String(300), primary_key=True, doc="A slug, or the Hub id.")
    name: Mapped[str] = mapped_column(String(300))
    source: Mapped[str] = mapped_column(String(20), doc="starter, folder or hub")
    path: Mapped[str] = mapped_column(
        Text, default="", doc="Folder on this machine; empty while it is only known by its Hub id."
    )
    revision: Mapped[str] = mapped_column(String(80), default="")
    created_at: Mapped[datetime] = mapped_column(default=now)
    status: Mapped[str] = mapped_column(
        String(20), default="checking", doc="checking, fetching, converting, ready or unusable"
    )
    progress: Mapped[float | None] = mapped_column(Float, doc="0 to 1 while fetching or converting")
    facts: Mapped[dict[str, Any] | None] = mapped_column(JSON, doc="studio.models.Facts as JSON")
    error: Mapped[str] = mapped_column(Text, default="")


class Preview(Base):
    """What a model would learn from a dataset as settings render it, worked out once."""

    __tablename__ = "previews"

    dataset_id: Mapped[str] = mapped_column(ForeignKey("datasets.id", ondelete="CASCADE"), primary_key=True)
    model_id: Mapped[str] = mapped_column(ForeignKey("models.id", ondelete="CASCADE"), primary_key=True, index=True)
    way: Mapped[str] = mapped_column(String(400), primary_key=True, doc="How rows are rendered: studio.previews.Way")
    row: Mapped[int] = mapped_column(primary_key=True, default=1, autoincrement=False, doc="The first one shown.")
    status: Mapped[str] = mapped_column(String(20), default="waiting", doc="waiting, ready or failed")
    asked_at: Mapped[datetime] = mapped_column(default=now)
    survey: Mapped[dict[str, Any] | None] = mapped_column(JSON, doc="The file in numbers: engine.inspect_data")
    rows: Mapped[list[Any] | None] = mapped_column(JSON, doc="Rows as tokens: worker.preview.compact")
    error: Mapped[str] = mapped_column(Text, default="")


class Plan(Base):
    """What a run of these settings would need on these devices, worked out once."""

    __tablename__ = "plans"

    id: Mapped[str] = mapped_column(String(40), primary_key=True, doc="studio.plans.key_of")
    dataset_id: Mapped[str] = mapped_column(ForeignKey("datasets.id", ondelete="CASCADE"), index=True)
    model_id: Mapped[str] = mapped_column(ForeignKey("models.id", ondelete="CASCADE"), index=True)
    spec: Mapped[dict[str, Any]]
    devices: Mapped[list[Any]] = mapped_column(JSON, doc="Those that the run would take, as in workers.")
    status: Mapped[str] = mapped_column(String(20), default="waiting", doc="waiting, ready or failed")
    asked_at: Mapped[datetime] = mapped_column(default=now)
    told: Mapped[dict[str, Any] | None] = mapped_column(JSON, doc="engine.plan.report.Plan.told")
    error: Mapped[str] = mapped_column(Text, default="")


class Worker(Base):
    """A process that serves a queue; silent for a lease's length means gone."""

    __tablename__ = "workers"

    id: Mapped[str] = mapped_column(String(80), primary_key=True)
    host: Mapped[str] = mapped_column(String(255))
    queue: Mapped[str] = mapped_column(String(20))
    started_at: Mapped[datetime] = mapped_column(default=now)
    seen_at: Mapped[datetime] = mapped_column(default=now)
    devices: Mapped[list[Any]] = mapped_column(JSON, default=list, doc="[{name, kind, total_bytes, used_bytes}]")
    address: Mapped[str] = mapped_column(String(40), default="", doc="Where other hosts reach it; empty: they do not.")


class DeviceLease(Base):
    """A claim on one device; the primary key makes a second claim impossible, the expiry makes a dead one harmless."""

    __tablename__ = "leases"

    device: Mapped[str] = mapped_column(String(255), primary_key=True, doc="<host>/cpu or <host>/cuda:0")
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    worker_id: Mapped[str] = mapped_column(String(80))
    expires_at: Mapped[datetime]


class Member(Base):
    """A host's part in a run that a worker on another host leads; kept until the run is claimed again."""

    __tablename__ = "members"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    place: Mapped[int] = mapped_column(
        primary_key=True, autoincrement=False, doc="Which host it is; the leader's is 0."
    )
    host: Mapped[str] = mapped_column(String(255))
    worker_id: Mapped[str] = mapped_column(String(80), index=True, doc="Who is to take part.")
    leader: Mapped[str] = mapped_column(String(80), doc="The claim on the run that it belongs to.")
    holder: Mapped[str] = mapped_column(String(80), doc="Its own claim on its devices.")
    device: Mapped[str] = mapped_column(Text, doc="Names of the devices, as in leases.")
    hosts: Mapped[int] = mapped_column(doc="Of the run, the leader's included.")
    endpoint: Mapped[str] = mapped_column(String(80), default="", doc="address:port where the hosts meet.")
    key: Mapped[str] = mapped_column(String(80), default="", doc="The word that stands in the run's folder too.")
    status: Mapped[str] = mapped_column(
        String(20), default="asked", doc="asked, called (the leader is ready), joined, leaving or ended"
    )
    exit_code: Mapped[int | None]
    error: Mapped[str] = mapped_column(Text, default="", doc="Why it could not take part.")
