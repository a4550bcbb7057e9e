"""The verdict on two experiments in a sentence, as the command line, the report and its comparison page say it."""

from tta_pipeline.report.significance.estimates import LEAST_P, POWER, Estimate
from tta_pipeline.report.significance.paired_tests import LEVEL

_OTHER_ORDER = (
    " They saw the images in different orders: give both the same seeds and protocol to compare the methods alone."
)


def say_verdict(
    names: tuple[str, str],
    errors: tuple[float, float],
    change: Estimate,
    *,
    p_holm: float | None = None,
    num_tests: int = 1,
    where: str = "over their common cells",
    same_order: bool,
    batch_sizes: tuple[int, int] | None = None,
    same_weights: bool = True,
) -> str:
    """Return which of two experiments is better, by how much, and whether the difference is more than chance.

    A is named first. If neither is shown to be better, a second sentence states the difference that these images would
    have shown.

    Args:
        names: Experiments A and B.
        errors: Their mean errors on the same samples.
        change: Mean error of B minus mean error of A.
        p_holm: The p-value of *change* by Holm's correction for *num_tests*; None: it is the only test.
        num_tests: Number of tests, if the two were chosen among several.
        where: The cells of these means, in words.
        same_order: Whether both saw the samples in the same order; if not, a last sentence says so.
        batch_sizes: Batch sizes of A and B; if they differ, a last sentence says so. None: not known.
        same_weights: Whether their models have the same weights; if not, a last sentence says so.
    """
    is_worse = change.mean < 0
    low, high = (-change.high, -change.low) if is_worse else (change.low, change.high)
    verdict = f"{'worse' if is_worse else 'better'} than {names[1]}"
    decimals = 1 if abs(change.mean) >= 0.0005 else 2  # not "by 0.0 points"
    gap, low_text, high_text = (f"{100 * value:z.{decimals}f}" for value in (abs(change.mean), low, high))
    means = f"mean error {errors[0]:.1%} against {errors[1]:.1%} {where}"
    p_value = f"p {say_p(change.p_value)}"
    if p_holm is not None and num_tests > 1:
        p_value += f" ({say_p(p_holm, num_tests=num_tests)} by Holm's correction for {num_tests} tests)"
    units = _say_units(change) if same_order else "images"
    interval = f"95% interval {low_text} to {high_text} over {units}, {p_value}"
    note = "" if same_order else _OTHER_ORDER
    if batch_sizes and batch_sizes[0] != batch_sizes[1]:
        note += f" They had different batch sizes ({batch_sizes[0]:,}, {batch_sizes[1]:,})."
    if not same_weights:
        note += " Their models have different weights, which may explain the difference as well as the method."
    if (change.p_value if p_holm is None else p_holm) > LEVEL:
        difference = 100 * change.min_detectable_diff()
        return (
            f"{names[0]} is not shown to be {verdict}: {means}, a difference of {gap} points, {interval}. "
            f"In one test, a difference of {difference:.{decimals}f} points would be shown in {POWER:.0%} of "
            f"cases.{note}"
        )
    return f"{names[0]} is {verdict} by {gap} points, more than chance: {means}, {interval}.{note}"


def say_same_predictions(
    names: tuple[str, str], num_samples: int, error: float, *, where: str = "over their common cells"
) -> str:
    """Return that two experiments predict the same on all *num_samples* samples, of which *error* are wrong."""
    return (
        f"All {num_samples:,} predictions of {names[0]} and {names[1]} {where} are the same (mean error {error:.1%}): "
        "one of the methods changed nothing, or both do the same."
    )


def say_p(p_value: float, *, num_tests: int = 1) -> str:
    """Return a p-value with its sign, such as `= 0.013`; `<= 0.0002` if the draws can show no less."""
    is_least = p_value <= LEAST_P * num_tests
    return f"{'<=' if is_least else '='} {p_value:.2g}"


def _say_units(change: Estimate) -> str:
    """Return what else the interval covers: other images, and other orders if several were evaluated."""
    return "images in this order" if change.num_seeds == 1 else f"images and {change.num_seeds} orders"
