"""Lines of the GPU day: one figure each, with its requirement, as JSON in a file."""

import json
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

Verdict = Literal["met", "missed", "found", "rehearsed", "not measured", "failed"]

_RELATIONS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    ">=": operator.ge,
}


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A measured figure, or the reason why it was not measured."""

    what: str
    found: float | None = None
    """The value; the median of several measurements."""
    low: float | None = None
    high: float | None = None
    unit: str = ""
    asked: str = ""
    """Requirement: a relation and a bound, such as `>= 0.95`; empty: there is none."""
    is_speed: bool = False
    """Whether it is meaningless without a GPU and enough images, as in a rehearsal."""
    text: str = ""
    """Further remarks."""
    why_not: str = ""
    """Why it was not measured; empty: it was."""
    is_failure: bool = False
    """Whether it was not measured because something failed."""


@dataclass(frozen=True, kw_only=True)
class Line(Figure):
    """A figure of one section in one run of the command."""

    section: str
    day: str
    """Time at which the command was started, UTC in ISO 8601."""
    is_rehearsal: bool


def verdict(line: Line) -> Verdict:
    """Return whether *line* meets its requirement, or why that is unknown."""
    if line.is_failure:
        return "failed"
    if line.why_not:
        return "not measured"
    if not line.asked:
        return "found"
    if line.is_speed and line.is_rehearsal:
        return "rehearsed"
    assert line.found is not None, f"{line.what} is asked, but has no figure and no reason"
    relation, bound = line.asked.split()
    return "met" if _RELATIONS[relation](line.found, float(bound)) else "missed"


def exit_status(lines: Iterable[Line]) -> int:
    """Return 0 if nothing failed and every measured figure meets its requirement, otherwise 1."""
    return int(any(verdict(line) in ("missed", "failed") for line in lines))


def append_line(path: Path, line: Line) -> None:
    """Add *line* to the file at *path*."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(line)) + "\n")


def read_lines(path: Path) -> list[Line]:
    """Return the lines of the file at *path*, oldest first; empty if there is no file."""
    if not path.exists():
        return []
    return [Line(**json.loads(text)) for text in path.read_text(encoding="utf-8").splitlines()]


def newest_lines(lines: Iterable[Line]) -> list[Line]:
    """Return the lines of each section's newest run, sections in the order of their first appearance."""
    by_section: dict[str, list[Line]] = {}
    for line in lines:
        known = by_section.setdefault(line.section, [])
        if known and known[0].day < line.day:
            known.clear()
        known.append(line)
    return [line for known in by_section.values() for line in known]
