"""One line of the doctor's report."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What was checked, what was found, and what to do about it, if anything."""

    mark: Literal["ok", "note", "fault"]
    """A note is worth knowing; a fault prevents work."""
    subject: str
    found: str
    advice: str = ""


def ok(subject: str, found: str) -> Finding:
    """Return a finding without problems."""
    return Finding(mark="ok", subject=subject, found=found)


def note(subject: str, found: str, advice: str) -> Finding:
    """Return a finding that is worth knowing but prevents no work."""
    return Finding(mark="note", subject=subject, found=found, advice=advice)


def fault(subject: str, found: str, advice: str) -> Finding:
    """Return a finding that prevents work."""
    return Finding(mark="fault", subject=subject, found=found, advice=advice)
