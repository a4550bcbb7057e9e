"""Checks of the newest evaluation of a cell against its earlier records: is it slower, and has its error changed?

What slower and changed mean is the view `history_comparison`. It is asked of the record files, which are the source of
truth; the database may be behind.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import dagster as dg

from tta_pipeline.defs.reporting import CheckReport
from tta_pipeline.results.evaluation_record import MAX_ERROR_DRIFT, MIN_EARLIER, MIN_SPEED_RATIO
from tta_pipeline.util.partitions import PartitionKey

if TYPE_CHECKING:
    from tta_pipeline.evaluation.experiment_results import ExperimentResults
    from tta_pipeline.results.database.history import Compared, HistoryComparison

THROUGHPUT = "throughput_regression"
DRIFT = "accuracy_drift"
HISTORY_CHECKS: Mapping[str, str] = {
    THROUGHPUT: f"The newest evaluation is at least {MIN_SPEED_RATIO} times as fast as the median of its history under "
    "the same conditions: device, processor, cores, threads, processes, batch size, precision, compile mode and "
    "loader.",
    DRIFT: "The error of the newest evaluation equals earlier ones of the same data, weights and settings, and is "
    f"within {100 * MAX_ERROR_DRIFT:g} points of the median of its history.",
}


def history_reports(
    results: "ExperimentResults", key: PartitionKey, history: "HistoryComparison"
) -> Sequence[CheckReport]:
    """Return the findings of both checks on the streams at *key*.

    Raises:
        RecordError: the newest record of a cell is damaged or foreign.
    """
    names = [results.record_name(place) for place in results.places(key)]
    rows = history.compare(results.records_folder, names)
    return _throughput(rows), _drift(rows)


def _throughput(rows: "Sequence[Compared]") -> CheckReport:
    """Compare the time of the streams with the time that they would take at their usual speeds."""
    known = [(row, row.usual_images_per_s) for row in rows if row.usual_images_per_s]
    conditions = "; ".join(dict.fromkeys(row.conditions or "not known" for row in rows))
    if not known:
        return _report(
            THROUGHPUT,
            passed=True,
            found=f"fewer than {MIN_EARLIER} earlier evaluations under these conditions: nothing to compare",
            compared=conditions,
        )
    usual_s = sum(row.num_samples / images_per_s for row, images_per_s in known)
    actual_s = sum(row.num_samples / row.images_per_s for row, _ in known)
    num_samples = sum(row.num_samples for row, _ in known)
    ratio, num_earlier = usual_s / actual_s, min(row.num_earlier_alike for row, _ in known)
    return _report(
        THROUGHPUT,
        passed=ratio >= MIN_SPEED_RATIO,
        found=f"{ratio:.2f} times as fast as usual; expected at least {MIN_SPEED_RATIO}. Compared with at least "
        f"{num_earlier} earlier evaluations under the same conditions",
        compared=conditions,
        speed_ratio=ratio,
        images_per_s=num_samples / actual_s,
        usual_images_per_s=num_samples / usual_s,
        num_earlier=num_earlier,
    )


def _drift(rows: "Sequence[Compared]") -> CheckReport:
    distances = [(row.error - row.usual_error, row) for row in rows if row.usual_error is not None]
    if not distances:
        return _report(DRIFT, passed=True, found="no earlier evaluation: nothing to compare")
    problems = [
        f"{row.corruption} {row.severity}: error {row.error:.4f}, and {error:.4f} before, with the same data, "
        "weights and settings"
        for row in rows
        for error in dict.fromkeys(row.other_errors or ())
    ]
    distance, row = max(distances, key=lambda each: abs(each[0]))
    if row.has_drifted:
        problems.append(
            f"{row.corruption} {row.severity}: error {row.error:.4f}, {distance:+.4f} from the median of "
            f"{row.num_earlier} earlier ones"
        )
    return _report(DRIFT, passed=not problems, found="; ".join(problems) or "as before", distance_from_median=distance)


def _report(check: str, *, passed: bool, found: str, **metadata: float | str) -> CheckReport:
    return CheckReport(
        check=check, passed=passed, severity=dg.AssetCheckSeverity.WARN, metadata={"found": found, **metadata}
    )
