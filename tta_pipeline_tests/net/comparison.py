"""Finds the differences between two recordings."""

import difflib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_MOST_LINES = 60


def differences(one: Path, other: Path) -> Iterator[str]:
    """Yield the differences between the recordings in two folders, file by file."""
    names = sorted({path.name for folder in (one, other) for path in folder.glob("*.json")} - {"times.json"})
    for name in names:
        for folder in (one, other):
            if not (folder / name).exists():
                yield f"{name} is not in {folder}"
                break
        else:
            yield from _file(name, *(json.loads((folder / name).read_text()) for folder in (one, other)))


def _file(name: str, one: Any, other: Any) -> Iterator[str]:
    for path, before, after in _values("", one, other):
        lines = list(difflib.unified_diff(_lines(before), _lines(after), lineterm="", n=0))[2:]
        yield f"{name} {path}:"
        yield from (f"  {line}" for line in lines[:_MOST_LINES])
        if len(lines) > _MOST_LINES:
            yield f"  ... {len(lines) - _MOST_LINES} more lines"


def _values(path: str, one: Any, other: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield each pair of different values below *path*; a list of lines is one value."""
    if isinstance(one, dict) and isinstance(other, dict):
        for name in sorted(one.keys() | other.keys()):
            yield from _values(f"{path}[{name}]", one.get(name), other.get(name))
    elif one != other:
        yield path, one, other


def _lines(value: Any) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else [] if value is None else [str(value)]
