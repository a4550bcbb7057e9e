"""Definition of an evaluation: its parts, and the rules by which their fields agree.

Together with `evaluation_parts`, this module determines the table `evaluations` with its comments
(`results/database/schema.py`), its rows, the fields in the web UI, and the conditions under which speeds are
comparable. Reading records does not need torch.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter, le
from typing import Annotated, NamedTuple, Self

from tta_pipeline.domain.cells import CLEAN
from tta_pipeline.errors import RecordError
from tta_pipeline.results.evaluation_parts import (
    TUNED,
    Batches,
    Calibration,
    CellInStream,
    CellLabels,
    Cost,
    LabelFreeScores,
    MachineUse,
    Predicted,
    Scores,
    Setup,
    Timing,
    UnknownScores,
)
from tta_pipeline.results.reader_notes import UNTRAINED
from tta_pipeline.results.record_fields import (
    FORBID_UNKNOWN_FIELDS,
    Field,
    InlinePart,
    RecordedFacts,
    columns_of,
)

_TOLERANCE = 1e-9
"""Tolerance between two floating-point results of the same quotient."""
_SUM_TOLERANCE = 1e-6
"""Relative tolerance between two sums of the same floats in different orders."""


@FORBID_UNKNOWN_FIELDS
@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation(RecordedFacts):
    """The result of one pass over one cell.

    Durations and counts of a stream that mixes cells are divided among the cells by samples. A field is None if it
    does not apply or is not known, as its comment explains.
    """

    labels: Annotated[CellLabels, InlinePart("")]
    cell: Annotated[CellInStream, InlinePart("")]
    setup: Annotated[Setup, InlinePart("")]
    scores: Annotated[Scores, InlinePart("")]
    calibration: Annotated[Calibration, InlinePart("")]
    label_free: Annotated[LabelFreeScores, InlinePart("")]
    unknown: Annotated[UnknownScores | None, InlinePart("")]
    """None in a closed stream."""
    predicted: Annotated[Predicted, InlinePart("")]
    cost: Annotated[Cost, InlinePart("")]
    machine: Annotated[MachineUse, InlinePart("")]
    time: Annotated[Timing, InlinePart("")]

    @property
    def error(self) -> float:
        """Top-1 error in [0, 1]."""
        return self.scores.error

    @property
    def num_unknown(self) -> int:
        """Number of unknown images in the stream with the cell."""
        return self.unknown.num_unknown if self.unknown else 0

    @property
    def is_untrained(self) -> bool:
        """Whether the model has random weights."""
        return self.setup.weights == UNTRAINED

    @property
    def ignores_stream(self) -> bool:
        """Whether every stream has these samples with these predictions: the source model's, unless a slow stream drew.

        See `benchmarks.protocols.slow`.
        """
        return self.setup.method == "source" and self.cell.stream_order != "slow"

    @property
    def is_averaged(self) -> bool:
        """Whether the cell counts in its set's mean, as in the leaderboard."""
        return self.labels.shift.counts_in_mean is not False and self.cell.corruption != CLEAN.corruption

    def with_samples(self, sha256: str) -> Self:
        """Return the evaluation with the sha256 of the file of its predictions."""
        return replace(self, predicted=replace(self.predicted, samples_sha256=sha256))

    def require_consistent(self) -> None:
        """Check that redundant fields agree.

        Raises:
            RecordError: two fields contradict each other.
        """
        for rule in RULES:
            if not rule.holds(self):
                values = ", ".join(f"{path} is {attrgetter(path)(self)!r:.60}" for path in rule.fields)
                raise RecordError(f"{values}; expected {rule.expected}")


def mean_error(rows: Sequence[Evaluation]) -> float:
    """Return the mean over the cells that count in their set's mean, as in the leaderboard; over all if none does."""
    counted = [row for row in rows if row.is_averaged] or rows
    return sum(row.error for row in counted) / len(counted)


class Rule(NamedTuple):
    """A relation among fields; if *sql* is not empty, it is also a constraint of the database."""

    fields: tuple[str, ...]
    """Path of each field, such as `scores.error`."""
    expected: str
    sql: str
    holds: Callable[[Evaluation], bool]


def _has_consistent_error(row: Evaluation) -> bool:
    scores = row.scores
    share = scores.num_correct / scores.num_samples
    return share <= 1 and abs(scores.error - (1 - share)) < _TOLERANCE


def _is_close(one: float, other: float) -> bool:
    return abs(one - other) <= _SUM_TOLERANCE * max(1.0, abs(one), abs(other))


def _is_below(some: tuple[int, ...], others: tuple[int, ...]) -> bool:
    """Return whether no element of *some* exceeds the element of *others* at its position."""
    return len(some) == len(others) and all(map(le, some, others))


_BATCH_COLUMNS = attrgetter(*(field.name for field in fields(Batches)))


def _has_consistent_bins(row: Evaluation) -> bool:
    bins = row.calibration.bins
    return (
        len(bins.counts) == len(bins.confidence_sums) == len(bins.correct_counts)
        and sum(bins.counts) == row.scores.num_samples
        and sum(bins.correct_counts) == row.scores.num_correct
        and _is_below(bins.correct_counts, bins.counts)
        and all(map(le, bins.confidence_sums, [1.001 * count for count in bins.counts]))
    )


def _has_consistent_classes(row: Evaluation) -> bool:
    counts = row.scores.class_counts
    return (
        len(counts.num_samples) == len(counts.num_correct) > 0
        and sum(counts.num_samples) == row.scores.num_samples
        and sum(counts.num_correct) == row.scores.num_correct
        and _is_below(counts.num_correct, counts.num_samples)
    )


def _has_consistent_batches(row: Evaluation) -> bool:
    """Return whether *row* has no batches, or consistent ones, for the cell or for a stream that it begins."""
    batches, time = row.time.batches, row.time
    if {len(column) for column in _BATCH_COLUMNS(batches) if column is not None} != {len(batches.num_samples)}:
        return False
    if not batches.num_samples:
        return True
    counted = filter(None, (batches.num_correct, batches.num_unadapted, batches.num_unknown))
    if not all(_is_below(counts, batches.num_samples) for counts in counted):
        return False
    num_samples, num_own = sum(batches.num_samples), row.scores.num_samples + row.num_unknown
    if len(batches.num_samples) != time.num_batches or num_samples < num_own:
        return False
    return num_samples > num_own or (
        sum(batches.num_correct) == row.scores.num_correct
        and sum(batches.num_unknown or ()) == row.num_unknown
        and (not batches.num_resets or sum(batches.num_resets) == row.cost.num_resets)
        and _is_close(sum(batches.data_wait_s), time.data_wait_s)
        and _is_close(sum(batches.compute_s), time.compute_s)
    )


def _has_consistent_fingerprint(row: Evaluation) -> bool:
    return row.setup.fingerprint == hashlib.sha256(row.setup.fingerprint_parts.encode()).hexdigest()


def _was_tuned_on_other_shifts(row: Evaluation) -> bool:
    """Return whether *row* is untuned, or was tuned only on other shifts and names the cells of its tuning."""
    if row.labels.tuning is None:
        return row.labels.hyperparameters_origin != TUNED
    try:
        cells = json.loads(row.labels.tuning)["cells"]
        return bool(cells) and all(cell.partition("|")[0] != row.cell.corruption for cell in cells)
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


def _has_consistent_first_samples(row: Evaluation) -> bool:
    first = row.predicted.first_samples
    return len(first.positions) == len(first.predictions) == len(first.confidences)


RULES = (
    Rule(
        ("scores.error", "scores.num_correct", "scores.num_samples"),
        "error to be 1 - num_correct / num_samples",
        f"abs(error - (1 - num_correct / num_samples)) < {_TOLERANCE}",
        _has_consistent_error,
    ),
    Rule(
        ("scores.top5_error", "scores.error"),
        "top5_error to be at most error",
        f"top5_error <= error + {_TOLERANCE}",
        lambda row: row.scores.top5_error <= row.error + _TOLERANCE,
    ),
    Rule(
        ("calibration.bins", "scores.num_samples", "scores.num_correct"),
        "the bins to have these sums",
        "list_sum(bin_counts) = num_samples AND list_sum(bin_correct_counts) = num_correct",
        _has_consistent_bins,
    ),
    Rule(
        ("calibration.ece", "calibration.bins"),
        "the error that follows from the bins",
        "",
        lambda row: abs(row.calibration.ece - row.calibration.bins.ece) < _TOLERANCE,
    ),
    Rule(
        ("scores.class_counts", "scores.num_samples", "scores.num_correct"),
        "the classes to have these sums",
        "",
        _has_consistent_classes,
    ),
    Rule(
        ("time.images_per_s", "scores.num_samples", "num_unknown", "time.wall_s"),
        "images_per_s to be (num_samples + num_unknown) / wall_s",
        f"abs(images_per_s * wall_s - num_samples - coalesce(num_unknown, 0)) <= {_SUM_TOLERANCE} * "
        "(num_samples + coalesce(num_unknown, 0))",
        lambda row: _is_close(row.time.images_per_s * row.time.wall_s, row.scores.num_samples + row.num_unknown),
    ),
    Rule(
        ("time.batches", "time.num_batches", "scores.num_samples", "scores.num_correct", "time.data_wait_s"),
        "batches of these numbers and sums",
        "",
        _has_consistent_batches,
    ),
    Rule(
        ("setup.fingerprint", "setup.fingerprint_parts"),
        "the fingerprint to be the sha256 of its parts",
        "",
        _has_consistent_fingerprint,
    ),
    Rule(
        ("labels.hyperparameters_origin", "labels.tuning", "cell.corruption"),
        "hyperparameters that were chosen on other shifts, with the cells of their tuning",
        f"hyperparameters_origin <> '{TUNED}' OR tuning IS NOT NULL",
        _was_tuned_on_other_shifts,
    ),
    Rule(("predicted.first_samples",), "equal numbers of each", "", _has_consistent_first_samples),
)


def columns() -> tuple[Field, ...]:
    """Return the columns of the table `evaluations` that a record's facts fill, in their order."""
    return columns_of(Evaluation)


SHOWN = tuple(field.name for field in columns() if field.column.shown)
"""Fields in the metadata of a cell in the web UI; fields that are None are left out."""
SHOWN_OF_SEGMENT = tuple(field.name for field in columns() if field.column.shown_of_segment)
"""Columns of the web UI's table of a stream's segments."""
