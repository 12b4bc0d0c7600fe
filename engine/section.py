"""What every group of settings is: frozen, and strict about names. This module imports no torch."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A frozen group of settings; an unknown key is an error, never ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True)
