"""The base class of all parts of a benchmark file."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from tta_pipeline.util.identifiers import MAX_NAME_LENGTH, NAME_PATTERN
from tta_pipeline.util.nearest_names import name_choices

MAX_COUNT = 1_000_000_000
"""Upper limit of every count in a benchmark file, below the limits of databases and tensors."""
MAX_BATCH_SIZE = 100_000
"""Upper limit of the batch size."""
Name = Annotated[str, Field(pattern=NAME_PATTERN, max_length=MAX_NAME_LENGTH)]
"""A name of a dataset, a model or an experiment in a file."""
Seed = Annotated[int, Field(ge=0, lt=2**63)]
"""A seed for any random number generator. Not negative: some generators treat -1 and 1 alike, tables would not."""
_NO_PATH = re.compile(r"pipe:|[A-Za-z][A-Za-z0-9+.-]+:/")
"""Beginning of a command that webdataset would run, or of a URL instead of a path."""


@dataclass(frozen=True)
class IfMissing:
    """Annotation for the reference: what a field is without a value in the file, if its default does not show it."""

    words: str
    """Such as `all of the set`; begins with `required` if only some files may lack the field."""


class ConfigModel(BaseModel):
    """A part of a benchmark file: read-only, and without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
    listed_in: ClassVar[str] = "docs/reference/benchmark/index.md"
    """The page that lists the fields."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_fields(cls, value: Any) -> Any:
        unknown = sorted(set(value) - set(cls.model_fields)) if isinstance(value, dict) else []
        if unknown:
            choices = name_choices(unknown, cls.model_fields, listed_in=cls.listed_in)
            expected = f"one of {choices}" if cls.model_fields else "none, since there is nothing to set"
            raise ValueError(f"unknown field {', '.join(unknown)}; expected {expected}")
        return value

    @field_validator("*", mode="after")
    @classmethod
    def _refuse_commands_and_urls(cls, value: Any) -> Any:
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, Path):
                _require_path(each)
        return value

    def require_one(self, what: str, *, of: tuple[str, ...]) -> None:
        """Raise an error unless exactly one of the fields *of* is set.

        Raises:
            ValueError: none or several are; the message calls this model *what*.
        """
        given = [name for name in of if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"the {what} has {', '.join(given) or 'no selection'}; expected exactly one of {', '.join(of)}"
            )


def _require_path(path: Path) -> None:
    if _NO_PATH.match(str(path)):
        raise ValueError(f"found {str(path)!r}; expected a path, not a command or a URL")
    try:
        path.expanduser()
    except RuntimeError:
        raise ValueError(
            f"found {str(path)!r}, but no user of this machine has the name after ~; expected a path: write it in full"
        ) from None
