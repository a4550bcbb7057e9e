"""Comparison of two experiments on the same streams: cell by cell, and over all cells."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tta_pipeline.errors import EvaluationError
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.report.significance.judged_cells import JudgedCell, judge_cell, recorded_places
from tta_pipeline.report.significance.paired_tests import LEVEL, estimate_mean, holm, mcnemar
from tta_pipeline.results.evaluation_record import Evaluation
from tta_pipeline.util.partitions import CLEAN
from tta_pipeline.util.progress import Reporter

MEAN = "mean"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Comparison of experiments A and B on the samples of one cell, or of all cells that count in the mean."""

    benchmark: str
    shift_set: str
    generated: bool
    experiment_a: str
    experiment_b: str
    stream: str | None
    """Key of the stream; None for the mean, and if each cell is its own stream."""
    corruption: str
    """`mean` for the mean over cells and seeds."""
    severity: int | None
    seed: int | None
    num_samples: int
    """Number of samples in the cell; for the mean, in all cells."""
    error_a: float
    error_b: float
    error_change: float
    """Error of B minus error of A, as between two runs: above 0, A is better."""
    error_change_low: float
    """Lower end of the 95 % interval of the change, by the paired bootstrap over images."""
    error_change_high: float
    only_a_wrong: int
    only_b_wrong: int
    p_value: float
    """For a cell: McNemar's exact test. For the mean: paired bootstrap over images."""
    p_holm: float
    """For a cell: p-value corrected for the number of cells. For the mean: `p_value`."""
    same_order: bool
    """Whether both saw the samples in the same order."""
    better: str | None
    """The experiment that is better by more than chance; None: neither is."""


@dataclass(frozen=True, kw_only=True)
class _Pair:
    a: Evaluation
    b: Evaluation
    keys_sha256: str
    differences: npt.NDArray[np.float64]
    """1 where only B is wrong, -1 where only A is wrong, else 0; (N,)."""

    @property
    def num_only_wrong(self) -> tuple[int, int]:
        """Numbers of samples wrong only in A, and wrong only in B."""
        return int((self.differences < 0).sum()), int((self.differences > 0).sum())

    def better(self, change: float, p_value: float) -> str | None:
        """Return the experiment with the lower error if *p_value* is significant; None otherwise."""
        if p_value > LEVEL:
            return None
        return self.a.experiment if change > 0 else self.b.experiment


def compare_experiments(a: ExperimentResults, b: ExperimentResults, reporter: Reporter) -> tuple[Comparison, ...]:
    """Compare two experiments of a benchmark on their common cells: the mean first, then each cell of each stream.

    Raises:
        EvaluationError: the experiments saw different samples.
        RecordError, ManifestError: see `judge_cell`.
    """
    places_a, places_b = recorded_places(a), recorded_places(b)
    common = [where for where in places_a if where in places_b]
    progress = reporter("comparing", len(common), unit="cells")
    pairs = []
    for where in common:
        pairs.append(_make_pair(judge_cell(a, places_a[where]), judge_cell(b, places_b[where])))
        progress.advance(1)
    p_values = mcnemar(*zip(*(pair.num_only_wrong for pair in pairs), strict=True)).tolist() if pairs else []
    cells = [_compare_cell(*each) for each in zip(pairs, p_values, holm(p_values), strict=True)]
    reported = [pair for pair in pairs if pair.a.in_mean is not False and pair.a.corruption != CLEAN.corruption]
    return (*([_compare_means(reported)] if len(reported) > 1 else []), *cells)


def _make_pair(a: JudgedCell, b: JudgedCell) -> _Pair:
    if a.keys_sha256 != b.keys_sha256 or a.row.manifest_sha256 != b.row.manifest_sha256:
        raise EvaluationError(
            f"{a.row.experiment} has {len(a.is_wrong):,} samples of {a.row.corruption}|{a.row.severity} ("
            f"{a.row.subset}), and {b.row.experiment} {len(b.is_wrong):,} ({b.row.subset}), which are not the same; "
            "expected the same subset of one shard set: evaluate both on it"
        )
    return _Pair(a=a.row, b=b.row, keys_sha256=a.keys_sha256, differences=b.is_wrong.astype(float) - a.is_wrong)


def _compare_cell(pair: _Pair, p_value: float, p_holm: float) -> Comparison:
    row, found = pair.a, estimate_mean([pair.differences], same_images=True)
    only_a, only_b = pair.num_only_wrong
    return Comparison(
        benchmark=row.benchmark,
        shift_set=row.shift_set,
        generated=row.generated,
        experiment_a=row.experiment,
        experiment_b=pair.b.experiment,
        stream=None if row.stream == f"{row.corruption}|{row.severity}" else row.stream,
        corruption=row.corruption,
        severity=row.severity,
        seed=row.seed,
        num_samples=row.num_samples,
        error_a=row.error,
        error_b=pair.b.error,
        error_change=pair.b.error - row.error,
        error_change_low=found.low,
        error_change_high=found.high,
        only_a_wrong=only_a,
        only_b_wrong=only_b,
        p_value=p_value,
        p_holm=p_holm,
        same_order=row.order_hash == pair.b.order_hash,
        better=pair.better(pair.b.error - row.error, p_holm),
    )


def _compare_means(pairs: Sequence[_Pair]) -> Comparison:
    """Compare the means over cells and seeds."""
    first = pairs[0].a
    same_images = len({pair.keys_sha256 for pair in pairs}) == 1
    found = estimate_mean([pair.differences for pair in pairs], same_images=same_images)
    only_a, only_b = (sum(counts) for counts in zip(*(pair.num_only_wrong for pair in pairs), strict=True))
    return Comparison(
        benchmark=first.benchmark,
        shift_set=first.shift_set,
        generated=any(pair.a.generated for pair in pairs),
        experiment_a=first.experiment,
        experiment_b=pairs[0].b.experiment,
        stream=None,
        corruption=MEAN,
        severity=None,
        seed=None,
        num_samples=sum(pair.a.num_samples for pair in pairs),
        error_a=float(np.mean([pair.a.error for pair in pairs])),
        error_b=float(np.mean([pair.b.error for pair in pairs])),
        error_change=found.mean,
        error_change_low=found.low,
        error_change_high=found.high,
        only_a_wrong=only_a,
        only_b_wrong=only_b,
        p_value=found.p_value,
        p_holm=found.p_value,
        same_order=all(pair.a.order_hash == pair.b.order_hash for pair in pairs),
        better=pairs[0].better(found.mean, found.p_value),
    )
