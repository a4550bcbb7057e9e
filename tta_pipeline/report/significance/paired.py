"""Paired tests: two experiments on the same samples."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

NUM_DRAWS = 10_000
LEVEL = 0.05
"""Largest p-value that counts as more than chance, and what an interval leaves out."""
_SEED = 0
"""Of the resampling: the same results give the same intervals."""


def mcnemar(only_a: npt.ArrayLike, only_b: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return the exact two-sided p-values that as many samples are wrong in A alone as in B alone, shape (M,).

    McNemar 1947, "Note on the sampling error of the difference between correlated proportions or percentages": samples
    that both have right, or both wrong, say nothing, and the others are tosses of a fair coin.
    """
    from scipy.stats import binom  # takes half a second to import

    fewer, together = np.minimum(only_a, only_b), np.add(only_a, only_b)
    p_values: npt.NDArray[np.float64] = np.minimum(1.0, 2 * binom.cdf(fewer, together, 0.5))
    return p_values


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return *p_values* corrected for their number, so that a false one among all is as rare as one alone.

    Holm 1979, "A simple sequentially rejective multiple test procedure".
    """
    order = np.argsort(p_values, kind="stable")
    factors = np.arange(len(p_values), 0, -1)
    corrected = np.empty(len(p_values))
    corrected[order] = np.minimum(1, np.maximum.accumulate(np.asarray(p_values)[order] * factors))
    return tuple(corrected.tolist())


def bootstrapped(values: npt.NDArray[np.float64], generator: np.random.Generator) -> npt.NDArray[np.float64]:
    """Return the means of `NUM_DRAWS` resamples of *values*, shape (N,), with replacement.

    Efron and Tibshirani 1993, "An introduction to the bootstrap", chapter 13. A resample is drawn as how often each
    distinct value comes, which is the same and takes no longer for a million samples.
    """
    distinct, counts = np.unique(values, return_counts=True)
    drawn = generator.multinomial(len(values), counts / len(values), size=NUM_DRAWS)
    means: npt.NDArray[np.float64] = drawn @ distinct / len(values)
    return means


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean over cells, of an error or of a change of error, and how far chance moves it."""

    mean: float
    low: float
    """Where the 95 % interval begins, by the bootstrap over images."""
    high: float
    p_value: float
    """Two-sided, that the mean is 0."""


def estimate(cells: Sequence[npt.NDArray[np.float64]], *, same_images: bool) -> Estimate:
    """Estimate the mean over *cells* of the means of their values.

    Args:
        cells: Values of the samples of each cell, each of shape (N,).
        same_images: Whether each cell has the same images in the same order. Such an image is drawn with all its
            corruptions, since they are no independent images.
    """
    generator = np.random.default_rng(_SEED)
    mean = float(np.mean([cell.mean() for cell in cells]))
    sign = -1.0 if mean < 0 else 1.0  # A against B is drawn as B against A, so that both say the same
    if same_images:
        means = sign * bootstrapped(np.mean([sign * cell for cell in cells], axis=0), generator)
    else:
        means = sign * np.mean([bootstrapped(sign * cell, generator) for cell in cells], axis=0)
    low, high = interval(means)
    return Estimate(mean=mean, low=low, high=high, p_value=bootstrap_p(means))


def interval(means: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return the percentiles between which 95 % of the resampled *means* lie."""
    low, high = np.quantile(means, (LEVEL / 2, 1 - LEVEL / 2))
    return float(low), float(high)


def bootstrap_p(means: npt.NDArray[np.float64]) -> float:
    """Return the two-sided p-value that the mean is 0, from resampled *means*; never below 2 / `NUM_DRAWS`."""
    beyond = min((means <= 0).sum(), (means >= 0).sum())
    return float(min(1, 2 * (beyond + 1) / (len(means) + 1)))
