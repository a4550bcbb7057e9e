"""Whether an experiment is no worse than a baseline: a test of non-inferiority over the cells of its mean."""

from collections.abc import Iterator, Mapping

from tta_pipeline.report.gate.finding import Finding
from tta_pipeline.report.gate.judged_results import JudgedResult, Unit, name_unit
from tta_pipeline.report.significance.paired_tests import Estimate, estimate_from_counts, estimate_mean
from tta_pipeline.util.short_lists import first_few

Results = Mapping[Unit, JudgedResult]
_SAME = "nothing that decides a prediction differs: the same evaluation"
_PAIRED = "paired bootstrap over images: the upper end of the 95 % interval of the difference lies below the margin"
_UNPAIRED = (
    "unpaired, from counts of errors, since predictions of each sample are missing: the upper end of the 95 % interval "
    "of the difference lies below the margin"
)
_NUM_NAMED = 3


def judge_against(experiment: str, own: Results, baseline: Results, *, named: str, margin: float) -> Finding:
    """Return whether the mean error of *own* is at most *margin* above the mean error of *baseline*.

    Args:
        experiment: Name of the experiment.
        own: Its results.
        baseline: Results of the baseline.
        named: What the baseline is called.
        margin: The largest increase that counts as no worse, in [0, 1].
    """
    demand = f"mean error no worse than {named} by {margin:g} or more"
    counted = {unit: each for unit, each in own.items() if each.in_mean} or own
    if problem := next(_problems(counted, baseline), ""):
        return Finding(experiment=experiment, demand=demand, is_kept=False, test="none", reason=problem)
    change, test = _estimate(counted, {unit: baseline[unit] for unit in counted})
    is_same = test == _SAME
    return Finding(
        experiment=experiment,
        demand=demand,
        is_kept=is_same or change.high < margin,
        column="mean_error_change",
        value=change.mean,
        low=None if is_same else change.low,
        high=None if is_same else change.high,
        test=test,
        reason="" if is_same else "; ".join(_say_worst(counted, baseline)),
    )


def _problems(own: Results, baseline: Results) -> Iterator[str]:
    """Yield why the baseline cannot be compared: it lacks cells, or is of other images."""
    if lacking := [name_unit(unit) for unit in own if unit not in baseline]:
        yield (
            f"the baseline has no result of {first_few(lacking, _NUM_NAMED)}: evaluate it on the same cells and seeds, "
            "or publish it again"
        )
        return
    for unit, each in own.items():
        other = baseline[unit]
        if each.manifest_sha256 != other.manifest_sha256:
            yield f"the baseline is stale: its result of {name_unit(unit)} is of other shards: evaluate it on these"
        elif (each.num_samples, each.subset_sha256) != (other.num_samples, other.subset_sha256) or (
            each.wrong and other.wrong and each.wrong.samples != other.wrong.samples
        ):
            yield (
                f"the baseline has {other.num_samples:,} samples of {name_unit(unit)}, and the experiment "
                f"{each.num_samples:,}, which are not the same: evaluate both on the same subset"
            )


def _estimate(own: Results, baseline: Results) -> tuple[Estimate, str]:
    pairs = [(baseline[unit], each) for unit, each in own.items()]
    if all((old.decided_by, old.predictions_sha256) == (new.decided_by, new.predictions_sha256) for old, new in pairs):
        return Estimate(mean=0.0, low=0.0, high=0.0, p_value=1.0, standard_error=0.0), _SAME
    wrong = [(old.wrong, new.wrong) for old, new in pairs if old.wrong is not None and new.wrong is not None]
    if len(wrong) == len(pairs):
        differences = [new.is_wrong.astype(float) - old.is_wrong for old, new in wrong]
        same_images = len({old.images for old, _ in wrong}) == 1
        return estimate_mean(differences, lowest=-1, same_images=same_images), _PAIRED
    counts = [[(each.num_samples - each.num_correct, each.num_samples) for each in pair] for pair in pairs]
    return estimate_from_counts([(old, new) for old, new in counts]), _UNPAIRED


def _say_worst(own: Results, baseline: Results) -> Iterator[str]:
    """Yield a sentence about the cells whose error grew most, if any did."""
    grown = sorted(own, key=lambda unit: baseline[unit].error - own[unit].error)
    worst = [
        f"{name_unit(unit)} {baseline[unit].error:.1%} to {own[unit].error:.1%}"
        for unit in grown[:_NUM_NAMED]
        if own[unit].error > baseline[unit].error
    ]
    if worst:
        yield f"errors grew most at {', '.join(worst)}"
