"""The base of everything that people write in a benchmark file."""

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


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
