"""The first sentences of a report: what adaptation gains, whether the best beats the next, and what hurts most."""

from collections.abc import Mapping
from statistics import fmean

from tta_pipeline.report.pages.comparison import Pairs, p_values_beside, verdict_on
from tta_pipeline.report.pages.findings import Findings
from tta_pipeline.report.significance.paired_tests import LEVEL
from tta_pipeline.util.plurals import count_of


def headline(found: Findings, compared: Pairs) -> str:
    """Return the main result: what adaptation gains, whether the best is shown to beat the next, and what hurts it."""
    if not found.in_mean(found.best):
        return f"None of {len(found.errors)} experiments has a shift in the mean: all shifts are held out for tuning."
    corrected = p_values_beside(found.best, found.rivals, compared)
    parts = (
        _say_gain(found, corrected),
        _say_ties(found.best, corrected),
        _verdict_on_best(found, compared, corrected),
    )
    return " ".join(filter(None, (*parts, _say_hardest(found))))


def _say_gain(found: Findings, corrected: Mapping[str, float]) -> str:
    """Return the mean error of the best experiment, next to that of the unadapted model if it saw the same cells."""
    best, source = found.best, found.unadapted
    mean, of = f"{found.means[best]:.1%}", f"{count_of(1 + len(found.rivals), 'experiment')} on {_say_cells(found)}"
    if not found.rivals:
        return f"{best} has a mean error of {mean} on {_say_cells(found)}."
    if source is None or source == best:
        return f"{best}{' (unadapted)' if source else ''} has the lowest mean error of {of}: {mean}."
    unadapted = f"{found.means[source]:.1%} (unadapted)"
    if source not in corrected:
        return f"{best} has the lowest mean error of {of}: {mean}, against {unadapted}."
    if corrected[source] > LEVEL:
        not_shown = f"Adaptation with {best} is not shown to cut the mean error"
        return f"{not_shown}: {mean}, the lowest of {of}, against {unadapted}."
    return f"Adaptation with {best} cuts the mean error from {unadapted} to {mean}, the lowest of {of}."


def _say_cells(found: Findings) -> str:
    """Return the number of cells of the best experiment, with the protocol if the leaderboard has several."""
    spec = found.benchmark.experiments[found.best]
    has_several = len(set(found.tables["leaderboard"].column("protocol"))) > 1
    details = [f"{spec.subset.name} samples of each"] if spec.subset else []
    details += [f"protocol {spec.protocol.name}"] if has_several else []
    cells = count_of(len(found.in_mean(found.best)), "cell")
    return f"{cells} ({', '.join(details)})" if details else cells


def _say_ties(best: str, corrected: Mapping[str, float]) -> str:
    """Return which experiments are not shown to differ from the best; empty if each is, or if none can be tested."""
    tied = [name for name, p_value in corrected.items() if p_value > LEVEL]
    return f"Tied with {best} (no difference is shown): {', '.join(tied)}." if tied else ""


def _verdict_on_best(found: Findings, compared: Pairs, corrected: Mapping[str, float]) -> str:
    """Return the verdict on the best experiment and the next best on the same cells; empty if it cannot be given.

    Its p-value is *corrected* for all experiments except the best, as the marks of the leaderboard are.
    """
    best, second = found.best, min(found.rivals, key=found.means.__getitem__, default="")
    if second not in corrected:
        return ""
    pair = compared[best, second] if (best, second) in compared else compared[second, best].swapped()
    return verdict_on((best, second), pair, p_holm=corrected[second], num_tests=len(corrected)) or ""


def _say_hardest(found: Findings) -> str:
    """Return the corruption with the highest mean error of the best experiment; empty if there is only one."""
    by_corruption: dict[str, list[float]] = {}
    for cell, error in found.in_mean(found.best).items():
        by_corruption.setdefault(cell.corruption, []).append(error)
    means = {corruption: fmean(errors) for corruption, errors in by_corruption.items()}
    hardest = max(means, key=means.__getitem__)
    return f"{hardest} hurts {found.best} most, {means[hardest]:.1%}." if len(means) > 1 else ""
