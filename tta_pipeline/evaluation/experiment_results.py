"""An experiment on disk: its shards, its streams and the newest records of them. No torch is needed."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.experiment_specs import Experiment
from tta_pipeline.benchmarks.places import Place, places_of, record_name
from tta_pipeline.benchmarks.stream_plans import partition_keys, stream_plans
from tta_pipeline.domain.cells import CLEAN, Cell, PartitionKey, parse_key
from tta_pipeline.domain.locations import Locations
from tta_pipeline.domain.streams import StreamPlan
from tta_pipeline.errors import ManifestError, RecordError
from tta_pipeline.evaluation.sample_predictions import SamplePredictions
from tta_pipeline.results.evaluation_record import Evaluation
from tta_pipeline.results.expected_results import ExpectedPlace, expected_places
from tta_pipeline.results.records import (
    Record,
    earlier_records,
    latest_record,
    record_folders,
    record_number,
    record_numbers,
)
from tta_pipeline.results.resolved_experiment import ResolvedExperiment, resolve_experiment
from tta_pipeline.shards.benchmark_expectation import expected_for_benchmark
from tta_pipeline.shards.expected_shard_set import ANYTHING, ExpectedShardSet, expected_for_cell
from tta_pipeline.shards.manifest import read_manifest
from tta_pipeline.shards.set_facts import Manifest
from tta_pipeline.shards.shard_set import ShardSet


@dataclass(frozen=True, kw_only=True)
class ExperimentResults:
    """An experiment of a benchmark: the folders of its shards, its streams, and their records."""

    benchmark: Benchmark
    experiment_name: str
    locations: Locations
    kind: Literal["evaluations", "trials"] = "evaluations"
    """Kind of its records: results, or trials of a tuning, which never count as results."""

    @property
    def spec(self) -> Experiment:
        """Definition of the experiment in the benchmark file."""
        return self.benchmark.experiments[self.experiment_name]

    @cached_property
    def resolved(self) -> ResolvedExperiment:
        """The experiment with its resolved hyperparameters, read once.

        Raises:
            EvaluationError, RecordError: see `resolve_experiment`.
        """
        return resolve_experiment(self.benchmark, self.experiment_name, self.locations)

    def folder(self, cell: Cell) -> Path:
        """Return the folder of the shards of *cell*."""
        return self.locations.shards(self.benchmark.name, cell)

    @property
    def source_folder(self) -> Path | None:
        """Folder of the clean shards that the method sees before the stream; None if it sees none."""
        if not self.benchmark.uses_clean_images(self.experiment_name):
            return None
        return self.locations.shards(self.benchmark.name, CLEAN)

    def manifest(self, cell: Cell) -> Manifest:
        """Return the manifest of *cell*.

        Raises:
            ManifestError: the manifest cannot be read, or belongs to another shard set.
        """
        return read_manifest(self.folder(cell), self.expected_shard_set(cell))

    def expected_shard_set(self, cell: Cell) -> ExpectedShardSet:
        """Return the benchmark file's expectations of the shards of *cell*.

        Raises:
            ClassMapError: see `expected_for_benchmark`.
        """
        return expected_for_benchmark(self.benchmark, self.locations, cell)

    def unknown_folder(self, cell: Cell) -> Path | None:
        """Return the folder of the unknown images in the stream of *cell*; None if there are none."""
        unknown = self.spec.protocol.unknown
        return None if unknown is None else self.locations.shards(unknown.source, cell)

    def expected_unknown(self, cell: Cell) -> ExpectedShardSet:
        """Return what is expected of the shards of the unknown images in the stream of *cell*, if there are any.

        Raises:
            ClassMapError: the pinned class map of their benchmark is damaged.
        """
        unknown = self.spec.protocol.unknown
        return ANYTHING if unknown is None else expected_for_cell(self.locations, unknown.source, cell)

    @property
    def clean_folder(self) -> Path | None:
        """Folder of the clean images whose confidences set the threshold for unknown ones; None if there is none."""
        if self.spec.protocol.unknown is None or not self.benchmark.has_clean:
            return None
        return self.locations.shards(self.benchmark.name, CLEAN)

    @property
    def keys(self) -> tuple[PartitionKey, ...]:
        """Partition keys of the experiment's streams; if the keys are cells, clean images come last."""
        return partition_keys(self.benchmark, self.experiment_name)

    def plans(self, key: PartitionKey) -> tuple[StreamPlan, ...]:
        """Return the streams at *key*, one per seed."""
        return stream_plans(self.benchmark, self.experiment_name, key)

    def places(self, key: PartitionKey) -> tuple[Place, ...]:
        """Return each cell of each stream at *key*, in the order of the streams."""
        return tuple(place for plan in self.plans(key) for place in places_of(plan))

    def is_recorded(self, plan: StreamPlan) -> bool:
        """Return whether each cell of *plan* has a record; its content, data and settings are not checked."""
        folder = self.records_folder / self.kind
        return all(record_numbers(folder / self.record_name(place)) for place in places_of(plan))

    def recorded_keys(self) -> frozenset[PartitionKey]:
        """Return the keys at which each cell of each stream has a record; see `is_recorded`.

        Each folder of records is listed once, and only if it exists: every access to a cluster's file system is slow.
        """
        evaluations = str(self.records_folder / self.kind)
        there = {
            folder[len(evaluations) + 1 :]
            for folder, names in record_folders(f"{evaluations}/{self.experiment_name}")
            if any(map(record_number, names))
        }
        keys = self.keys if there else ()
        return frozenset(key for key in keys if there.issuperset(map(self.record_name, self.places(key))))

    def rows(self, key: PartitionKey) -> tuple[Evaluation, ...]:
        """Return the current evaluation of each cell in each stream at *key*.

        Raises:
            RecordError: see `current_record`.
        """
        return tuple(self.row(place) for place in self.places(key))

    def row(self, place: Place) -> Evaluation:
        """Return the current evaluation of *place*.

        Raises:
            RecordError: see `current_record`.
        """
        row = self.current_record(place).evaluation
        assert row is not None, "of its kind"
        return row

    def current_record(self, place: Place) -> Record:
        """Return the newest record of *place* whose settings are those of the benchmark file now.

        Raises:
            RecordError: no record has these settings, or the newest record is damaged.
        """
        record = self.find_current_record(place)
        if record is None:
            raise RecordError(
                f"{self.benchmark.name}: found no evaluation of {place.cell.key} by {self.experiment_name} with the "
                "present settings; expected one: evaluate it"
            )
        return record

    def find_current_record(self, place: Place) -> Record | None:
        """Return the newest record of *place* whose settings are those of the benchmark file now; None without one.

        Raises:
            RecordError: the newest record is damaged.
        """
        newest = self.newest_record(place)
        if newest is None or self._has_current_settings(newest, place):
            return newest
        earlier = earlier_records(self.records_folder, kind=self.kind, name=self.record_name(place))
        return next((record for record in earlier if self._has_current_settings(record, place)), None)

    def _has_current_settings(self, record: Record, place: Place) -> bool:
        """Return whether *record* has the file's settings; True if unknown, as when a subset's list is gone."""
        stream = (place.plan.key, place.plan.seed)
        if stream not in self._expected_by_stream:
            own = self.resolved
            try:
                asked = list(expected_places(self.benchmark, self.experiment_name, own, self.locations, [place.plan]))
            except OSError:
                asked = []
            self._expected_by_stream[stream] = {(each.segment.position, each.cell): what for each, what in asked}
        found = self._expected_by_stream[stream].get((place.segment.position, place.cell))
        return record.evaluation is not None and (found is None or found.matches(record.evaluation))

    @cached_property
    def _expected_by_stream(self) -> dict[tuple[PartitionKey, int], dict[tuple[int, Cell], ExpectedPlace]]:
        """Settings that the benchmark file asks for at the places of each stream, filled on demand."""
        return {}

    def record_name(self, place: Place) -> str:
        """Return the name of the records of *place*."""
        return self.record_name_of(self.experiment_name, place)

    def record_name_of(self, experiment_name: str, place: Place) -> str:
        """Return the name of the records of *place* if the experiment were called *experiment_name*."""
        return record_name(experiment_name, self.spec, place)

    def newest_record(self, place: Place) -> Record | None:
        """Return the newest record of *place*, or None if there is none.

        Raises:
            RecordError: the record is damaged or foreign.
        """
        return latest_record(self.records_folder, kind=self.kind, name=self.record_name(place))

    def valid_record(self, place: Place, *, fingerprint: str) -> Record | None:
        """Return the newest record of *place* with *fingerprint*; if there is none, the newest record.

        An earlier record becomes valid again when a benchmark file is edited, evaluated, and edited back.

        Raises:
            RecordError: the newest record is damaged or foreign; an earlier record never replaces it.
        """
        newest = self.newest_record(place)
        if newest is None or _has_fingerprint(newest, fingerprint):
            return newest
        earlier = earlier_records(self.records_folder, kind=self.kind, name=self.record_name(place))
        return next(
            (
                record
                for record in earlier
                if _has_fingerprint(record, fingerprint) and self._has_predictions(record, place)
            ),
            newest,
        )

    def _has_predictions(self, record: Record, place: Place) -> bool:
        """Return whether the predictions of *record* still exist: `clean` removes those of earlier records."""
        sha256 = record.evaluation.samples_sha256 if record.evaluation else None
        return sha256 is None or self.samples_path(self.record_name(place), sha256).exists()

    def find_renamed_record(self, place: Place, *, fingerprint: str) -> Record | None:
        """Return the record of *place* with *fingerprint* from an experiment that the benchmark file no longer has."""
        evaluations = self.records_folder / self.kind
        names = sorted(path.name for path in evaluations.iterdir()) if evaluations.is_dir() else []
        for name in names:
            if name in self.benchmark.experiments:
                continue
            with suppress(RecordError):  # damaged records are reported when records are published
                there = self.record_name_of(name, place)
                record = latest_record(self.records_folder, kind=self.kind, name=there)
                if record and _has_fingerprint(record, fingerprint):
                    return record
        return None

    def prediction_problems(self, row: Evaluation) -> Iterator[str]:
        """Recount the stored predictions of *row*, and yield a message for each problem."""
        cell = Cell(corruption=row.corruption, severity=row.severity)
        if row.samples_sha256 is None:
            return
        plan = next(plan for plan in self.plans(parse_key(row.stream, self.keys)) if plan.seed == row.seed)
        place = Place(plan, plan.segments[row.position], cell)
        path = self.samples_path(self.record_name(place), row.samples_sha256)
        try:
            kept = SamplePredictions.read(path, sha256=row.samples_sha256)
            place_of_shards = expected_for_cell(self.locations, self.benchmark.name, cell)
            index = ShardSet.open(self.folder(cell), place_of_shards).index
        except (RecordError, ManifestError) as error:
            yield str(error)
            return
        if not kept.agree(row, index):
            yield (
                f"{path} has {len(kept.positions)} predictions, {kept.num_correct(index)} of them correct; expected "
                f"{row.num_samples} and {row.num_correct} as its record says"
            )

    def states_folder(self, plan: StreamPlan) -> Path:
        """Return the folder of the states of the stream of *plan*."""
        folder = self.locations.states(self.benchmark.name) / self.experiment_name
        return folder / f"{plan.key.key}-seed-{plan.seed}"

    def samples_path(self, name: str, sha256: str) -> Path:
        """Return the path of the per-sample predictions with hash *sha256* for the evaluation called *name*."""
        return self.locations.predictions(self.benchmark.name) / name / f"{sha256}.parquet"

    @property
    def own_records(self) -> Path:
        """Folder of the records of the experiment."""
        return self.records_folder / self.kind / self.experiment_name

    @property
    def records_folder(self) -> Path:
        """Folder of the benchmark's result records."""
        return self.locations.results(self.benchmark.name)


def _has_fingerprint(record: Record, fingerprint: str) -> bool:
    return record.evaluation is not None and record.evaluation.fingerprint == fingerprint
