"""Comparison of experiments: the interval of each mean error, and a test of every pair."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Self

import numpy as np
import numpy.typing as npt

from tta_pipeline.report.significance.estimates import CellValues, Estimate, estimate_mean
from tta_pipeline.report.significance.paired_tests import holm, mcnemar
from tta_pipeline.shards.photographs import Numbered


@dataclass(frozen=True, kw_only=True)
class WrongSamples:
    """Samples of a cell in one stream, and which of them an experiment has wrong."""

    samples: str
    """Identity of the samples in their order: equal for two experiments that can be compared."""
    photographs: Numbered
    """The photograph of each sample, (N,)."""
    cell: str
    """Name of the cell and its place in the stream, the same for all seeds."""
    seed: int
    """Seed of the stream."""
    counts_in_mean: bool
    is_wrong: npt.NDArray[np.bool_]
    """Whether each sample is predicted wrongly, sorted by key, (N,)."""
    predictions_sha256: str
    """sha256 of the predicted classes in this order."""
    order_hash: str
    """Hash of the order in which the samples came."""
    batch_size: int
    ignores_stream: bool = False
    """Whether an image gets the same prediction in every order."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Comparison of experiments A and B on the same samples of the same streams."""

    cells: Mapping[str, tuple[int, int, float]]
    """Number of samples wrong only in A, wrong only in B, and McNemar's p-value after Holm, by cell in a stream."""
    change: Estimate | None
    """Mean error of B minus mean error of A over the common cells that count in the mean; None without such cells."""
    means: tuple[float, float] | None
    """Mean errors of A and B over these cells; either may have a different mean over all its cells."""
    covers_both: bool
    """Whether these are all of the cells that count in the mean, for A and for B."""
    same_order: bool
    """Whether A and B saw the samples of each of these cells in the same order."""
    batch_sizes: tuple[int, int] | None = None
    """Batch sizes of A and B; None without such cells."""
    num_same: int = 0
    """Number of samples of these cells if A and B predict the same class for all of them, otherwise 0."""

    def swapped(self) -> Self:
        """Return the comparison of B and A."""
        return replace(
            self,
            cells={cell: (only_b, only_a, p_value) for cell, (only_a, only_b, p_value) in self.cells.items()},
            change=-self.change if self.change else None,
            means=self.means[::-1] if self.means else None,
            batch_sizes=self.batch_sizes[::-1] if self.batch_sizes else None,
        )


WrongSamplesByExperiment = Mapping[str, Mapping[str, WrongSamples]]
"""Judged samples by experiment, and by cell in a stream."""


def estimate_error(cells: Iterable[WrongSamples]) -> Estimate | None:
    """Return the mean error of an experiment over *cells*; None without any."""
    return _estimate_if_any([(each, each.is_wrong.astype(float)) for each in cells], lowest=0)


def compare_pairs(standings: WrongSamplesByExperiment) -> Mapping[tuple[str, str], Pair]:
    """Compare every two experiments that have a cell in common, as `tta-pipeline compare` does."""
    found = {(a, b): _compare(standings[a], standings[b]) for a, b in combinations(standings, 2)}
    return {names: pair for names, pair in found.items() if pair.cells or pair.change}


def _compare(a: Mapping[str, WrongSamples], b: Mapping[str, WrongSamples]) -> Pair:
    common = [unit for unit in a if unit in b and a[unit].samples == b[unit].samples]
    differences = [_difference(a[unit], b[unit]) for unit in common]
    only_a = [int((each < 0).sum()) for each in differences]
    only_b = [int((each > 0).sum()) for each in differences]
    p_values = holm(mcnemar(only_a, only_b).tolist()) if common else ()
    a = _in_streams_of(a, b)
    b = _in_streams_of(b, a)
    counted = [unit for unit in a if unit in b and a[unit].samples == b[unit].samples and a[unit].counts_in_mean]
    is_same = all(a[unit].predictions_sha256 == b[unit].predictions_sha256 for unit in counted)
    return Pair(
        cells=dict(zip(common, zip(only_a, only_b, p_values, strict=True), strict=True)),
        change=_estimate_if_any([(a[unit], _difference(a[unit], b[unit])) for unit in counted], lowest=-1),
        means=(_mean(a, counted), _mean(b, counted)) if counted else None,
        covers_both=all(sum(each.counts_in_mean for each in cells.values()) == len(counted) for cells in (a, b)),
        same_order=all(a[unit].order_hash == b[unit].order_hash for unit in counted),
        batch_sizes=(a[counted[0]].batch_size, b[counted[0]].batch_size) if counted else None,
        num_same=sum(len(a[unit].is_wrong) for unit in counted) if is_same else 0,
    )


def _difference(a: WrongSamples, b: WrongSamples) -> npt.NDArray[np.float64]:
    """Return 1 where only B is wrong, -1 where only A is wrong, 0 otherwise."""
    return b.is_wrong.astype(float) - a.is_wrong


def _in_streams_of(own: Mapping[str, WrongSamples], others: Mapping[str, WrongSamples]) -> Mapping[str, WrongSamples]:
    """Return *own* cells; if they ignore the stream, each counts in every stream in which *others* have it."""
    if not any(each.ignores_stream for each in own.values()):
        return own
    by_cell = {each.cell: each for each in own.values()}
    matched = {unit: own.get(unit) or by_cell.get(each.cell) for unit, each in others.items()}
    known = {each.cell for each in others.values()}
    return {unit: each for unit, each in own.items() if each.cell not in known} | {
        unit: replace(each, seed=others[unit].seed, order_hash=others[unit].order_hash)
        for unit, each in matched.items()
        if each
    }


def _mean(cells: Mapping[str, WrongSamples], units: Sequence[str]) -> float:
    return float(np.mean([cells[unit].is_wrong.mean() for unit in units]))


def _estimate_if_any(
    cells: Sequence[tuple[WrongSamples, npt.NDArray[np.float64]]], *, lowest: float
) -> Estimate | None:
    if not cells:
        return None
    return estimate_mean(
        [
            CellValues(values=values, photographs=each.photographs, cell=each.cell, seed=each.seed)
            for each, values in cells
        ],
        lowest=lowest,
    )
