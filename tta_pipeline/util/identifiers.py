"""Names: of benchmarks, experiments and models in a file, and of images and classes that are read."""

import keyword
import os
import re
import sys
from collections import Counter
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import TypeVar

from tta_pipeline.errors import PipelineError

MAX_NAME_LENGTH = 100
"""Longest name in characters; file names add a suffix to it, and file systems allow 255 bytes."""
NAME_PATTERN = r"^[A-Za-z][A-Za-z0-9_]*$"
BENCHMARK_NAME_PATTERN = r"^[A-Za-z][A-Za-z0-9_]{0,99}(/[A-Za-z][A-Za-z0-9_]{0,99})?$"
"""Names of benchmarks: the name of the file, or `<file>/<dataset>` for one of several datasets in it."""
_RESERVED_NAMES = {"added", "benchmarks", "results", "text_features", *map(str.lower, keyword.kwlist)} | {
    "context", "conf", "config", "meta", "arg_dict", "dict", "input_arg_dict", "output_arg_dict", "int", "str", "float",
    "bool", "input", "output", "type",
}  # fmt: skip
"""Reserved names: the first four are folders of the data root; Dagster accepts none of the others as a group name."""


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


T = TypeVar("T", bound=Hashable)


def require_unicode(name: str, *, of: Path | str, error: type[PipelineError]) -> None:
    """Refuse a *name*, read from the file system or an archive, whose bytes are not UTF-8.

    Args:
        name: Name as Python reads it, with surrogates for the bytes that are not UTF-8.
        of: Archive or folder that contains the name.
        error: Type of the error that is raised.
    """
    if name.isascii():  # nearly all names are, and there are millions
        return
    where = str(of).encode("utf-8", "backslashreplace").decode()
    if sentence := misread_sentence(name):
        raise error(f"{where}: found {sentence}")
    try:
        name.encode()
    except UnicodeEncodeError:
        found = name.encode("utf-8", "surrogateescape")
        raise error(
            f"{where}: the name {found!r} is not UTF-8; expected names of images and classes in UTF-8: rename it, for "
            "example with `convmv -f latin1 -t utf8 --notest`, and if it is in an archive, repack the archive"
        ) from None


def misread_sentence(name: str) -> str:
    """Return what to do if *name*, of a file, is in UTF-8 and Python reads names in another encoding, or no text."""
    encoding = sys.getfilesystemencoding()
    if encoding == "utf-8":
        return ""
    try:
        read = os.fsencode(name).decode()
    except UnicodeError:
        return ""
    return (
        f"the name {read!r} in UTF-8, and Python reads names as {encoding} here; expected UTF-8: "
        "type export PYTHONUTF8=1, and the command again"
    )


def natural_order(name: str) -> tuple[list[str | int], str]:
    """Return a key that sorts names by the numbers in them, so that `s-9.tar` comes before `s-10.tar`."""
    parts = re.split("([0-9]+)", name)  # text and digits in turn
    return [int(part) if number % 2 else part for number, part in enumerate(parts)], name


def find_duplicates(values: Iterable[T]) -> list[T]:
    """Return each of *values* that occurs more than once, in order of its first occurrence."""
    return [value for value, count in Counter(values).items() if count > 1]
