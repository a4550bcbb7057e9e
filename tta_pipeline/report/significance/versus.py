"""Comparison of two experiments on the same streams: over all cells, by corruption, cell by cell, and by class."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.protocol import ORDERS
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import EvaluationError
from tta_pipeline.evaluation.experiment_results import CountedCell, Unit
from tta_pipeline.report.significance.estimates import LEAST_P, CellValues, Estimate, estimate_mean, upper_bound
from tta_pipeline.report.significance.judged_cells import CellSamples, JudgedCell, judge_cell
from tta_pipeline.report.significance.paired_tests import LEVEL, holm, mcnemar
from tta_pipeline.report.significance.verdict import say_same_predictions, say_verdict
from tta_pipeline.results.evaluation_record import Evaluation
from tta_pipeline.shards.photographs import Numbered, Photographs
from tta_pipeline.util.progress import Reporter

MEAN = "mean"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Comparison of experiments A and B on the same samples: of one cell, or pooled over several."""

    benchmark: str
    dataset: str
    generated: bool
    experiment_a: str
    experiment_b: str
    untrained_a: bool
    """Whether the model of A has random weights."""
    untrained_b: bool
    stream: str | None
    """Key of the stream; None for pooled cells, and if each cell is its own stream."""
    corruption: str
    """`mean` for all cells that count in the mean."""
    severity: int | None
    """None for pooled cells."""
    seed: int | None
    class_name: str | None
    """The class whose samples are compared; None: all classes."""
    num_cells: int
    """Number of different cells."""
    num_images: int
    """Number of different photographs; if it is not known which cells show the same ones, the least it can be."""
    num_seeds: int
    """Number of orders of the images; with one, interval and test apply to this order only."""
    num_samples: int
    """Number of samples in all cells and seeds."""
    error_a: float
    """For several cells: the mean of their errors, with equal weights."""
    error_b: float
    error_change: float
    """Error of B minus error of A, as between two runs: above 0, A is better."""
    error_change_low: float
    """Lower end of the 95 % interval of the change, by the paired bootstrap over images and orders."""
    error_change_high: float
    error_change_bound: float
    """The true change is below it with 97.5 %, also where few images change; see `upper_bound`."""
    error_change_se: float
    """Standard error of the change, over images and orders."""
    min_detectable_diff: float
    """Smallest true change that would be shown in 80 % of cases, at the level left by the number of rows; see
    `Estimate.min_detectable_diff`."""
    only_a_wrong: int
    only_b_wrong: int
    p_value: float
    """For a cell: McNemar's exact test. For pooled cells: paired bootstrap over images and orders."""
    p_holm: float
    """The p-value corrected for the number of cells, of corruptions, or of classes. For the first row: `p_value`."""
    p_is_bound: bool
    """Whether the true p-values are smaller: `p_value` is the least that the draws can show."""
    same_order: bool
    """Whether A and B saw the samples of each cell in the same order."""
    batch_size_a: int
    batch_size_b: int
    same_weights: bool
    """Whether the models of A and B have the same weights before they adapt."""
    same_predictions: bool
    """Whether A and B predict the same class for every sample."""
    better: str | None
    """The experiment that is better by more than chance; None: neither is."""

    @property
    def change(self) -> Estimate:
        """Error of B minus error of A, with its uncertainty."""
        return Estimate(
            mean=self.error_change,
            low=self.error_change_low,
            high=self.error_change_high,
            p_value=self.p_value,
            standard_error=self.error_change_se,
            num_photographs=self.num_images,
            num_seeds=self.num_seeds,
        )

    @property
    def sentence(self) -> str:
        """The verdict of this row, in a sentence."""
        names = (self.experiment_a, self.experiment_b)
        if self.same_predictions:
            return say_same_predictions(names, self.num_samples, self.error_a, where=self._where)
        return say_verdict(
            names,
            (self.error_a, self.error_b),
            self.change,
            where=self._where,
            same_order=self.same_order,
            batch_sizes=(self.batch_size_a, self.batch_size_b),
            same_weights=self.same_weights,
        )

    def keeps_margin(self, points: float) -> bool:
        """Return whether it is shown that B is not worse than A by more than *points* percentage points.

        The test of non-inferiority by an upper bound, which must be below the margin: Piaggio et al. 2012, "Reporting
        of noninferiority and equivalence randomized trials".
        """
        return 100 * self.error_change_bound < points

    def say_margin(self, points: float) -> str:
        """Return in a line whether `keeps_margin` holds, with the bound that decides it."""
        change, bound = (100 * each for each in (self.error_change, self.error_change_bound))
        verdict = "passed:" if self.keeps_margin(points) else "failed: it is not shown that"
        margin = f"{points:g} point{'' if points == 1 else 's'}"
        return (
            f"{verdict} {self.experiment_b} is not worse than {self.experiment_a} by more than {margin}: mean error "
            f"{self._where} changes by {change:+.2f} points, with 97.5% by less than {bound:+.2f}"
        )

    @property
    def _where(self) -> str:
        return "over their common cells" if self.corruption == MEAN else f"on {self.corruption}"


@dataclass(frozen=True, kw_only=True)
class _Pair:
    """A cell in one stream, evaluated by both experiments; arrays of shape (N,), in the same order of samples."""

    a: Evaluation
    b: Evaluation
    photographs: Numbered
    labels: npt.NDArray[np.int64]
    is_wrong_a: npt.NDArray[np.bool_]
    is_wrong_b: npt.NDArray[np.bool_]
    is_same: npt.NDArray[np.bool_]
    """Whether both predict the same class."""

    @property
    def differences(self) -> npt.NDArray[np.float64]:
        """1 if only B is wrong, -1 if only A is wrong, 0 otherwise."""
        return self.is_wrong_b.astype(float) - self.is_wrong_a

    @property
    def values(self) -> CellValues:
        """The differences, for an estimate of their mean."""
        row = self.a
        name = f"{row.cell.stream} {row.cell.position} {row.cell.key}"
        return CellValues(values=self.differences, photographs=self.photographs, cell=name, seed=row.cell.seed)

    @property
    def num_only_wrong(self) -> tuple[int, int]:
        """Numbers of samples wrong only in A, and wrong only in B."""
        return int((self.is_wrong_a & ~self.is_wrong_b).sum()), int((self.is_wrong_b & ~self.is_wrong_a).sum())

    @property
    def counts(self) -> bool:
        """Whether the cell counts in the mean."""
        return self.a.is_averaged

    def of_class(self, label: int) -> Self:
        """Return the samples whose label is *label*."""
        own = self.labels == label
        return replace(
            self,
            photographs=replace(self.photographs, numbers=self.photographs.numbers[own]),
            labels=self.labels[own],
            is_wrong_a=self.is_wrong_a[own],
            is_wrong_b=self.is_wrong_b[own],
            is_same=self.is_same[own],
        )


@dataclass(frozen=True, kw_only=True)
class PairedCells:
    """Cells that both experiments evaluated, compared sample by sample."""

    pairs: Sequence[_Pair]
    classes: Sequence[str]
    """Names of the classes in the order of their labels."""
    name: str = MEAN
    """The corruption of all cells, or `mean`."""

    def pooled(self) -> Comparison:
        """Compare over all cells that count in the mean; if none does, over all."""
        return _compare(self._counted, corruption=self.name)

    def by_corruption(self) -> tuple[Comparison, ...]:
        """Compare on each corruption, with its severities pooled."""
        pairs: dict[str, list[_Pair]] = {}
        for pair in self.pairs:
            pairs.setdefault(pair.a.cell.corruption, []).append(pair)
        return _correct_p_values([_compare(own, corruption=name) for name, own in pairs.items()])

    def by_cell(self) -> tuple[Comparison, ...]:
        """Compare on each cell of each stream."""
        counts = zip(*(pair.num_only_wrong for pair in self.pairs), strict=True)
        p_values = mcnemar(*counts).tolist()
        return _correct_p_values(
            [_compare_cell(pair, p_value) for pair, p_value in zip(self.pairs, p_values, strict=True)]
        )

    def by_class(self) -> tuple[Comparison, ...]:
        """Compare on each class over the cells of `pooled`; the largest changes come first."""
        rows = []
        for label, class_name in enumerate(self.classes):
            own = [found for pair in self._counted if len((found := pair.of_class(label)).labels)]
            rows += [_compare(own, corruption=self.name, class_name=class_name)] if own else []
        return tuple(sorted(_correct_p_values(rows), key=lambda row: -abs(row.error_change)))

    @property
    def _counted(self) -> Sequence[_Pair]:
        if self.name != MEAN:
            return self.pairs
        return [pair for pair in self.pairs if pair.counts] or self.pairs


class Evaluated(Protocol):
    """An experiment with its results: one's own, or one that was added from what others published."""

    @property
    def experiment_name(self) -> str:
        """Name of the experiment."""

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of its streams."""

    @property
    def planned_units(self) -> frozenset[Unit]:
        """Positions of cells in its streams."""

    def all_counted_cells(self) -> Mapping[Unit, CountedCell]:
        """Return all evaluations that count, by the cell's position in its stream."""


@dataclass(frozen=True, kw_only=True)
class _Units:
    """The cells of an experiment by their positions in streams: those with results, and those in its plan."""

    counted: Mapping[Unit, CountedCell]
    planned: frozenset[Unit]

    @classmethod
    def of(cls, experiment: Evaluated) -> Self:
        return cls(counted=experiment.all_counted_cells(), planned=experiment.planned_units)

    def in_streams_of(self, other: Self) -> Self:
        """Return these cells at the positions of *other*'s if they ignore the stream, which has each sample once."""
        ignores = any(cell.row.ignores_stream for cell in self.counted.values())
        if not ignores or not all(cell.row.cell.stream_order in ORDERS for cell in other.counted.values()):
            return self
        counted = {
            unit: self.counted[own].in_stream_of(other.counted[unit])
            for unit, own in _match_cells(self.counted, other.counted).items()
        }
        return replace(self, counted=counted, planned=frozenset(_match_cells(self.planned, other.planned)))


def _match_cells(units: Collection[Unit], others: Collection[Unit]) -> Mapping[Unit, Unit]:
    """Return for each of *others* one of *units* with the same cell in a stream of the same key: itself if possible."""
    by_cell = {(unit.stream, unit.cell): unit for unit in units}
    found = {unit: unit if unit in units else by_cell.get((unit.stream, unit.cell)) for unit in others}
    return {unit: own for unit, own in found.items() if own}


@dataclass(frozen=True, kw_only=True)
class CommonCells:
    """The cells that two experiments of a benchmark evaluated in a stream of the same key and seed."""

    benchmark: Benchmark
    locations: Locations
    """Folder of the shards that both evaluated."""
    a: Evaluated
    b: Evaluated
    cells: Sequence[tuple[CountedCell, CountedCell]]
    """The evaluations of each cell by A and B, if both have one that counts."""
    num_unfinished: int
    """Number of further cells in both plans for which A or B has no result by its current plan."""

    @classmethod
    def find(cls, a: Evaluated, b: Evaluated, benchmark: Benchmark, locations: Locations) -> Self:
        """Find the cells that *a* and *b*, experiments of *benchmark*, have in common.

        The cells of an experiment that ignores the stream count for every seed of the other one.
        """
        of_a, of_b = _Units.of(a), _Units.of(b)
        of_a = of_a.in_streams_of(of_b)
        of_b = of_b.in_streams_of(of_a)
        cells = [(cell, of_b.counted[unit]) for unit, cell in of_a.counted.items() if unit in of_b.counted]
        num_unfinished = len(of_a.planned & of_b.planned) - len(cells)
        return cls(benchmark=benchmark, locations=locations, a=a, b=b, cells=cells, num_unfinished=num_unfinished)

    @property
    def corruptions(self) -> tuple[str, ...]:
        """The corruptions of these cells."""
        return tuple(dict.fromkeys(cell.row.cell.corruption for cell, _ in self.cells))

    def pair(self, reporter: Reporter, *, corruption: str | None = None) -> PairedCells:
        """Read the predictions of both; there must be a cell.

        Args:
            reporter: Reporter of the cells that are read.
            corruption: Only cells of this corruption; None: all.

        Raises:
            EvaluationError: the experiments saw different samples.
            RecordError, ManifestError: see `judge_cell`.
        """
        cells = [each for each in self.cells if corruption in (None, each[0].row.cell.corruption)]
        progress = reporter("comparing", len(cells), unit="cells")
        pairs, classes, samples = [], tuple[str, ...](), None
        photographs = Photographs(self.benchmark.photograph_pattern)
        for cell_a, cell_b in cells:
            samples = CellSamples.open(self.benchmark.name, self.locations, cell_a.cell, photographs, like=samples)
            judged = (judge_cell(cell_a, samples), judge_cell(cell_b, samples))
            pairs.append(_make_pair(*judged, samples))
            classes = samples.shard_set.manifest.classes
            progress.advance(1)
        return PairedCells(pairs=pairs, classes=classes, name=corruption or MEAN)


def _make_pair(a: JudgedCell, b: JudgedCell, samples: CellSamples) -> _Pair:
    if a.keys_sha256 != b.keys_sha256:
        raise EvaluationError(
            f"{a.row.labels.experiment} was evaluated on {len(a.is_wrong):,} samples of {a.row.cell.key} "
            f"({a.row.cell.subset}), but {b.row.labels.experiment} on a different set of {len(b.is_wrong):,} "
            f"({b.row.cell.subset}); expected the same samples: evaluate both experiments on the same subset"
        )
    return _Pair(
        a=a.row,
        b=b.row,
        photographs=a.photographs,
        labels=samples.shard_set.index.labels[a.positions],
        is_wrong_a=a.is_wrong,
        is_wrong_b=b.is_wrong,
        is_same=a.predictions == b.predictions,
    )


def _compare_cell(pair: _Pair, p_value: float) -> Comparison:
    row = pair.a
    stream = None if row.cell.stream == row.cell.key else row.cell.stream
    found = _compare([pair], corruption=row.cell.corruption)
    return replace(
        found,
        stream=stream,
        severity=row.cell.severity,
        seed=row.cell.seed,
        p_value=p_value,
        p_holm=p_value,
        p_is_bound=False,
    )


def _compare(pairs: Sequence[_Pair], *, corruption: str, class_name: str | None = None) -> Comparison:
    """Compare the means over cells and seeds by one paired bootstrap; see `estimate_mean`."""
    first, values = pairs[0].a, [pair.values for pair in pairs]
    change = estimate_mean(values, lowest=-1)
    only_a, only_b = (sum(counts) for counts in zip(*(pair.num_only_wrong for pair in pairs), strict=True))
    return Comparison(
        benchmark=first.cell.benchmark,
        dataset=first.labels.dataset,
        generated=any(pair.a.cell.generated for pair in pairs),
        experiment_a=first.labels.experiment,
        experiment_b=pairs[0].b.labels.experiment,
        untrained_a=first.is_untrained,
        untrained_b=pairs[0].b.is_untrained,
        stream=None,
        severity=None,
        seed=None,
        corruption=corruption,
        class_name=class_name,
        num_cells=len({(pair.a.cell.corruption, pair.a.cell.severity) for pair in pairs}),
        num_images=change.num_photographs,
        num_seeds=change.num_seeds,
        num_samples=sum(len(pair.labels) for pair in pairs),
        error_a=float(np.mean([pair.is_wrong_a.mean() for pair in pairs])),
        error_b=float(np.mean([pair.is_wrong_b.mean() for pair in pairs])),
        error_change=change.mean,
        error_change_low=change.low,
        error_change_high=change.high,
        error_change_bound=upper_bound(values),
        error_change_se=change.standard_error,
        min_detectable_diff=change.min_detectable_diff(),
        only_a_wrong=only_a,
        only_b_wrong=only_b,
        p_value=change.p_value,
        p_holm=change.p_value,
        p_is_bound=change.p_value <= LEAST_P,
        same_order=all(pair.a.cell.order_hash == pair.b.cell.order_hash for pair in pairs),
        batch_size_a=first.machine.batch_size,
        batch_size_b=pairs[0].b.machine.batch_size,
        same_weights=all(pair.a.setup.weights_sha256 == pair.b.setup.weights_sha256 for pair in pairs),
        same_predictions=all(pair.is_same.all() for pair in pairs),
        better=_better_of(first.labels.experiment, pairs[0].b.labels.experiment, change.mean, change.p_value),
    )


def _correct_p_values(rows: Sequence[Comparison]) -> tuple[Comparison, ...]:
    """Return *rows* with their p-values corrected for their number."""
    corrected = zip(rows, holm([row.p_value for row in rows]), strict=True)
    return tuple(
        replace(
            row,
            p_holm=p,
            min_detectable_diff=row.change.min_detectable_diff(num_tests=len(rows)),
            better=_better_of(row.experiment_a, row.experiment_b, row.error_change, p),
        )
        for row, p in corrected
    )


def _better_of(a: str, b: str, change: float, p_value: float) -> str | None:
    """Return the experiment with the lower error if *p_value* is significant; None otherwise."""
    if p_value > LEVEL:
        return None
    return a if change > 0 else b
