"""Paired tests of two experiments on the same samples."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

LEVEL = 0.05
"""Largest p-value that counts as more than chance; intervals cover 1 - `LEVEL`."""


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
