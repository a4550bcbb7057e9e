"""The base of everything that people write in a benchmark file."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

MOST = 1_000_000_000
"""The largest of all numbers of things that a benchmark file names; databases and tensors count further."""
LARGEST_BATCH = 100_000
"""Samples of a batch."""
Seed = Annotated[int, Field(ge=0, lt=2**63)]
"""What every generator of random numbers takes. -1 and 1 would be one seed to some of them, and two runs in tables."""


class Section(BaseModel):
    """A part of a benchmark file: read-only, and without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_fields(cls, value: Any) -> Any:
        unknown = sorted(set(value) - set(cls.model_fields)) if isinstance(value, dict) else []
        if unknown:
            known = ", ".join(cls.model_fields) or "none, there is nothing to set"
            raise ValueError(f"unknown field {', '.join(unknown)}; expected one of {known}")
        return value
