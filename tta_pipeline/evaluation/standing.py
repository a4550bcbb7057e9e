"""Why a segment is finished or not: its current fingerprint compared with the nearest result."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from tta_pipeline.benchmarks.file_fingerprint import with_defaults
from tta_pipeline.domain.streams import Segment, StreamPlan
from tta_pipeline.errors import RecordError
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.evaluation.fingerprint import Fingerprint, diff_parts
from tta_pipeline.results.evaluation_record import Evaluation
from tta_pipeline.results.names import find_results
from tta_pipeline.results.result_files import StoredResult, read_result
from tta_pipeline.util.short_lists import abbreviate_list

_SHOWN_CHARACTERS = 60
_MOST_COMPARED = 300
"""Number of results in a folder, the newest files, that are searched for the nearest."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """One segment of a stream: its current fingerprint, and the result nearest to it."""

    plan: StreamPlan
    segment: Segment
    present: Fingerprint
    stored: StoredResult | None
    """The result with the current fingerprint that counts; otherwise the nearest other result, or None."""
    is_finished: bool
    problem: str = ""
    """Why a result with the current fingerprint cannot be used; empty if there is no such result."""

    @property
    def name(self) -> str:
        """The segment in a message."""
        cells = ", ".join(cell.key for cell in self.segment.cells[:3])
        where = cells if cells == self.plan.key.key else f"stream {self.plan.key.key}, {cells}"
        return f"{where}{', …' if len(self.segment.cells) > 3 else ''}"

    @property
    def row(self) -> Evaluation | None:
        """The first evaluation of the stored result."""
        return self.stored.result.evaluations[0] if self.stored else None

    @property
    def versions(self) -> Mapping[str, str]:
        """Library versions at the time of the evaluation; they outdate nothing."""
        return self.stored.result.versions if self.stored else {}

    @property
    def differences(self) -> Mapping[str, tuple[Any, Any]]:
        """Changed parts of the fingerprint by name, each with its stored and current value."""
        if self.row is None:
            return {}
        return diff_parts(
            with_defaults(json.loads(self.row.setup.fingerprint_parts)), with_defaults(self.present.parts)
        )

    @property
    def reason(self) -> str:
        """Short reason why the segment is finished or not."""
        if self.is_finished:
            return "nothing that determines its predictions has changed"
        if self.problem:
            return self.problem
        if self.row is None:
            return "it has no result yet"
        changes = [
            f"{name} was {shorten_value(before)}, is {shorten_value(now)}"
            for name, (before, now) in self.differences.items()
        ]
        if not changes:
            return "its results belong to no whole stream from the first segment on"
        return f"changed since: {abbreviate_list(changes, '; ')}"


def standings(
    experiment: ExperimentResults,
    plan: StreamPlan,
    fingerprints: Sequence[Fingerprint],
    chain: Sequence[StoredResult],
    problems: Sequence[str] = (),
) -> Iterator[Standing]:
    """Yield the `Standing` of each segment of *plan*, in the order of the stream.

    Segments after the first unfinished one are not compared: they begin from a state that is not known yet.

    Args:
        experiment: The experiment.
        plan: The stream.
        fingerprints: The stream's current fingerprints.
        chain: The stream's results that count.
        problems: Why results with these fingerprints cannot be used.
    """
    for number, (segment, present) in enumerate(zip(plan.segments, fingerprints, strict=True)):
        stored, problem = None, ""
        if number < len(chain):
            stored = chain[number]
        elif number == len(chain):
            others = {each.sha256 for each in fingerprints} - {present.sha256}
            stored, problem = _nearest(experiment, plan, number, present, others), "; ".join(problems)
        else:
            problem = f"it follows {plan.segments[len(chain)].cells[0].key}, which is evaluated first"
        yield Standing(
            plan=plan, segment=segment, present=present, stored=stored, is_finished=number < len(chain), problem=problem
        )


def _nearest(
    experiment: ExperimentResults, plan: StreamPlan, number: int, present: Fingerprint, others: Collection[str]
) -> StoredResult | None:
    """Return the result that differs least from *present*: of the previous plan, of the same position, or any.

    Results with the fingerprints *others*, which belong to other segments of the same stream, are not compared.
    """
    folder = experiment.results_folder / experiment.key_folder(plan.key)
    asked = experiment.planned_stream(plan)
    asked_before = asked.fingerprints[number] if asked and number < len(asked.fingerprints) else None
    if asked_before and asked_before != present.sha256:
        for path in find_results(folder, asked_before):
            with suppress(RecordError):
                return read_result(path)

    def age(path: Path) -> float:
        try:
            return -path.stat().st_mtime
        except OSError:
            return 0.0

    found = []
    for path in islice(sorted(find_results(folder), key=age), _MOST_COMPARED):
        with suppress(RecordError):
            if (stored := read_result(path)).result.fingerprint not in others:
                found.append(stored)

    def distance(stored: StoredResult) -> tuple[bool, bool, bool, int]:
        row = stored.result.evaluations[0]
        return (
            row.labels.experiment != experiment.experiment_name,
            row.cell.seed != plan.seed,
            row.cell.position != number,
            len(diff_parts(json.loads(row.setup.fingerprint_parts), present.parts)),
        )

    return min(found, key=distance, default=None)


def shorten_value(value: Any) -> str:
    """Return *value* of a fingerprint, shortened to fit a line."""
    text = json.dumps(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"
