"""The wealth of a gambler against exchangeable scores: fair, uniform ranks, and rare alarms without a shift."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, kstest

from tta_pipeline.report.alarm.martingale import alarm_at, conformal_ranks, log_wealth


def test_ranks_are_those_by_hand():
    """Below, among equals and above: the draw decides the place within the interval of each."""
    draws = np.random.default_rng(7).random(3)

    ranks = conformal_ranks(np.array([0.2, 0.4, 0.4]), np.array([0.1, 0.4, 0.9]), seed=7)

    assert ranks == pytest.approx([draws[0] / 4, (2 + 3 * draws[1]) / 5, (5 + draws[2]) / 6])


def test_nan_ranks_below_every_number():
    """A broken model's confidence is as low as it gets."""
    assert conformal_ranks(np.array([0.0, 0.5]), np.array([math.nan]), seed=0)[0] < 1 / 3


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_each_bet_is_fair(earlier: list[float]):
    """After any ranks, the mean over a uniform next rank is the wealth before: its bets are linear in the rank."""
    before, lowest, highest = (
        np.exp(log_wealth(np.array([*earlier, *following]))[-1]) for following in ([], [0.0], [1.0])
    )

    assert (lowest + highest) / 2 == pytest.approx(before, rel=1e-9)


@pytest.mark.parametrize("num_values", [3, 10**6])
def test_ranks_of_exchangeable_scores_are_uniform(num_values: int):
    """With ties and without, and although later ranks count earlier scores."""
    scores = np.random.default_rng(0).integers(0, num_values, 3_000).astype(float)

    ranks = conformal_ranks(scores[:100], scores[100:], seed=1)

    assert kstest(ranks, "uniform").pvalue > 0.001
    assert abs(np.corrcoef(ranks[1:], ranks[:-1])[0, 1]) < 0.06


def test_false_alarms_are_as_rare_as_the_level_says():
    """At any time of 400 streams of 500 images, with only 20 calibration images each."""
    random = np.random.default_rng(0)
    ranks = [
        conformal_ranks(scores[:20], scores[20:], seed=seed)
        for seed in range(400)
        for scores in [random.exponential(size=520)]
    ]

    alarms = int((log_wealth(np.array(ranks)).max(1) >= math.log(1 / 0.05)).sum())

    assert alarms <= binom.ppf(0.999, 400, 0.05)


@pytest.mark.parametrize("num_clean", [0, 1_000])
def test_a_shift_raises_the_alarm_soon_even_after_a_long_clean_stream(num_clean: int):
    """Confidences that lie below nearly all clean ones need some dozens of images."""
    random = np.random.default_rng(0)
    stream = np.concatenate([random.normal(size=num_clean), random.normal(-2, size=100)])

    at = alarm_at(log_wealth(conformal_ranks(random.normal(size=500), stream, seed=0)), level=0.01)

    assert at is not None
    assert num_clean < at <= num_clean + 40


def test_the_wealth_of_a_long_stream_is_a_finite_number():
    """Evidence of 3,000 images in a row would be no float as such; its logarithm is."""
    wealth = log_wealth(np.full(3_000, 0.99))

    assert np.isfinite(wealth).all()
    assert wealth[-1] > 1_500
