"""Two experiments on the same streams: cell by cell, and over all cells."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tta_pipeline.errors import EvaluationError
from tta_pipeline.evaluation.experiment import ExperimentResults
from tta_pipeline.partitions import CLEAN
from tta_pipeline.progress import Reporter
from tta_pipeline.significance.judged import JudgedCell, judged, recorded_places
from tta_pipeline.significance.paired import LEVEL, bootstrap_p, bootstrapped, holm, interval, mcnemar

MEAN = "mean"
_SEED = 0
"""Of the resampling: the same results give the same intervals."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Experiments A and B on the same samples: those of a cell, or those of all cells that enter the mean."""

    benchmark: str
    shift_set: str
    generated: bool
    experiment_a: str
    experiment_b: str
    stream: str | None
    """Key of the stream; None for the mean, and where each cell is a stream of its own."""
    corruption: str
    """`mean` for the mean over cells and seeds."""
    severity: int | None
    seed: int | None
    num_samples: int
    """Samples of the cell; for the mean, predictions of one experiment in all cells."""
    error_a: float
    error_b: float
    error_change: float
    """Error of B less that of A, as between two runs: above 0, A is better."""
    error_change_low: float
    """Where the 95 % interval of the change begins, by the paired bootstrap over images."""
    error_change_high: float
    only_a_wrong: int
    only_b_wrong: int
    p_value: float
    """Of a cell: exact McNemar. Of the mean: paired bootstrap over images."""
    p_holm: float
    """Of cells: corrected for the number of cells compared."""
    same_order: bool
    """Whether both saw the samples in the same order."""
    better: str | None
    """The experiment that is better by more than chance; None: neither is."""


@dataclass(frozen=True, kw_only=True)
class _Pair:
    a: JudgedCell
    b: JudgedCell

    @property
    def differences(self) -> npt.NDArray[np.float64]:
        """1 where B alone is wrong, -1 where A alone is, else 0."""
        return self.b.is_wrong.astype(float) - self.a.is_wrong

    def better(self, change: float, p_value: float) -> str | None:
        """Return the experiment that has less error, if *p_value* says so."""
        if p_value > LEVEL:
            return None
        return self.a.row.experiment if change > 0 else self.b.row.experiment


def versus(a: ExperimentResults, b: ExperimentResults, reporter: Reporter) -> tuple[Comparison, ...]:
    """Compare two experiments of a benchmark wherever both have results: the mean first, then each cell of each stream.

    Raises:
        EvaluationError: they saw different samples.
        RecordError, ManifestError: see `judged`.
    """
    places_a, places_b = recorded_places(a), recorded_places(b)
    common = [where for where in places_a if where in places_b]
    progress = reporter("comparing", len(common), unit="cells")
    generator = np.random.default_rng(_SEED)
    pairs = []
    for where in common:
        pairs.append(pair := _Pair(a=judged(a, places_a[where]), b=judged(b, places_b[where])))
        _require_same_samples(pair, a.experiment_name, b.experiment_name)
        progress.advance(1)
    corrected = holm([_mcnemar(pair) for pair in pairs])
    cells = [_of_cell(pair, p_holm, generator) for pair, p_holm in zip(pairs, corrected, strict=True)]
    reported = [pair for pair in pairs if pair.a.row.in_mean is not False and pair.a.row.corruption != CLEAN.corruption]
    return (*([_of_all(reported, generator)] if len(reported) > 1 else []), *cells)


def _require_same_samples(pair: _Pair, name_a: str, name_b: str) -> None:
    if not np.array_equal(pair.a.keys, pair.b.keys) or pair.a.row.manifest_sha256 != pair.b.row.manifest_sha256:
        raise EvaluationError(
            f"{name_a} has {len(pair.a.keys):,} samples of {pair.a.row.corruption}|{pair.a.row.severity} ("
            f"{pair.a.row.subset}), and {name_b} {len(pair.b.keys):,} ({pair.b.row.subset}), which are not the same; "
            "expected one subset of one shard set: evaluate both on it"
        )


def _mcnemar(pair: _Pair) -> float:
    return mcnemar(*_only(pair))


def _only(pair: _Pair) -> tuple[int, int]:
    differences = pair.differences
    return int((differences < 0).sum()), int((differences > 0).sum())


def _of_cell(pair: _Pair, p_holm: float, generator: np.random.Generator) -> Comparison:
    row = pair.a.row
    low, high = interval(bootstrapped(pair.differences, generator))
    only_a, only_b = _only(pair)
    return Comparison(
        benchmark=row.benchmark,
        shift_set=row.shift_set,
        generated=row.generated,
        experiment_a=row.experiment,
        experiment_b=pair.b.row.experiment,
        stream=None if row.stream == f"{row.corruption}|{row.severity}" else row.stream,
        corruption=row.corruption,
        severity=row.severity,
        seed=row.seed,
        num_samples=row.num_samples,
        error_a=row.error,
        error_b=pair.b.row.error,
        error_change=pair.b.row.error - row.error,
        error_change_low=low,
        error_change_high=high,
        only_a_wrong=only_a,
        only_b_wrong=only_b,
        p_value=_mcnemar(pair),
        p_holm=p_holm,
        same_order=row.order_hash == pair.b.row.order_hash,
        better=pair.better(pair.b.row.error - row.error, p_holm),
    )


def _of_all(pairs: Sequence[_Pair], generator: np.random.Generator) -> Comparison:
    """Compare the means over cells and seeds; an image that is in each cell is resampled with all its corruptions."""
    first = pairs[0].a
    if all(np.array_equal(pair.a.keys, first.keys) for pair in pairs):
        means = bootstrapped(np.mean([pair.differences for pair in pairs], axis=0), generator)
    else:
        means = np.mean([bootstrapped(pair.differences, generator) for pair in pairs], axis=0)
    low, high = interval(means)
    error_a = float(np.mean([pair.a.row.error for pair in pairs]))
    error_b = float(np.mean([pair.b.row.error for pair in pairs]))
    p_value = bootstrap_p(means)
    only_a, only_b = np.sum([_only(pair) for pair in pairs], axis=0).tolist()
    return Comparison(
        benchmark=first.row.benchmark,
        shift_set=first.row.shift_set,
        generated=any(pair.a.row.generated for pair in pairs),
        experiment_a=first.row.experiment,
        experiment_b=pairs[0].b.row.experiment,
        stream=None,
        corruption=MEAN,
        severity=None,
        seed=None,
        num_samples=sum(pair.a.row.num_samples for pair in pairs),
        error_a=error_a,
        error_b=error_b,
        error_change=error_b - error_a,
        error_change_low=low,
        error_change_high=high,
        only_a_wrong=only_a,
        only_b_wrong=only_b,
        p_value=p_value,
        p_holm=p_value,
        same_order=all(pair.a.row.order_hash == pair.b.row.order_hash for pair in pairs),
        better=pairs[0].better(error_b - error_a, p_value),
    )
