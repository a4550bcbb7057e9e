"""Checks of the newest evaluation of a cell against its earlier records: is it slower, and has its error changed?

They read the record files, which are the source of truth; the database may be behind.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import dagster as dg

from tta_pipeline.defs.reporting import CheckReport
from tta_pipeline.errors import RecordError
from tta_pipeline.results.evaluation_record import Evaluation
from tta_pipeline.util.partitions import PartitionKey

if TYPE_CHECKING:
    from tta_pipeline.evaluation.experiment_results import ExperimentResults

THROUGHPUT = "throughput_regression"
DRIFT = "accuracy_drift"
HISTORY_CHECKS: Mapping[str, str] = {
    THROUGHPUT: "The newest evaluation is at least 0.85 times as fast as the median of its history under the same "
    "conditions: device, processor, cores, threads, processes, batch size, precision, compile mode and loader.",
    DRIFT: "The error of the newest evaluation equals earlier ones of the same data, weights and settings, and is "
    "within 0.5 points of the median of its history.",
}
_MIN_SPEED_RATIO = 0.85
_MAX_DRIFT = 0.005
_MIN_EARLIER = 3
_MAX_EARLIER = 50
"""Number of earlier records to read: the cost stays the same for a cell with a history of years."""


@dataclass(frozen=True, kw_only=True)
class History:
    """The newest evaluation of a cell in one stream, and the earlier ones."""

    newest: Evaluation
    earlier: tuple[Evaluation, ...]

    @property
    def comparable(self) -> tuple[Evaluation, ...]:
        """Earlier evaluations under the newest one's conditions."""
        return tuple(row for row in self.earlier if row.conditions == self.newest.conditions)

    @property
    def usual_images_per_s(self) -> float | None:
        """Median speed of the comparable earlier evaluations; None if there are fewer than three."""
        alike = self.comparable
        return median(row.images_per_s for row in alike) if len(alike) >= _MIN_EARLIER else None

    @property
    def other_errors(self) -> tuple[float, ...]:
        """Distinct earlier errors of the same data, weights and settings that differ from the newest error."""
        same = [row for row in self.earlier if row.fingerprint == self.newest.fingerprint]
        return tuple(dict.fromkeys(row.error for row in same if row.error != self.newest.error))

    @property
    def distance_from_median(self) -> float:
        """Newest error minus the median of the earlier errors; 0 if there are none."""
        return self.newest.error - median(row.error for row in self.earlier) if self.earlier else 0.0


def history_reports(results: "ExperimentResults", key: PartitionKey) -> Sequence[CheckReport]:
    """Return the findings of both checks on the streams at *key*."""
    histories = _read_histories(results, key)
    return _throughput(histories), _drift(histories)


def _read_histories(results: "ExperimentResults", key: PartitionKey) -> tuple[History, ...]:
    """Return the histories of the cells at *key* that have a record.

    Raises:
        RecordError: the newest record of a cell is damaged or foreign.
    """
    folder = results.records_folder / "evaluations"
    names = [results.record_name(place) for place in results.places(key)]
    found = (_read_history(folder / name) for name in names)
    return tuple(history for history in found if history)


def _read_history(folder: Path) -> History | None:
    from tta_pipeline.results.records import read_record, record_file_name, record_numbers

    paths = [folder / record_file_name(number) for number in record_numbers(folder)[-1 - _MAX_EARLIER :]]
    newest = read_record(paths[-1]).evaluation if paths else None
    if newest is None:
        return None
    earlier = (_read_earlier(path) for path in paths[:-1])
    return History(newest=newest, earlier=tuple(row for row in earlier if row and row.subset == newest.subset))


def _read_earlier(path: Path) -> Evaluation | None:
    """Return the evaluation at *path*; None if it is damaged, since publishing reports that."""
    from tta_pipeline.results.records import read_record

    try:
        return read_record(path).evaluation
    except RecordError:
        return None


def _throughput(histories: Sequence[History]) -> CheckReport:
    """Compare the time of the streams with the time that they would take at their usual speeds."""
    usual = [(each, each.usual_images_per_s) for each in histories]
    known = [(each, images_per_s) for each, images_per_s in usual if images_per_s]
    conditions = "; ".join(dict.fromkeys(each.newest.conditions for each in histories))
    if not known:
        return _report(
            THROUGHPUT,
            passed=True,
            found=f"fewer than {_MIN_EARLIER} earlier evaluations under these conditions: nothing to compare",
            compared=conditions,
        )
    usual_s = sum(each.newest.num_samples / images_per_s for each, images_per_s in known)
    actual_s = sum(each.newest.num_samples / each.newest.images_per_s for each, _ in known)
    num_samples = sum(each.newest.num_samples for each, _ in known)
    ratio, num_earlier = usual_s / actual_s, min(len(each.comparable) for each, _ in known)
    return _report(
        THROUGHPUT,
        passed=ratio >= _MIN_SPEED_RATIO,
        found=f"{ratio:.2f} times as fast as usual; expected at least {_MIN_SPEED_RATIO}. Compared with at least "
        f"{num_earlier} earlier evaluations under the same conditions",
        compared=conditions,
        speed_ratio=ratio,
        images_per_s=num_samples / actual_s,
        usual_images_per_s=num_samples / usual_s,
        num_earlier=num_earlier,
    )


def _drift(histories: Sequence[History]) -> CheckReport:
    if not any(each.earlier for each in histories):
        return _report(DRIFT, passed=True, found="no earlier evaluation: nothing to compare")
    furthest = max(histories, key=lambda each: abs(each.distance_from_median))
    other = [(each.newest, error) for each in histories for error in each.other_errors]
    problems = [
        f"{row.corruption} {row.severity}: error {row.error:.4f}, and {error:.4f} before, with the same data, "
        "weights and settings"
        for row, error in other
    ]
    if abs(furthest.distance_from_median) > _MAX_DRIFT:
        row = furthest.newest
        problems.append(
            f"{row.corruption} {row.severity}: error {row.error:.4f}, {furthest.distance_from_median:+.4f} from the "
            f"median of {len(furthest.earlier)} earlier ones"
        )
    return _report(
        DRIFT,
        passed=not problems,
        found="; ".join(problems) or "as before",
        distance_from_median=furthest.distance_from_median,
    )


def _report(check: str, *, passed: bool, found: str, **metadata: float | str) -> CheckReport:
    return CheckReport(
        check=check, passed=passed, severity=dg.AssetCheckSeverity.WARN, metadata={"found": found, **metadata}
    )
