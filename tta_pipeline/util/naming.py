"""Names in a benchmark file: of benchmarks, experiments, models and transforms."""

import keyword
import re
from typing import Annotated

from pydantic import Field

MAX_NAME_LENGTH = 100
"""Longest name in characters; file names add a suffix to it, and file systems allow 255 bytes."""
NAME_PATTERN = r"^[A-Za-z][A-Za-z0-9_]*$"
BENCHMARK_NAME_PATTERN = r"^[A-Za-z][A-Za-z0-9_]{0,99}(/[A-Za-z][A-Za-z0-9_]{0,99})?$"
"""Names of benchmarks: the name of the file, or `<file>/<shift set>` for one of several shift sets in it."""
Name = Annotated[str, Field(pattern=NAME_PATTERN, max_length=MAX_NAME_LENGTH)]
_RESERVED_NAMES = {"benchmarks", "text_features", *map(str.lower, keyword.kwlist)} | {
    "context", "conf", "config", "meta", "arg_dict", "dict", "input_arg_dict", "output_arg_dict", "int", "str", "float",
    "bool", "input", "output", "type",
}  # fmt: skip
"""Reserved names: the first two are folders of the data root; Dagster accepts none of the others as a group name."""


def is_name(text: str) -> bool:
    """Return whether *text* is a `Name`."""
    return re.fullmatch(NAME_PATTERN, text) is not None and "\n" not in text and len(text) <= MAX_NAME_LENGTH


def is_benchmark_name(text: str) -> bool:
    """Return whether *text* can be the name of a benchmark: a `Name` without a `name_problem`."""
    return is_name(text) and name_problem(text) is None


def name_problem(name: str) -> str | None:
    """Return why *name*, a `Name`, cannot name a benchmark; None if it can."""
    if name.lower() in _RESERVED_NAMES:
        return f"name is {name!r}, which the data root or Dagster uses itself; expected another name"
    if "__" in name:
        return f"name is {name!r}; expected no two underscores in a row, which separate names in Dagster"
    return None
