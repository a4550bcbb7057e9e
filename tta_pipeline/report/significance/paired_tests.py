"""Paired tests of two experiments on the same samples."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

NUM_DRAWS = 10_000
LEVEL = 0.05
"""Largest p-value that counts as more than chance; intervals cover 1 - `LEVEL`."""
POWER = 0.8
"""Share of cases in which a change of the size `Estimate.detectable` is shown."""
_SEED = 0
"""Seed of the resampling, so that the same results give the same intervals."""


def mcnemar(only_a: npt.ArrayLike, only_b: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return the exact two-sided p-values for the hypothesis that A and B are wrong alone equally often, shape (M,).

    McNemar 1947, "Note on the sampling error of the difference between correlated proportions or percentages": samples
    that both predict correctly, or both wrongly, carry no information; the others are tosses of a fair coin.
    """
    from scipy.special import bdtr  # the cumulative binomial distribution; scipy.stats takes half a second to import

    fewer, together = np.minimum(only_a, only_b), np.add(only_a, only_b)
    p_values: npt.NDArray[np.float64] = np.minimum(1.0, 2 * bdtr(fewer, together, 0.5))
    return p_values


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return *p_values* corrected for their number, to control the probability of any false positive among them.

    Holm 1979, "A simple sequentially rejective multiple test procedure".
    """
    order = np.argsort(p_values, kind="stable")
    factors = np.arange(len(p_values), 0, -1)
    corrected = np.empty(len(p_values))
    corrected[order] = np.minimum(1, np.maximum.accumulate(np.asarray(p_values)[order] * factors))
    return tuple(corrected.tolist())


def bootstrap_means(values: npt.NDArray[np.float64], generator: np.random.Generator) -> npt.NDArray[np.float64]:
    """Return the means of `NUM_DRAWS` resamples of *values*, shape (N,), with replacement.

    Efron and Tibshirani 1993, "An introduction to the bootstrap", chapter 13. A resample is drawn as the counts of the
    distinct values, which is equivalent and takes no longer for a million samples.
    """
    distinct, counts = np.unique(values, return_counts=True)
    drawn = generator.multinomial(len(values), counts / len(values), size=NUM_DRAWS)
    means: npt.NDArray[np.float64] = drawn @ distinct / len(values)
    return means


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean over cells, of an error or of a change of error, with its uncertainty."""

    mean: float
    low: float
    """Lower end of the 95 % interval, by the bootstrap over images."""
    high: float
    p_value: float
    """Two-sided p-value for the hypothesis that the mean is 0."""
    standard_error: float
    """Standard deviation of the mean over resamples of the images. At least the one at which the smallest detectable
    change is the work of so few images that their number alone is as uncertain."""

    def detectable(self, *, num_tests: int = 1) -> float:
        """Return the smallest true change that these images would show in 80 % of cases, as one of *num_tests* tests.

        (z of 1 - level / 2 + z of the power) standard errors, where the level is `LEVEL` / *num_tests*: the planning of
        Cohen 1988, "Statistical power analysis for the behavioral sciences", with the spread that was measured and not
        the change that was found. Card et al. 2020, "With little power comes great responsibility", ask for it beside
        each comparison of accuracies.
        """
        return _quantiles(num_tests) * self.standard_error


def estimate_mean(cells: Sequence[npt.NDArray[np.float64]], *, lowest: float, same_images: bool) -> Estimate:
    """Estimate the mean over *cells* of the means of their values.

    Args:
        cells: Values of the samples of each cell, each of shape (N,), from *lowest* to 1.
        lowest: 0 for errors, -1 for differences of errors.
        same_images: Whether each cell has the same images in the same order. Then an image is drawn together with all
            of its corruptions, since these are not independent.
    """
    generator = np.random.default_rng(_SEED)
    mean = float(np.mean([cell.mean() for cell in cells]))
    sign = -1.0 if mean < 0 else 1.0  # so that A against B and B against A give the same result
    if same_images:
        means = sign * bootstrap_means(np.mean([sign * cell for cell in cells], axis=0), generator)
        num_images = len(cells[0])
    else:
        means = sign * np.mean([bootstrap_means(sign * cell, generator) for cell in cells], axis=0)
        num_images = min(map(len, cells)) * len(cells)
    low, high = percentile_interval(means)
    if low == high:
        unseen = largest_unseen_share(num_images)
        low, high = low - unseen * (low - lowest), high + unseen * (1 - high)
    standard_error = max(float(means.std()), _quantiles(1) * _mean_change(cells, same_images=same_images) / num_images)
    return Estimate(mean=mean, low=low, high=high, p_value=bootstrap_p(means), standard_error=standard_error)


def _mean_change(cells: Sequence[npt.NDArray[np.float64]], *, same_images: bool) -> float:
    """Return the mean size of the values that are not 0, each weighted by its size; 1 if all are 0."""
    values = np.abs(np.mean(cells, axis=0) if same_images else np.concatenate(cells))
    return float((values**2).sum() / values.sum()) if values.any() else 1.0


def _quantiles(num_tests: int) -> float:
    """Return the number of standard errors from which on a change is shown with `POWER`, as one of *num_tests*."""
    normal = NormalDist()
    return normal.inv_cdf(1 - LEVEL / num_tests / 2) + normal.inv_cdf(POWER)


def largest_unseen_share(num_images: int) -> float:
    """Return the largest share of other images that *num_images* may all lack by chance, at 95 %.

    If all images have the same value, such as no error, every resample has it too, and the bootstrap sees no
    uncertainty. Clopper and Pearson 1934, "The use of confidence or fiducial limits", give this bound for 0 of N; it is
    about 3.7 / N.
    """
    return float(1 - (LEVEL / 2) ** (1 / num_images))


def percentile_interval(means: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return the percentiles between which 95 % of the resampled *means* lie."""
    low, high = np.quantile(means, (LEVEL / 2, 1 - LEVEL / 2))
    return float(low), float(high)


def bootstrap_p(means: npt.NDArray[np.float64]) -> float:
    """Return the two-sided p-value for a mean of 0, from resampled *means*; never below 2 / (`NUM_DRAWS` + 1)."""
    beyond = min((means <= 0).sum(), (means >= 0).sum())
    return float(min(1, 2 * (beyond + 1) / (len(means) + 1)))
