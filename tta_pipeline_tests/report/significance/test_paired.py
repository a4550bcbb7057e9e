"""Paired tests say what they say they do."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from tta_pipeline.report.significance import paired_tests
from tta_pipeline.report.significance.paired_tests import (
    bootstrap_means,
    bootstrap_p,
    estimate_mean,
    holm,
    mcnemar,
    percentile_interval,
)


@pytest.fixture
def _few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw a tenth of the resamples, which is enough to count how often an interval holds the truth."""
    monkeypatch.setattr(paired_tests, "NUM_DRAWS", 1_000)


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


def test_a_resample_by_counts_is_a_resample_of_samples():
    """Mean and spread of the resampled means are those of drawing each sample with replacement."""
    values = np.array([1.0] * 30 + [-1.0] * 10 + [0.0] * 60)
    generator = np.random.default_rng(1)

    drawn = generator.choice(values, (10_000, len(values))).mean(1)
    means = bootstrap_means(values, generator)

    assert drawn.mean() == pytest.approx(means.mean(), abs=0.003)
    assert drawn.std() == pytest.approx(means.std(), rel=0.05)
    assert percentile_interval(drawn) == pytest.approx(percentile_interval(means), abs=0.011)


@pytest.mark.usefixtures("_few_draws")
def test_an_interval_holds_the_truth_as_often_as_it_says():
    """19 of 20 times, within what chance allows in 400 repeats."""
    generator = np.random.default_rng(2)
    shares = (0.15, 0.1, 0.75)

    held = 0
    for _ in range(400):
        low, high = percentile_interval(bootstrap_means(generator.choice([1.0, -1.0, 0.0], 300, p=shares), generator))
        held += low <= shares[0] - shares[1] <= high

    assert 0.92 <= held / 400 <= 0.975


@pytest.mark.usefixtures("_few_draws")
@pytest.mark.parametrize(("num_images", "differing"), [(1000, 0.1), (300, 0.3), (2000, 0.0)])
def test_a_detectable_change_is_shown_in_four_of_five_cases(num_images: int, differing: float):
    """Of a change of that size, where as many images differ as were seen to; also where none was seen to differ."""
    generator = np.random.default_rng(4)
    each_way = round(num_images * differing / 2)
    seen = np.array([1.0, -1.0] * each_way + [0.0] * (num_images - 2 * each_way))
    change = estimate_mean([seen], lowest=-1, same_images=True).detectable()
    worse = max(differing / 2, change / 2) + change / 2
    shares = (worse, worse - change, 1 - 2 * worse + change)

    repeats = [generator.choice([1.0, -1.0, 0.0], num_images, p=shares) for _ in range(150)]
    shown = np.mean([bootstrap_p(bootstrap_means(each, generator)) <= 0.05 for each in repeats])

    assert 0.71 <= shown <= (0.89 if differing else 0.97), shown


def test_one_of_many_tests_detects_only_larger_changes():
    """The level is divided by their number: 2.80 and 3.78 standard errors for one of 1 and of 15."""
    found = estimate_mean([np.repeat([1.0, 0.0], 50)], lowest=-1, same_images=True)

    assert pytest.approx((2.8016, 3.7769), abs=1e-3) == [
        found.detectable(num_tests=num_tests) / found.standard_error for num_tests in (1, 15)
    ]
    assert found.standard_error == pytest.approx(0.05, rel=0.03)


def test_no_difference_has_a_large_p_value():
    """And a clear one the least there is with so many draws."""
    generator = np.random.default_rng(3)

    assert bootstrap_p(bootstrap_means(np.zeros(100), generator)) == 1
    assert bootstrap_p(bootstrap_means(np.ones(100), generator)) < 0.001


@pytest.mark.parametrize("same_images", [True, False])
def test_the_other_way_round_is_the_same_with_the_signs_changed(*, same_images: bool):
    """Who is called A decides nothing."""
    generator = np.random.default_rng(2)
    cells = [generator.choice([-1.0, 0.0, 0.0, 1.0, 1.0], 300) for _ in range(3)]

    one = estimate_mean(cells, lowest=-1, same_images=same_images)
    other = estimate_mean([-cell for cell in cells], lowest=-1, same_images=same_images)

    assert (one.mean, one.low, one.high, one.p_value) == pytest.approx(
        (-other.mean, -other.high, -other.low, other.p_value)
    )


@pytest.mark.parametrize(("value", "lowest"), [(0.0, 0), (1.0, 0), (0.0, -1), (1.0, -1)])
def test_an_interval_never_says_that_chance_is_over(value: float, lowest: int):
    """Without an error among 100 images, the next 100 may have some: at most as many as Clopper and Pearson allow."""
    found = estimate_mean([np.full(100, value)] * 3, lowest=lowest, same_images=True)
    limits = binomtest(0, 100).proportion_ci(0.95, "exact")

    assert found.low == pytest.approx(value - limits.high * (value - lowest))
    assert found.high == pytest.approx(value + limits.high * (1 - value))
    apart = estimate_mean([np.full(100, value)] * 3, lowest=lowest, same_images=False)
    assert apart.high - apart.low < found.high - found.low
