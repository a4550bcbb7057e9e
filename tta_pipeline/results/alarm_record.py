"""Definition of a watched benchmark: when the alarm was raised in each cell, and the wealth along its stream.

This module determines the table `alarms`, as `evaluation_record.py` does for `evaluations`.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Self

from tta_pipeline.benchmarks.alarm_settings import Alarm
from tta_pipeline.benchmarks.watch_settings import STREAM
from tta_pipeline.errors import RecordError
from tta_pipeline.results.record_fields import FORBID_UNKNOWN_FIELDS, Column, Field, SeparatePart, columns_of, decode
from tta_pipeline.util.json_values import JsonObject

ALARM_VERSION = 1
"""Version of the test; raising it outdates the records."""


@FORBID_UNKNOWN_FIELDS
@dataclass(frozen=True, kw_only=True, slots=True)
class WatchedCell:
    """The alarm over one cell."""

    corruption: Annotated[str, Column("Name of the shift; clean for uncorrupted images, stream for those that arrived")]
    severity: Annotated[int, Column("Severity; 0 for clean images and for shifts without severities", at_least=0)]
    num_samples: Annotated[int, Column("Images that were watched", above=0)]
    num_left_out: Annotated[
        int, Column("Images of the stream that were not watched: versions of the calibration images", at_least=0)
    ]
    alarm_at: Annotated[
        int | None, Column("Images read when the alarm was raised: the detection delay; NULL: never", above=0)
    ]
    max_log10_wealth: Annotated[
        float, Column("Highest evidence along the stream: the decimal logarithm of the gambler's wealth")
    ]
    wealth_images: Annotated[
        tuple[int, ...], Column("Numbers of images after which log10_wealth is given, denser at the beginning")
    ]
    log10_wealth: Annotated[tuple[float, ...], Column("Decimal logarithm of the wealth after as many images")]
    samples_sha256: Annotated[str, Column("Hash of the watched evaluation's kept predictions and confidences")]


@FORBID_UNKNOWN_FIELDS
@dataclass(frozen=True, kw_only=True, slots=True)
class WatchedBenchmark:
    """The alarm over every evaluated cell of a benchmark."""

    benchmark: Annotated[str, Column("Name of the benchmark and of its file")]
    shift_set: Annotated[str, Column("Name of the shift set")]
    experiment: Annotated[str, Column("Experiment whose confidences were watched")]
    score: Annotated[str, Column("What was watched", choices=("confidence",))]
    level: Annotated[float, Column("Probability of a false alarm, however long one looks", above=0, at_most=1)]
    num_calibration: Annotated[int, Column("Clean images that later ones were compared with", above=0)]
    calibration_seed: Annotated[int, Column("Seed of the draw of calibration images, and of ties", at_least=0)]
    calibration_sha256: Annotated[
        str, Column("Hash of the kept predictions on clean images, whose part is the calibration")
    ]
    alarm_version: Annotated[int, Column("Version of the test", above=0)]
    cells: Annotated[tuple[WatchedCell, ...], SeparatePart()]

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Self:
        """Return the alarms in the JSON of a record.

        Raises:
            RecordError: a field is missing, unknown, of the wrong type or out of its limits, or two contradict each
                other.
        """
        run = decode(cls, facts)
        for each in run.cells:
            if each.alarm_at is not None and each.alarm_at > each.num_samples:
                raise RecordError(
                    f"alarm_at of {each.corruption}|{each.severity} is {each.alarm_at}; expected at most num_samples, "
                    f"{each.num_samples}"
                )
        return run

    def is_of(self, settings: Alarm, samples_sha256s: AbstractSet[str | None]) -> bool:
        """Return whether this is a look with *settings* at cells with *samples_sha256s*, whatever has arrived."""
        own = (self.level, self.num_calibration, self.calibration_seed, self.alarm_version)
        asked = (settings.level, settings.num_calibration, settings.seed, ALARM_VERSION)
        return own == asked and samples_sha256s == {
            each.samples_sha256 for each in self.cells if each.corruption != STREAM
        }

    def facts(self) -> JsonObject:
        """Return the facts as they are written into a record."""
        return asdict(self)


def alarm_columns() -> tuple[Field, ...]:
    """Return the columns of the table `alarms` that all cells of a record share, in their order."""
    return columns_of(WatchedBenchmark)


def watched_cell_columns() -> tuple[Field, ...]:
    """Return the columns of the table `alarms` that each cell of a record fills, in their order."""
    return columns_of(WatchedCell)
