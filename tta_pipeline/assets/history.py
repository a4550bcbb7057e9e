"""What the records of a cell say of its newest evaluation: is it slower than usual, is its error another one?

Read from the record files, which are the truth; the database may be behind.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import dagster as dg

from tta_pipeline.assets.reporting import CheckReport

if TYPE_CHECKING:
    from tta_pipeline.evaluation.sweep import Subject

Facts = Mapping[str, Any]

THROUGHPUT = "throughput_regression"
DRIFT = "accuracy_drift"
HISTORY_CHECKS: Mapping[str, str] = {
    THROUGHPUT: "The newest evaluation is at least 0.85 times as fast as the median of its history on the same device "
    "with the same batch size.",
    DRIFT: "The newest evaluation has the error that the same data, weights and settings had before, and is within 0.5 "
    "points of the median of its history.",
}
_SLOW = 0.85
_DRIFTED = 0.005
_ENOUGH = 3
_REMEMBERED = 50
"""Earlier records that are looked at, so that a cell that is measured again for years costs no more."""


@dataclass(frozen=True, kw_only=True)
class History:
    """The newest evaluation of a cell in one stream, and those before it."""

    newest: Facts
    earlier: tuple[Facts, ...]

    @property
    def usual_images_per_s(self) -> float | None:
        """Median on the same device with the same settings of speed; None if there are less than three."""
        same = ("device", "batch_size", "precision", "compile")
        found = [row["images_per_s"] for row in self.earlier if all(row[name] == self.newest[name] for name in same)]
        return median(found) if len(found) >= _ENOUGH else None

    @property
    def other_errors(self) -> tuple[float, ...]:
        """The errors, each once, that the same data, weights and settings had before, and have no more."""
        same = [row for row in self.earlier if row["fingerprint"] == self.newest["fingerprint"]]
        return tuple(dict.fromkeys(row["error"] for row in same if row["error"] != self.newest["error"]))

    @property
    def distance(self) -> float:
        """How far the error is from the median of the earlier ones, signed; 0 if there are none."""
        return self.newest["error"] - median(row["error"] for row in self.earlier) if self.earlier else 0.0


def history_reports(subject: "Subject", key: str) -> Sequence[CheckReport]:
    """Return what both checks find in the streams at *key*."""
    histories = _histories(subject, key)
    return _throughput(histories), _drift(histories)


def _histories(subject: "Subject", key: str) -> tuple[History, ...]:
    from tta_pipeline.metrics.records import read_record

    folder = subject.locations.results(subject.benchmark.name) / "evaluations"
    names = [
        subject.record_name(plan, visit, cell)
        for plan in subject.plans(key)
        for visit in plan.visits
        for cell in visit.cells
    ]
    found = []
    for name in names:
        paths = sorted((folder / name).glob("[0-9]*.json"))[-1 - _REMEMBERED :]
        if paths:
            *before, newest = [read_record(path).facts for path in paths]
            earlier = tuple(row for row in before if row["subset"] == newest["subset"])
            found.append(History(newest=newest, earlier=earlier))
    return tuple(found)


def _throughput(histories: Sequence[History]) -> CheckReport:
    """Compare the time that the streams took with what they would have taken at their usual speeds."""
    usual = [(each.newest, each.usual_images_per_s) for each in histories]
    known = [(row, images_per_s) for row, images_per_s in usual if images_per_s]
    if not known:
        return _report(
            THROUGHPUT,
            passed=True,
            found=f"less than {_ENOUGH} earlier evaluations on this device with this batch size: nothing to compare",
        )
    usual_s = sum(row["num_samples"] / images_per_s for row, images_per_s in known)
    actual_s = sum(row["num_samples"] / row["images_per_s"] for row, _ in known)
    num_samples = sum(row["num_samples"] for row, _ in known)
    ratio = usual_s / actual_s
    return _report(
        THROUGHPUT,
        passed=ratio >= _SLOW,
        found=f"{ratio:.2f} times as fast as usual; expected at least {_SLOW}",
        speed_ratio=ratio,
        images_per_s=num_samples / actual_s,
        usual_images_per_s=num_samples / usual_s,
        num_earlier=min(len(each.earlier) for each in histories if each.usual_images_per_s),
    )


def _drift(histories: Sequence[History]) -> CheckReport:
    if not any(each.earlier for each in histories):
        return _report(DRIFT, passed=True, found="no earlier evaluation: nothing to compare")
    furthest = max(histories, key=lambda each: abs(each.distance))
    other = [(each.newest, error) for each in histories for error in each.other_errors]
    problems = [
        f"{row['corruption']} {row['severity']}: error {row['error']:.4f}, and {error:.4f} before, with the same data, "
        "weights and settings"
        for row, error in other
    ]
    if abs(furthest.distance) > _DRIFTED:
        row = furthest.newest
        problems.append(
            f"{row['corruption']} {row['severity']}: error {row['error']:.4f}, {furthest.distance:+.4f} from the "
            f"median of {len(furthest.earlier)} earlier ones"
        )
    return _report(
        DRIFT, passed=not problems, found="; ".join(problems) or "as before", distance_from_median=furthest.distance
    )


def _report(check: str, *, passed: bool, found: str, **metadata: float) -> CheckReport:
    return CheckReport(
        check=check, passed=passed, severity=dg.AssetCheckSeverity.WARN, metadata={"found": found, **metadata}
    )
