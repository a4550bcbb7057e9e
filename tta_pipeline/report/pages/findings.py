"""The results of a benchmark that its report shows and compares."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.domain.cells import Cell
from tta_pipeline.report.significance.estimates import Estimate
from tta_pipeline.report.tables import Table
from tta_pipeline.results.reader_notes import reader_notes


@dataclass(frozen=True, kw_only=True, slots=True)
class Findings:
    """Results of a benchmark in the database."""

    benchmark: Benchmark
    tables: Mapping[str, Table]
    """Results of the queries, by section."""
    errors: Mapping[str, Mapping[Cell, float]]
    """Errors by cell of the comparable experiments, see `_comparable_experiments`, in file order."""
    intervals: Mapping[str, Mapping[str, Estimate]] = field(default_factory=dict)
    """Errors by corruption with their intervals, of the experiments with stored predictions."""
    uneven: Sequence[str] = ()
    """A note for each cell whose images differ from most cells."""

    @property
    def corruptions(self) -> Sequence[str]:
        """Corruptions with a result, in the order of the benchmark."""
        evaluated = {cell.corruption for by_cell in self.errors.values() for cell in by_cell}
        return [each for each in self.benchmark.corruptions if each in evaluated]

    @property
    def severities(self) -> Sequence[int]:
        """Severities with a result, in the order of the benchmark."""
        evaluated = {cell.severity for by_cell in self.errors.values() for cell in by_cell}
        return [each for each in self.benchmark.severities if each in evaluated]

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know to judge the numbers."""
        board = self.tables["leaderboard"]
        rows = zip(board.column("experiment"), board.column("untrained"), strict=True)
        untrained = dict.fromkeys(experiment for experiment, is_untrained in rows if is_untrained)
        return reader_notes(generated=self.benchmark.is_generated, untrained=tuple(untrained), uneven=self.uneven)

    @property
    def best(self) -> str:
        """Name of the experiment with the lowest mean error, among those with the most cells."""
        return min(self.errors, key=lambda name: (-len(self.in_mean(name)), self.means[name]))

    @property
    def rivals(self) -> Sequence[str]:
        """Names of the other experiments whose means cover the same cells as those of the best."""
        cells = self.in_mean(self.best).keys()
        return [name for name in self.errors if name != self.best and self.in_mean(name).keys() == cells]

    @property
    def unadapted(self) -> str | None:
        """Name of the experiment that evaluates the best one's model unadapted on the same cells, if there is one."""
        specs = self.benchmark.experiments
        model = specs[self.best].model
        for name in (self.best, *self.rivals):
            if specs[name].method_name == "source" and specs[name].model == model:
                return name
        return None

    @property
    def means(self) -> Mapping[str, float]:
        """Mean error by experiment over the shifts that count in the mean of their set; NaN if none does."""
        return {name: _mean(self.in_mean(name).values()) for name in self.errors}

    def in_mean(self, experiment: str) -> Mapping[Cell, float]:
        """Return the errors of *experiment* that count in its mean, without shifts held out for tuning."""
        counting = self.benchmark.dataset.in_mean
        return {cell: error for cell, error in self.errors[experiment].items() if cell.corruption in counting}

    @property
    def mce(self) -> Mapping[str, float | None]:
        """Mean corruption error (mCE) in percent by experiment; None if not defined."""
        table = self.tables["error_by_corruption"]
        return dict(zip(table.column("experiment"), table.column("mce"), strict=True))


def _mean(values: Collection[float]) -> float:
    return sum(values) / len(values) if values else math.nan
