"""Estimates of means over cells say what they say they do."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import binomtest

from tta_pipeline.report.significance import estimates
from tta_pipeline.report.significance.estimates import (
    LEAST_P,
    CellValues,
    bootstrap_means,
    bootstrap_p,
    estimate_mean,
    percentile_interval,
    upper_bound,
)
from tta_pipeline.shards.photographs import Numbered

Values = npt.NDArray[np.float64]


@pytest.fixture
def _few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw a tenth of the resamples, which is enough to count how often an interval holds the truth."""
    monkeypatch.setattr(estimates, "NUM_DRAWS", 1_000)


def shown(values: Values, photographs: Values | None = None, *, group: int = 0, **more: object) -> CellValues:
    """Return a cell whose samples show *photographs*, by default number 0, 1, 2, ..."""
    numbers = np.arange(len(values)) if photographs is None else photographs
    return CellValues(values=values, photographs=Numbered(group=group, numbers=numbers), **more)  # type: ignore[arg-type]


def changes(generator: np.random.Generator, shape: int | tuple[int, ...]) -> Values:
    """Return changes of error, as many for the better as for the worse."""
    return generator.choice([1.0, -1.0, 0.0], shape, p=(0.1, 0.1, 0.8))


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
    change = estimate_mean([shown(seen)], lowest=-1).min_detectable_diff()
    worse = max(differing / 2, change / 2) + change / 2
    shares = (worse, worse - change, 1 - 2 * worse + change)

    repeats = [generator.choice([1.0, -1.0, 0.0], num_images, p=shares) for _ in range(150)]
    found = np.mean([bootstrap_p(bootstrap_means(each, generator)) <= 0.05 for each in repeats])

    assert 0.71 <= found <= (0.89 if differing else 0.97), found


def test_one_of_many_tests_detects_only_larger_changes():
    """The level is divided by their number: 2.80 and 3.78 standard errors for one of 1 and of 15."""
    found = estimate_mean([shown(np.repeat([1.0, 0.0], 50))], lowest=-1)

    assert pytest.approx((2.8016, 3.7769), abs=1e-3) == [
        found.min_detectable_diff(num_tests=num_tests) / found.standard_error for num_tests in (1, 15)
    ]
    assert found.standard_error == pytest.approx(0.05, rel=0.03)


def test_no_difference_has_a_large_p_value():
    """And a clear one the least there is with so many draws."""
    generator = np.random.default_rng(3)

    assert bootstrap_p(bootstrap_means(np.zeros(100), generator)) == 1
    assert bootstrap_p(bootstrap_means(np.ones(100), generator)) < 0.001


@pytest.mark.parametrize("groups", [(0, 0, 0), (0, 0, 1)])
@pytest.mark.parametrize("seeds", [(0, 0, 0), (0, 1, 2)])
def test_the_other_way_round_is_the_same_with_the_signs_changed(groups: Sequence[int], seeds: Sequence[int]):
    """Who is called A decides nothing."""
    generator = np.random.default_rng(2)
    values = generator.choice([-1.0, 0.0, 0.0, 1.0, 1.0], (3, 300))

    one, other = (
        estimate_mean(
            [shown(sign * v, group=g, seed=s) for v, g, s in zip(values, groups, seeds, strict=True)], lowest=-1
        )
        for sign in (1, -1)
    )

    assert (one.mean, one.low, one.high, one.p_value) == pytest.approx(
        (-other.mean, -other.high, -other.low, other.p_value)
    )


@pytest.mark.parametrize(("value", "lowest"), [(0.0, 0), (1.0, 0), (0.0, -1), (1.0, -1)])
def test_an_interval_never_says_that_chance_is_over(value: float, lowest: int):
    """Without an error among 100 images, the next 100 may have some: at most as many as Clopper and Pearson allow."""
    found = estimate_mean([shown(np.full(100, value))] * 3, lowest=lowest)
    limits = binomtest(0, 100).proportion_ci(0.95, "exact")

    assert found.low == pytest.approx(value - limits.high * (value - lowest))
    assert found.high == pytest.approx(value + limits.high * (1 - value))


def test_a_photograph_is_drawn_with_all_its_samples():
    """The same 200 changes in each of ten cells are 200 observations, and not 2,000."""
    values = changes(np.random.default_rng(5), 200)

    one, ten = (estimate_mean([shown(values)] * number, lowest=-1) for number in (1, 10))

    assert (one.low, one.high, one.num_photographs) == pytest.approx((ten.low, ten.high, ten.num_photographs))


def test_one_missing_image_changes_next_to_nothing():
    """The other photographs are still drawn with all their samples."""
    generator = np.random.default_rng(6)
    values = np.sign(changes(generator, 300) + changes(generator, (20, 300)))

    whole = estimate_mean([shown(cell) for cell in values], lowest=-1)
    less = estimate_mean([shown(values[0, 1:], np.arange(1, 300)), *map(shown, values[1:])], lowest=-1)

    assert whole.standard_error == pytest.approx(less.standard_error, rel=0.03)
    assert (300, 300) == (whole.num_photographs, less.num_photographs)


def test_photographs_that_cannot_be_told_apart_never_narrow_an_interval():
    """Whether ten cells show the same or others, the interval is as wide as if they were the same."""
    values = changes(np.random.default_rng(7), 200)

    same = estimate_mean([shown(values)] * 10, lowest=-1)
    unknown = estimate_mean([shown(values, group=number) for number in range(10)], lowest=-1)

    assert same.standard_error == pytest.approx(unknown.standard_error, rel=0.02)
    assert same.num_photographs == unknown.num_photographs


@pytest.mark.usefixtures("_few_draws")
@pytest.mark.parametrize("num_seeds", [1, 2, 4])
def test_with_several_seeds_the_interval_covers_other_orders(num_seeds: int):
    """Each order shifts the change by up to 16 points, which one order cannot show."""
    generator, held = np.random.default_rng(8), 0
    for _ in range(300):
        images, shifts = generator.normal(0, 0.7, 400), generator.normal(0, 0.1, num_seeds)
        cells = [
            shown(np.sign(images + generator.normal(2 * shift, 1, 400)), seed=seed, cell="fog|5")
            for seed, shift in enumerate(shifts)
        ]
        found = estimate_mean(cells, lowest=-1)
        held += found.low <= 0 <= found.high

    assert num_seeds == found.num_seeds
    assert held / 300 > 0.92 if num_seeds > 1 else held / 300 < 0.7


def test_orders_that_change_nothing_widen_no_interval():
    """As those of a method that adapts nothing."""
    values = changes(np.random.default_rng(9), 300)

    one, five = ([shown(values, seed=seed) for seed in range(number)] for number in (1, 5))

    assert estimate_mean(one, lowest=-1).standard_error == estimate_mean(five, lowest=-1).standard_error


@pytest.mark.parametrize("num_worse", [0, 1, 4, 60])
def test_the_bound_of_images_that_only_get_worse_is_that_of_clopper_and_pearson(num_worse: int):
    """Which holds for any number of images."""
    values = np.repeat([1.0, 0.0], [num_worse, 200 - num_worse])

    exact = binomtest(num_worse, 200).proportion_ci(0.95, "exact").high

    assert exact == pytest.approx(upper_bound([shown(values)]), rel=0.05)
    assert exact == pytest.approx(upper_bound([shown(values)] * 3), rel=0.05)


def test_the_bound_of_many_changes_is_the_end_of_the_interval():
    """Where the bootstrap has seen enough; the draws know an end to 0.03 standard errors, the bound adds 0.05."""
    values = changes(np.random.default_rng(10), 20_000)
    estimate = estimate_mean([shown(values)], lowest=-1)

    assert upper_bound([shown(values)]) == pytest.approx(estimate.high, abs=0.15 * estimate.standard_error)
    assert LEAST_P == estimate_mean([shown(np.ones(100))], lowest=-1).p_value


@pytest.mark.parametrize("num_images", [60, 600, 7_000])
def test_one_changed_image_is_no_evidence(num_images: int):
    """A third of the draws lack it, and their mean is exactly 0."""
    values = np.zeros(num_images)
    values[-1] = 1

    assert 0.7 < estimate_mean([shown(values)] * 5, lowest=-1).p_value
