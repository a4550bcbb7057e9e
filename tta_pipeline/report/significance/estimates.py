"""Mean errors and changes of error over cells, with their uncertainty over photographs and orders of the images."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Self

import numpy as np
import numpy.typing as npt

from tta_pipeline.report.significance.paired_tests import LEVEL
from tta_pipeline.shards.photographs import Numbered

NUM_DRAWS = 10_000
LEAST_P = 2 / (NUM_DRAWS + 1)
"""Smallest p-value that so many draws can show."""
POWER = 0.8
"""Share of cases in which a change of the size `Estimate.min_detectable_diff` is shown."""
_SEED = 0
"""Seed of the draws, so that the same results give the same intervals."""
_MOST_DISTINCT = 256
"""Number of different values from which on photographs with similar values are drawn as one: time grows with it."""
_DECIMALS = 9
"""To which the values of photographs are rounded, so that few are distinct."""
_DECIMALS_OF_MEANS = 8
"""To which means are rounded after that, so that a draw without any changed photograph is 0 and not 1e-19."""


@dataclass(frozen=True, kw_only=True)
class CellValues:
    """The values of the samples of one cell in one stream."""

    values: npt.NDArray[np.float64]
    """Error of each sample, 0 or 1, or error of B minus error of A, -1 to 1; (N,)."""
    photographs: Numbered
    """The photograph that each sample shows, (N,)."""
    cell: str = ""
    """Name of the cell and its place in the stream, the same for all seeds."""
    seed: int = 0
    """Seed of the stream, which decides the order of the images."""

    @property
    def mean(self) -> float:
        """Mean of the values."""
        return float(self.values.mean())

    @property
    def deviations(self) -> npt.NDArray[np.float64]:
        """Deviation of each value from the mean, (N,)."""
        deviations: npt.NDArray[np.float64] = self.values - self.values.mean()
        return deviations


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean over cells, of an error or of a change of error, with its uncertainty."""

    mean: float
    low: float
    """Lower end of the 95 % interval."""
    high: float
    p_value: float
    """Two-sided p-value for the hypothesis that the mean is 0; `LEAST_P` is the smallest value reported."""
    standard_error: float
    """Standard deviation of the mean over draws. At least the one at which the smallest detectable change is the work
    of so few images that their number alone is as uncertain."""
    num_photographs: int = 0
    """Number of different photographs; if it is not known, the least that it can be."""
    num_seeds: int = 1
    """Number of orders of the images. With one, the uncertainty applies to this order only."""

    def __neg__(self) -> Self:
        """Return the estimate with the sign of the change reversed."""
        return replace(self, mean=-self.mean, low=-self.high, high=-self.low)

    def min_detectable_diff(self, *, num_tests: int = 1) -> float:
        """Return the smallest true change that these images would show in 80 % of cases, as one of *num_tests* tests.

        (z of 1 - level / 2 + z of the power) standard errors, where the level is `LEVEL` / *num_tests*: the planning of
        Cohen 1988, "Statistical power analysis for the behavioral sciences", with the spread that was measured and not
        the change that was found. Card et al. 2020, "With little power comes great responsibility", recommend
        it for each comparison of accuracies. At most 1, since no two errors differ by more.
        """
        return min(1.0, _quantiles(num_tests) * self.standard_error)


def estimate_mean(cells: Sequence[CellValues], *, lowest: float) -> Estimate:
    """Estimate the mean over *cells* of the means of their values.

    The photographs are drawn with replacement, each with its samples in all cells and streams: the cluster bootstrap
    (Field and Welsh 2007, "Bootstrapping clustered data"), linear in the weights of the photographs. Which photographs
    of two groups are the same is not known; their draws are added in ascending order, as if the groups depended on each
    other as far as they can: no other dependence gives a wider interval.

    With several seeds, their orders are drawn as well: the two-way clustering of Cameron, Gelbach and Miller 2011,
    "Robust inference with multiway clustering". There are few seeds, so a deviation is drawn from Student's
    distribution; see `_draw_orders`.

    Args:
        cells: Values of each cell in each stream, from *lowest* to 1.
        lowest: 0 for errors, -1 for changes of error.
    """
    mean = float(np.mean([cell.mean for cell in cells]))
    sign = -1.0 if mean < 0 else 1.0  # so that A against B and B against A give the same result
    means = (mean + sign * _draw_deviations(cells, sign)).round(_DECIMALS_OF_MEANS)
    low, high = percentile_interval(means)
    num_photographs = _count_photographs(cells)
    if low == high:
        unseen = largest_unseen_share(num_photographs)
        low, high = low - unseen * (low - lowest), high + unseen * (1 - high)
    least_error = _quantiles(1) * _mean_change(cells) / num_photographs
    return Estimate(
        mean=mean,
        low=max(lowest, low),
        high=min(1.0, high),
        p_value=bootstrap_p(means),
        standard_error=max(float(means.std()), least_error),
        num_photographs=num_photographs,
        num_seeds=len({cell.seed for cell in cells}),
    )


def upper_bound(cells: Sequence[CellValues]) -> float:
    """Return an upper bound on the true mean over *cells* at 97.5 % confidence, valid even if few images changed.

    Learned-Miller and Thomas 2020, "A new confidence interval for the mean of a bounded random variable": the weights
    of the photographs are uniform, and an additional photograph has the largest possible value. For values 0 and 1, it
    is the bound of Clopper and Pearson. The percentile bootstrap ignores images that were not seen: of 200 images with
    2 % worse ones, its bound was below the truth in 8.9 % of cases instead of 2.5 %.

    Args:
        cells: Values of each cell in each stream, at most 1.
    """
    generator, bounds = np.random.default_rng(_SEED), []
    for group in _groups(cells):
        values, counts = _distinct(_values_of_photographs(group, len(cells)))
        room = sum(1 - cell.mean for cell in group) / len(cells)
        weights, unseen = generator.gamma(counts, size=(NUM_DRAWS, len(values))), generator.exponential(size=NUM_DRAWS)
        bounds.append((weights @ values + unseen * room) / (weights.sum(1) + unseen))
    mean = np.mean([cell.mean for cell in cells])
    means = mean + _add_dependent(bounds) + _draw_orders(cells, generator)
    tail = LEVEL / 2
    error_of_draws = 2 * np.sqrt(tail * (1 - tail) / NUM_DRAWS)  # so that the draws never lower the bound
    return float(min(1.0, np.quantile(means, 1 - tail + error_of_draws)))


def bootstrap_means(values: npt.NDArray[np.float64], generator: np.random.Generator) -> npt.NDArray[np.float64]:
    """Return the means of `NUM_DRAWS` resamples of *values*, shape (N,), with replacement.

    Efron and Tibshirani 1993, "An introduction to the bootstrap", chapter 13. A resample is drawn as the counts of the
    distinct values, which is equivalent and takes no longer for a million samples.
    """
    distinct, counts = _distinct(values)
    drawn = generator.multinomial(len(values), counts / len(values), size=NUM_DRAWS)
    means: npt.NDArray[np.float64] = drawn @ distinct / len(values)
    return means


def percentile_interval(means: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return the percentiles that enclose 95 % of the resampled *means*."""
    low, high = np.quantile(means, (LEVEL / 2, 1 - LEVEL / 2))
    return float(low), float(high)


def bootstrap_p(means: npt.NDArray[np.float64]) -> float:
    """Return the two-sided p-value for a mean of 0, from resampled *means*; never below `LEAST_P`."""
    beyond = min((means <= 0).sum(), (means >= 0).sum())
    return float(min(1, 2 * (beyond + 1) / (len(means) + 1)))


def largest_unseen_share(num_images: int) -> float:
    """Return the largest share of other images that *num_images* may all lack by chance, at 95 %.

    If all images have the same value, such as no error, every resample has it too, and the bootstrap sees no
    uncertainty. Clopper and Pearson 1934, "The use of confidence or fiducial limits", give this bound for 0 of N; it is
    about 3.7 / N.
    """
    return float(1 - (LEVEL / 2) ** (1 / num_images))


def _groups(cells: Sequence[CellValues]) -> Sequence[Sequence[CellValues]]:
    """Return the cells of each group of photographs."""
    found: dict[int, list[CellValues]] = defaultdict(list)
    for cell in cells:
        found[cell.photographs.group].append(cell)
    return list(found.values())


def _count_photographs(cells: Sequence[CellValues]) -> int:
    """Return the number of photographs; if groups may share photographs, the largest group's number."""
    numbers = (np.concatenate([cell.photographs.numbers for cell in group]) for group in _groups(cells))
    return max(len(np.unique(each)) for each in numbers)


def _values_of_photographs(group: Sequence[CellValues], num_cells: int) -> npt.NDArray[np.float64]:
    """Return by how much each photograph shifts the mean over *num_cells* cells, times their number, (N,).

    The values are deviations, so their mean is 0 however many samples a photograph has.
    """
    return _sum_by_photograph(group, [cell.deviations / (num_cells * len(cell.values)) for cell in group])


def _sum_by_photograph(
    group: Sequence[CellValues], values: Sequence[npt.NDArray[np.float64]]
) -> npt.NDArray[np.float64]:
    """Return the sum of the *values* of each photograph's samples in all cells of *group*, times their number, (N,)."""
    shown, places = np.unique(np.concatenate([cell.photographs.numbers for cell in group]), return_inverse=True)
    return np.bincount(places, np.concatenate(values)).astype(np.float64) * len(shown)


def _distinct(values: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Return the distinct *values* with their counts; of very many, the means of neighbours, with the same variance."""
    distinct, counts = np.unique(values.round(_DECIMALS), return_counts=True)
    if len(distinct) <= _MOST_DISTINCT:
        return distinct, counts
    parts = np.array_split(np.sort(values), _MOST_DISTINCT)
    means = np.array([part.mean() for part in parts])
    sizes = np.array([len(part) for part in parts], np.int64)
    center = values.mean()
    spread = values.std() / np.sqrt(np.average((means - center) ** 2, weights=sizes))
    return center + spread * (means - center), sizes


def _draw_deviations(cells: Sequence[CellValues], sign: float) -> npt.NDArray[np.float64]:
    """Return by how much `NUM_DRAWS` other means deviate from the mean of *cells*, times *sign*."""
    generator = np.random.default_rng(_SEED)
    groups = [bootstrap_means(sign * _values_of_photographs(group, len(cells)), generator) for group in _groups(cells)]
    return _add_dependent(groups) + _draw_orders(cells, generator)


def _add_dependent(draws: Sequence[npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
    """Return the sum of *draws* of each group, which depend on each other as far as they can."""
    return draws[0] if len(draws) == 1 else np.sum(np.sort(draws, axis=1), axis=0)


def _draw_orders(cells: Sequence[CellValues], generator: np.random.Generator) -> npt.NDArray[np.float64] | float:
    """Return by how much the mean would deviate with other orders of the images; 0 if there is one seed."""
    num_seeds = len({cell.seed for cell in cells})
    if num_seeds == 1:
        return 0.0
    from scipy.special import stdtrit  # the inverse of Student's distribution

    # Evenly spread, since one draw of two seeds' heavy tails would decide the interval.
    deviations = stdtrit(num_seeds - 1, (np.arange(NUM_DRAWS) + 0.5) / NUM_DRAWS)
    return _order_error(cells, num_seeds) * generator.permutation(deviations)


def _order_error(cells: Sequence[CellValues], num_seeds: int) -> float:
    """Return the standard error of the mean over orders: how much the means of the seeds vary.

    They also differ because each photograph is predicted otherwise in each order, which the draws of photographs hold
    too. To subtract that would leave too narrow an interval with two or three seeds.
    """
    shifts: dict[int, float] = defaultdict(float)
    for same in _by_name(cells):
        mean = float(np.mean([cell.mean for cell in same]))
        for cell in same:
            shifts[cell.seed] += (cell.mean - mean) / len(cells)
    return float(np.sqrt(sum(shift**2 for shift in shifts.values()) * num_seeds / (num_seeds - 1)))


def _by_name(cells: Sequence[CellValues]) -> Iterable[Sequence[CellValues]]:
    """Return the streams of each cell."""
    found: dict[str, list[CellValues]] = defaultdict(list)
    for cell in cells:
        found[cell.cell].append(cell)
    return found.values()


def _mean_change(cells: Sequence[CellValues]) -> float:
    """Return the mean size of the changes of photographs, each weighted by its size; 1 where none changes."""
    changes = np.concatenate(
        [
            np.abs(_sum_by_photograph(group, [cell.values / (len(group) * len(cell.values)) for cell in group]))
            for group in _groups(cells)
        ]
    )
    return float((changes**2).sum() / changes.sum()) if changes.any() else 1.0


def _quantiles(num_tests: int) -> float:
    """Return the number of standard errors from which on a change is shown with `POWER`, as one of *num_tests*."""
    normal = NormalDist()
    return normal.inv_cdf(1 - LEVEL / num_tests / 2) + normal.inv_cdf(POWER)
