"""Paired tests say what they say they do."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from tta_pipeline.report.significance.paired_tests import holm, mcnemar


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_is_a_fair_coin(only_a: int, only_b: int):
    """The p-value is the share of outcomes of the coin that are no likelier than what was found."""
    tosses = only_a + only_b
    outcomes = binom.pmf(np.arange(tosses + 1), tosses, 0.5)

    expected = outcomes[outcomes <= outcomes[only_a] * (1 + 1e-9)].sum()

    assert expected == pytest.approx(mcnemar(only_a, only_b), rel=1e-6)


def test_holm_corrects_as_in_the_textbook():
    """The smallest by the number of tests, the next by one less, and none below one before it."""
    assert pytest.approx((0.03, 0.06, 0.06, 0.02)) == holm([0.01, 0.04, 0.03, 0.005])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_holm_rejects_as_its_steps_do(p_values: list[float]):
    """From the smallest on, each is compared with the level over those that are left, until one is above."""
    level, corrected = 0.05, holm(p_values)
    rejected = list[float]()
    for number, p_value in enumerate(sorted(p_values)):
        if p_value * (len(p_values) - number) > level:
            break
        rejected.append(p_value)

    assert len(rejected) == sum(value <= level for value in corrected)
