"""Expected costs of work: measured times, or estimates from the number of passes that a method makes."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.domain.cells import Cell
from tta_pipeline.domain.locations import Locations
from tta_pipeline.domain.streams import StreamPlan
from tta_pipeline.errors import RecordError
from tta_pipeline.methods.catalogue import METHODS
from tta_pipeline.results.database.database import open_metrics

_TIMES = """
SELECT experiment, model, method, sum(wall_s) / sum(num_samples) FROM evaluations
WHERE counts AND benchmark = ? AND dataset = ? GROUP BY experiment, model, method
"""
_COUNTS = (
    "SELECT corruption, severity, max(num_samples) FROM shard_sets WHERE benchmark = ? AND dataset = ? GROUP BY 1, 2"
)
_TYPICAL_COUNT = 10_000
"""Number of samples assumed for a cell if no cell's is known, from CIFAR-10-C. Only proportions matter then."""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Expected times of a benchmark's streams."""

    benchmark: Benchmark
    of_experiments: Mapping[str, float]
    """Measured seconds per sample, by experiment."""
    of_models: Mapping[str, float]
    """Median of the measured seconds per sample and pass, by model."""
    counts: Mapping[Cell, int]
    """Number of samples, by cell."""

    @classmethod
    def from_file(cls, benchmark: Benchmark) -> "Costs":
        """Return weights of streams from the benchmark file alone, as if all cells had the same size."""
        return cls(benchmark=benchmark, of_experiments={}, of_models={}, counts={})

    @classmethod
    def from_database(cls, benchmark: Benchmark, locations: Locations) -> "Costs":
        """Return the times and counts of *benchmark* in the database; empty if there is no database."""
        which = [benchmark.file, benchmark.dataset.name]
        try:
            with open_metrics(locations.metrics) as connection:
                times = connection.execute(_TIMES, which).fetchall()
                counted = connection.execute(_COUNTS, which).fetchall()
        except RecordError:
            times, counted = [], []
        of_models: dict[str, list[float]] = {}
        for experiment, model, method, sample_s in times:
            of_models.setdefault(model, []).append(sample_s / _passes(benchmark, experiment, method))
        return cls(
            benchmark=benchmark,
            of_experiments={experiment: sample_s for experiment, _, _, sample_s in times},
            of_models={model: median(found) for model, found in of_models.items()},
            counts={Cell(corruption=name, severity=severity): count for name, severity, count in counted},
        )

    @property
    def is_timed(self) -> bool:
        """Whether any time was measured, so that expected times are in seconds."""
        return bool(self.of_models)

    def expected_s(self, experiment_name: str, plan: StreamPlan) -> float:
        """Return the expected time of *plan* in seconds, or a weight if nothing was timed."""
        spec = self.benchmark.experiments[experiment_name]
        most = (spec.subset.first or spec.subset.random) if spec.subset else None
        counts = (self._count(cell) for segment in plan.segments for cell in segment.cells)
        num_samples = sum(min(count, most or count) for count in counts)
        sample_s = self.of_experiments.get(experiment_name)
        if sample_s is None:
            known = self.of_models.get(spec.model) or (median(self.of_models.values()) if self.of_models else 1.0)
            sample_s = known * spec.entry.passes
        return num_samples * sample_s

    def _count(self, cell: Cell) -> int:
        return self.counts.get(cell) or self._typical_count

    @cached_property
    def _typical_count(self) -> int:
        return round(median(self.counts.values())) if self.counts else _TYPICAL_COUNT


def _passes(benchmark: Benchmark, experiment: str, method: str) -> float:
    """Return the passes of the recorded *method*, from *experiment* if the file still has it, or from the catalogue."""
    spec = benchmark.experiments.get(experiment)
    entry = spec.entry if spec and spec.method_name == method else METHODS.get(method.partition("+")[0])
    return entry.passes if entry else 1
