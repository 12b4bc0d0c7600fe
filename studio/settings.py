"""Settings of this installation, from environment variables named ATELIER_<FIELD> and nowhere else."""

from ipaddress import IPv4Address
from pathlib import Path

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """Read once where a process starts and handed on from there; nothing is built at import time."""

    model_config = SettingsConfigDict(env_prefix="ATELIER_", frozen=True)

    data_dir: Path = Field(
        default_factory=lambda: Path.home() / ".atelier", description="Folder of database, datasets, models and runs."
    )
    database_url: str = Field(
        default="",
        description="SQLAlchemy URL; empty: SQLite (WAL) in the data folder. postgresql+psycopg://... for PostgreSQL.",
    )
    broker_url: str = Field(
        default="", description="Celery broker; empty: files in the data folder. redis://... for Redis."
    )
    host: str = Field(
        default="127.0.0.1", description="Address the web server binds to; any but loopback needs a password."
    )
    port: int = Field(default=7860, ge=0, le=65535, description="Port of the web server.")
    password: SecretStr = Field(
        default=SecretStr(""), description="Asked for in front of every page and route when set."
    )
    max_upload_mib: int = Field(default=2048, ge=1, description="Largest upload, MiB.")
    vllm_url: str = Field(
        default="",
        description="A vLLM server that GRPO runs may sample from, such as http://127.0.0.1:8000 (methods.md); for web "
        "server and workers alike.",
    )
    rendezvous_address: str = Field(
        default="",
        description="IPv4 address by which other hosts reach this one; empty: no run over several hosts uses this one.",
    )
    lease_seconds: float = Field(
        default=30.0, gt=0, description="A worker silent for longer has lost its runs and devices."
    )
    stop_grace_seconds: float = Field(
        default=60.0, ge=0, description="Time a run has to save and end before it is killed."
    )

    @field_validator("broker_url")
    @classmethod
    def broker_has_a_scheme(cls, url: str) -> str:
        """Celery takes a bare word for the host of a broker that nobody meant."""
        if url and "://" not in url:
            raise ValueError("must be an address such as redis://127.0.0.1:6379/0, or empty")
        return url

    @field_validator("rendezvous_address")
    @classmethod
    def address_is_one(cls, address: str) -> str:
        """A name could mean another address on each host; 0.0.0.0 would listen on all of this one's."""
        if address and (IPv4Address(address).is_unspecified or IPv4Address(address).is_multicast):
            raise ValueError("must be one address of this host, by which the others reach it")
        return str(IPv4Address(address)) if address else ""

    @property
    def database(self) -> str:
        """The SQLAlchemy URL in use."""
        return self.database_url or f"sqlite:///{self.data_dir / 'atelier.sqlite'}"

    @property
    def broker_dir(self) -> Path:
        """Folder of the file-based broker."""
        return self.data_dir / "queue"
