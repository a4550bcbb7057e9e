"""The verdict on two experiments in a sentence, as the command line, the report and its comparison page say it."""

from tta_pipeline.report.significance.paired_tests import LEVEL, POWER, Estimate


def say_verdict(
    names: tuple[str, str],
    errors: tuple[float, float],
    change: Estimate,
    *,
    num_tests: int = 1,
    where: str = "over their common cells",
) -> str:
    """Return which of two experiments is better, by how much, and whether the difference is more than chance.

    The better one is named first, so the sentence does not depend on the order of the two. If neither is shown to be
    better, a second sentence says which difference these images would have shown.

    Args:
        names: Experiments A and B.
        errors: Their mean errors on the same samples.
        change: Mean error of B minus mean error of A.
        num_tests: Number of tests for which the p-value of *change* is corrected.
        where: The cells of these means, in words.
    """
    low, high = change.low, change.high
    if change.mean < 0:
        names, errors, low, high = names[::-1], errors[::-1], -high, -low
    decimals = 1 if abs(change.mean) >= 0.0005 else 2  # not "by 0.0 points"
    gap, low_text, high_text = (f"{100 * value:z.{decimals}f}" for value in (abs(change.mean), low, high))
    means = f"mean error {errors[0]:.1%} against {errors[1]:.1%} {where}"
    interval = f"95% interval {low_text} to {high_text}, p = {change.p_value:.2g}"
    if change.p_value > LEVEL:
        detectable = 100 * change.detectable(num_tests=num_tests)
        return (
            f"{names[0]} is not shown to be better than {names[1]}: {means}, a difference of {gap} points, {interval}. "
            f"A difference of {detectable:.{decimals}f} points would be shown in {POWER:.0%} of cases."
        )
    return f"{names[0]} is better than {names[1]} by {gap} points, more than chance: {means}, {interval}."
