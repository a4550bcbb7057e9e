"""Data collected from all cells for the first page and the comparison page."""

import hashlib
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from tta_pipeline.evaluation.experiment_results import Unit
from tta_pipeline.report.intervals import BASIS
from tta_pipeline.report.pages.cells import CellResults, Entry
from tta_pipeline.report.significance.pairwise import WrongSamples

MAX_PHOTOGRAPHS = 12
TILE = 96
"""Height and width of a photograph on the page, in pixels."""


@dataclass(frozen=True, kw_only=True)
class UnitFacts:
    """A cell in a stream, with its names for the comparison page."""

    corruption: str
    severity: int
    page: str
    """File name of the cell's page, without its suffix."""
    stream: str
    """Partition of the stream, with seed and position if needed to tell streams apart; empty for a single cell."""


@dataclass(frozen=True, kw_only=True)
class Photograph:
    """A sample on which the experiments disagree."""

    key: str
    label: str
    said: Mapping[str, Sequence[str]]
    """Experiments by predicted class, the true class first."""
    right: Mapping[str, bool]
    """Whether each experiment predicts the true class."""


@dataclass(frozen=True, kw_only=True)
class PhotographsOfCell:
    """The photographs of a cell, in the order of its file."""

    page: str
    title: str
    photographs: Sequence[Photograph]


@dataclass(kw_only=True)
class CollectedResults:
    """Results of all cells for comparisons; a few bytes for each prediction."""

    units: dict[Unit, UnitFacts] = field(default_factory=dict)
    errors: dict[str, dict[Unit, float]] = field(default_factory=dict)
    judged: dict[str, dict[str, WrongSamples]] = field(default_factory=dict)
    """By experiment, and by name of the unit."""
    subsets: dict[str, str] = field(default_factory=dict)
    """Name of the subset on which each experiment was evaluated."""
    photographs: list[PhotographsOfCell] = field(default_factory=list)
    sources: set[tuple[object, ...]] = field(default_factory=set)
    """The columns `BASIS` of each result."""
    is_whole: bool = True
    """Whether all kept predictions could be read."""

    def add(self, results: CellResults, photographs: Sequence[Photograph]) -> None:
        """Add the results of a cell."""
        for entry in results.entries:
            self.units.setdefault(entry.unit, _unit_facts(results, entry))
            self.subsets[entry.experiment] = entry.row.cell.subset
            values = entry.row.by_column()
            self.sources.add(tuple(values[name] for name in BASIS))
            self.is_whole &= entry.judged is not None or entry.row.predicted.samples_sha256 is None
            self.errors.setdefault(entry.experiment, {})[entry.unit] = entry.row.error
            if entry.judged:
                self.judged.setdefault(entry.experiment, {})[unit_name(entry.unit)] = _to_judged(entry)
        if photographs:
            self.photographs.append(PhotographsOfCell(page=results.name, title=results.title, photographs=photographs))

    def covers(self, rows: AbstractSet[tuple[object, ...]]) -> bool:
        """Return whether these are results among *rows* alone, with all predictions that were kept of them.

        If not, the database is older than the results, or predictions or shards are missing: what is computed now is
        not to be kept.
        """
        return self.is_whole and self.sources <= rows

    def pages(self, experiment: str) -> frozenset[str]:
        """Return the names of the pages that show *experiment*.

        The database may have the experiment on more cells, evaluated before its streams changed in the benchmark file.
        """
        return frozenset(self.units[unit].page for unit in self.errors.get(experiment, ()))

    def judged_cells(self) -> Mapping[str, Mapping[str, WrongSamples]]:
        """Return the wrong samples of each experiment with stored predictions, by unit."""
        return {name: self.judged[name] for name in self.errors if name in self.judged}


def unit_name(unit: Unit) -> str:
    """Return a unique name of *unit*."""
    return "\n".join(map(str, unit))


def _to_judged(entry: Entry) -> WrongSamples:
    found = entry.judged
    assert found is not None
    row = entry.row
    return WrongSamples(
        samples=found.keys_sha256,
        photographs=found.photographs,
        cell=f"{entry.unit[0]}\n{entry.unit[2]}\n{entry.unit[3]}",
        seed=row.cell.seed,
        counts_in_mean=row.is_averaged,
        is_wrong=found.is_wrong,
        predictions_sha256=hashlib.sha256(found.predictions.tobytes()).hexdigest(),
        order_hash=row.cell.order_hash,
        batch_size=row.machine.batch_size,
        ignores_stream=row.ignores_stream,
    )


def _unit_facts(results: CellResults, entry: Entry) -> UnitFacts:
    stream, seed, position, _ = entry.unit
    cell = results.cell
    is_alone = stream == cell.key
    parts = [*([] if is_alone else [f"stream {stream}"]), *([f"seed {seed}"] if seed else [])]
    parts += [] if is_alone else [f"segment {position}"]
    return UnitFacts(corruption=cell.corruption, severity=cell.severity, page=results.name, stream=", ".join(parts))
