"""A sequential test of whether scores still come as the clean ones did, valid however long one looks.

If calibration scores and later scores are exchangeable, as independent draws from one distribution are, the rank of
each score among all before it, with ties broken at random, is uniform and independent of the earlier ranks (Vovk,
Gammerman and Shafer 2005, "Algorithmic learning in a random world", chapter 2). So no distribution has to be known, and
a finite calibration set needs no correction. A gambler who bets on the next rank with fair odds then cannot gain: the
wealth is a martingale with mean 1, and the probability that it ever reaches 1 / level is at most level (Ville 1939).

Bets are those of POEM (Bar, Shaer and Romano 2024, "Protected test-time adaptation via online entropy matching: a
betting approach", arXiv 2408.07511, section 3): a stake on how far the rank lies from one half. POEM learns one stake
by gradient steps; here the wealth is spread over fixed stakes and over the time at which betting begins, so that a long
clean stream costs the alarm only the logarithm of its length.
"""

import math
from bisect import bisect_left, bisect_right, insort

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]
STAKES = np.array([-2.0, -1.0, -0.5, -0.25, 0.25, 0.5, 1.0, 2.0])
"""Slopes of the bets: a rank u in (0, 1) multiplies the capital by 1 + stake * (u - 1/2), which is never negative."""


def conformal_ranks(calibration: Numbers, stream: Numbers, *, seed: int) -> Numbers:
    """Return the rank in (0, 1), (N,), of each score of *stream*, (N,), among those before it and *calibration*, (M,).

    NaN, the confidence of a broken model, counts as lower than any number. Ties are broken at random, by *seed*.
    """
    past = sorted(np.nan_to_num(calibration, nan=-math.inf).tolist())
    draws = np.random.default_rng(seed).random(len(stream))
    ranks = np.empty(len(stream))
    for place, score in enumerate(np.nan_to_num(stream, nan=-math.inf).tolist()):
        below, up_to = bisect_left(past, score), bisect_right(past, score)
        ranks[place] = (below + draws[place] * (up_to - below + 1)) / (len(past) + 1)
        insort(past, score)
    return ranks


def log_wealth(ranks: Numbers) -> Numbers:
    """Return the natural logarithm of the gambler's wealth after each of *ranks*, (..., N), which starts with 1.

    At step t the gambler takes 1 / (t + 1) of what is not yet staked, and spreads it over `STAKES`.
    """
    staked = np.zeros((*ranks.shape[:-1], len(STAKES)))
    reserve = np.ones(ranks.shape[:-1])
    growth = np.empty_like(ranks)
    for step in range(ranks.shape[-1]):
        share = reserve / (step + 2)
        reserve = reserve - share
        staked = (staked + share[..., None] / len(STAKES)) * (1 + STAKES * (ranks[..., step, None] - 0.5))
        growth[..., step] = reserve + staked.sum(-1)
        # Shares of the present wealth, so that no number grows or vanishes over a long stream.
        reserve, staked = reserve / growth[..., step], staked / growth[..., step, None]
    return np.cumsum(np.log(growth), axis=-1)


def alarm_at(wealth: Numbers, *, level: float) -> int | None:
    """Return how many images were read when the log *wealth*, (N,), first reached 1 / *level*; None: it never did."""
    reached = np.flatnonzero(wealth >= -math.log(level))
    return int(reached[0]) + 1 if len(reached) else None
