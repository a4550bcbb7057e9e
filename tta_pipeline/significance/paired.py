"""Paired tests: two experiments on the same samples."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

NUM_DRAWS = 10_000
LEVEL = 0.05
"""Largest p-value that counts as more than chance, and what an interval leaves out."""


def mcnemar(only_a: int, only_b: int) -> float:
    """Return the exact two-sided p-value that as many samples are wrong in A alone as in B alone.

    McNemar 1947, "Note on the sampling error of the difference between correlated proportions or percentages": samples
    that both have right, or both wrong, say nothing, and the others are tosses of a fair coin.
    """
    from scipy.stats import binomtest  # takes half a second to import

    if only_a + only_b == 0:
        return 1.0
    return float(binomtest(only_a, only_a + only_b).pvalue)


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


def interval(means: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return the percentiles between which 95 % of the resampled *means* lie."""
    low, high = np.quantile(means, (LEVEL / 2, 1 - LEVEL / 2))
    return float(low), float(high)


def bootstrap_p(means: npt.NDArray[np.float64]) -> float:
    """Return the two-sided p-value that the mean is 0, from resampled *means*; never below 2 / `NUM_DRAWS`."""
    beyond = min((means <= 0).sum(), (means >= 0).sum())
    return float(min(1, 2 * (beyond + 1) / (len(means) + 1)))
