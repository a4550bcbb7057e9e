"""Partitions of assets: cells, and streams over several cells. No other module parses partition keys."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from tta_pipeline.errors import PartitionKeyError
from tta_pipeline.util.nearest_names import name_choices


@dataclass(frozen=True, kw_only=True, order=True, slots=True)
class Cell:
    """One (shift, severity) of a benchmark; the severity is 0 for clean images and for datasets without severities."""

    corruption: str
    severity: int

    @property
    def key(self) -> str:
        """The Dagster partition key, `<corruption>|<severity>`."""
        return f"{self.corruption}|{self.severity}"

    @property
    def path(self) -> str:
        """The folder of this cell relative to a root, `<corruption>/<severity>`."""
        return f"{self.corruption}/{self.severity}"


CLEAN = Cell(corruption="clean", severity=0)
"""The uncorrupted test images."""

TRAIN = Cell(corruption="train", severity=0)
"""The images a source model is trained on, if a benchmark trains its own."""


@dataclass(frozen=True, kw_only=True, order=True, slots=True)
class StreamKey:
    """The streams of an experiment over several cells: all cells of one severity, or of the whole benchmark."""

    severity: int | None = None
    """Severity of the cells; None: the whole benchmark."""

    @property
    def key(self) -> str:
        """The Dagster partition key, `<severity>`; `all` for the whole benchmark, which has no partitions."""
        return "all" if self.severity is None else str(self.severity)


WHOLE = StreamKey()
"""The stream over a whole benchmark."""

PartitionKey = Cell | StreamKey
_K = TypeVar("_K", bound=PartitionKey)


def grid_of_cells(corruptions: tuple[str, ...], severities: tuple[int, ...]) -> tuple[Cell, ...]:
    """Return every cell, corruption by corruption in the order given."""
    return tuple(
        Cell(corruption=corruption, severity=severity) for corruption in corruptions for severity in severities
    )


def parse_key(text: str, allowed: Sequence[_K]) -> _K:
    """Return the member of *allowed* whose key is *text*.

    Dagster passes run tags on unchecked, so a key must match one of the benchmark's keys before it becomes part of a
    path.

    Raises:
        PartitionKeyError: no member of *allowed* has this key.
    """
    for key in allowed:
        if key.key == text:
            return key
    raise PartitionKeyError(f"The partition key {text!r} does not exist; expected {_describe_keys(text, allowed)}")


def _describe_keys(text: str, allowed: Sequence[PartitionKey]) -> str:
    """Describe *allowed* in fewer words than a list: most cells combine any corruption with any severity."""
    grid = [key for key in allowed if isinstance(key, Cell) and key not in (CLEAN, TRAIN)]
    others = [key.key for key in allowed if key not in grid]
    if not grid:
        return f"one of {name_choices(text, others, listed_in='the benchmark file')}"
    corruptions = dict.fromkeys(cell.corruption for cell in grid)
    severities = dict.fromkeys(str(cell.severity) for cell in grid)
    names = name_choices(text.partition("|")[0], corruptions, listed_in="the benchmark file")
    return (
        f"'<corruption>|<severity>' of this benchmark, where corruption is one of {names} and severity is one of "
        f"{', '.join(severities)}{''.join(f', or {other}' for other in others)}"
    )
