"""Records of an experiment: of new results, and of finished ones whose facts or experiment's name changed."""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

from tta_pipeline.benchmarks.places import Place, places_of
from tta_pipeline.domain.cells import Cell
from tta_pipeline.domain.streams import StreamPlan
from tta_pipeline.evaluation.build_records import CellResult
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.evaluation.prefetch import Step
from tta_pipeline.evaluation.staleness import Staleness
from tta_pipeline.evaluation.subject import StatedFacts
from tta_pipeline.results.evaluation_record import Evaluation
from tta_pipeline.results.records import Record, publish_record
from tta_pipeline.util.files import copy_atomically, write_atomically


@dataclass(frozen=True, kw_only=True)
class Recorder:
    """Writes the records of an experiment, and remembers the present evaluation of each place."""

    experiment: ExperimentResults
    run_id: str
    """Run ID of the records."""
    tell: Callable[[str], None]
    keeps_predictions: bool
    """Whether per-sample predictions are written."""
    _rows: dict[Place, Evaluation] = field(default_factory=dict, init=False, repr=False)

    def row(self, place: Place) -> Evaluation:
        """Return the evaluation of *place*, as it was found or recorded here, or else as it is on disk.

        Raises:
            RecordError: there is no current evaluation.
        """
        return self._rows.get(place) or self.experiment.row(place)

    def num_finished(self, plan: StreamPlan) -> int:
        """Return the number of leading segments of *plan* whose evaluations were found or recorded here."""
        left = (place.segment.position for place in places_of(plan) if place not in self._rows)
        return next(left, len(plan.segments))

    def record(self, step: Step, results: Iterable[CellResult], *, started_at: str) -> None:
        """Write a record of each of *results*, the cells of *step*."""
        for result in results:
            place = Place(*step, Cell(corruption=result.row.corruption, severity=result.row.severity))
            name = self.experiment.record_name(place)
            row = self._write_predictions(name, result) if self.keeps_predictions else result.row
            publish_record(
                self.experiment.records_folder,
                kind=self.experiment.kind,
                name=name,
                run_id=self.run_id,
                started_at=started_at,
                facts=row,
            )
            self._rows[place] = row

    def bring_up_to_date(self, standing: Staleness) -> Staleness:
        """Note the evaluation of *standing* if it is finished, and return *standing* with its newest record.

        A result of the experiment under a former name is copied. A finished result whose facts differ from the files
        now is recorded again.
        """
        found = self._refresh_record(self._copy_renamed_result(standing))
        if found.stored and found.is_finished:
            self._rows[found.place] = found.stored
        return found

    def _write_predictions(self, name: str, result: CellResult) -> Evaluation:
        """Write the predictions of each sample, and return the row with the hash of their file."""
        data = result.samples.to_parquet()
        sha256 = hashlib.sha256(data).hexdigest()
        write_atomically(self.experiment.samples_path(name, sha256), data)
        return replace(result.row, samples_sha256=sha256)

    def _copy_renamed_result(self, standing: Staleness) -> Staleness:
        """Copy the result that the experiment had under a former name, if any, and return *standing* with it."""
        if standing.stored or standing.problem:
            return standing
        experiment, place = self.experiment, standing.place
        record = experiment.find_renamed_record(place, fingerprint=standing.present.sha256)
        if record is None or record.evaluation is None:
            return standing
        before = record.evaluation
        if before.samples_sha256:
            former_name = experiment.record_name_of(before.experiment, place)
            kept = experiment.samples_path(former_name, before.samples_sha256)
            if kept.exists():
                name = experiment.record_name(place)
                copy_atomically(kept, experiment.samples_path(name, before.samples_sha256))
        self.tell(f"{place.text}: the result of {before.experiment} is the same; taken over")
        return self._record_again(standing, record, before)

    def _refresh_record(self, standing: Staleness) -> Staleness:
        """Record a finished result again if its facts differ from the files now; return *standing* with the new record.

        The predictions stay the same; only the means that include them, or the origin of their settings, may change. An
        earlier record that is valid again becomes the newest.
        """
        record, stored, place = standing.record, standing.stored, standing.place
        if record is None or stored is None or not standing.is_finished:
            return standing
        facts = self._stated.of_shift(place.cell.corruption)
        changed = [name for name, value in facts.items() if getattr(stored, name) != value]
        newest = self.experiment.newest_record(place)
        if not changed and newest is not None and newest.sequence == record.sequence:
            return standing
        what = (
            f"with a new {', '.join(changed)}" if changed else f"as in record {record.sequence}, which is valid again"
        )
        self.tell(f"{place.text}: recorded again {what}; nothing is evaluated")
        return self._record_again(standing, record, stored)

    def _record_again(self, standing: Staleness, record: Record, before: Evaluation) -> Staleness:
        """Record *before*, the evaluation in *record*, again with what the files state now."""
        stated = self._stated.of_shift(standing.place.cell.corruption)
        repeated = publish_record(
            self.experiment.records_folder,
            kind=self.experiment.kind,
            name=self.experiment.record_name(standing.place),
            run_id=record.run_id,
            started_at=record.started_at,
            facts=replace(before, copied_from=record.sha256, **stated),
            versions_then=record.versions,
        )
        return replace(standing, record=repeated)

    @cached_property
    def _stated(self) -> StatedFacts:
        return StatedFacts.of(self.experiment)
