"""State of a cell, finished or not and why: its newest record compared with its present fingerprint."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tta_pipeline.benchmarks.file_fingerprint import with_defaults
from tta_pipeline.benchmarks.places import Place
from tta_pipeline.evaluation.fingerprint import Fingerprint, diff_parts
from tta_pipeline.results.evaluation_record import Evaluation
from tta_pipeline.results.records import Record
from tta_pipeline.util.short_lists import abbreviate_list

_SHOWN_CHARACTERS = 60


@dataclass(frozen=True, kw_only=True)
class Staleness:
    """Record of one cell of a stream, compared with its present fingerprint."""

    place: Place
    present: Fingerprint
    record: Record | None
    """Newest record with the present fingerprint, or else the newest record; None: no record can be trusted."""
    problem: str = ""
    """Problem of the newest record; empty if there is none."""
    earlier: "Staleness | None" = None
    """Standing of the first earlier cell of the stream whose shards are not those of its record; None if there is
    none."""

    @property
    def stored(self) -> Evaluation | None:
        """The evaluation in the record; None without a record."""
        return self.record.evaluation if self.record else None

    @property
    def versions(self) -> Mapping[str, str]:
        """Library versions at the time of the evaluation; they outdate nothing."""
        return self.record.versions if self.record else {}

    @property
    def is_finished(self) -> bool:
        """Whether the cell needs no evaluation."""
        return self.stored is not None and self.stored.fingerprint == self.present.sha256

    @property
    def differences(self) -> Mapping[str, tuple[Any, Any]]:
        """Changed parts of the fingerprint by name, each with its stored and present value."""
        if self.stored is None:
            return {}
        found = diff_parts(with_defaults(json.loads(self.stored.fingerprint_parts)), with_defaults(self.present.parts))
        if self.earlier is None or not any(name.startswith("before.") for name in found):
            return found
        own = {name: values for name, values in found.items() if not name.startswith("before.")}
        return {
            **own,
            f"data of {self.earlier.place.cell.key}, earlier in the stream": self.earlier.differences["data"],
        }

    @property
    def reason(self) -> str:
        """Short reason why the cell is finished or not."""
        if self.problem:
            return self.problem
        if self.stored is None:
            return "it has no result yet"
        if self.is_finished:
            return "nothing that determines its predictions has changed"
        changes = [
            f"{name} was {shorten_value(before)}, is {shorten_value(now)}"
            for name, (before, now) in self.differences.items()
        ]
        return f"changed since: {abbreviate_list(changes, '; ')}"


def shorten_value(value: Any) -> str:
    """Return *value* of a fingerprint, shortened to fit a line."""
    text = json.dumps(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"
