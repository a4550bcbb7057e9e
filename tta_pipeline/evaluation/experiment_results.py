"""An experiment on disk: its shards, its streams, its plan, and the results that count. No torch is needed."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Self

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.experiment_specs import Experiment
from tta_pipeline.benchmarks.resolved_experiment import ResolvedExperiment, resolve_experiment
from tta_pipeline.benchmarks.stream_plans import partition_keys, stream_plans
from tta_pipeline.data.datasets.dataset import Dataset
from tta_pipeline.domain.cells import CLEAN, Cell, PartitionKey
from tta_pipeline.domain.locations import Locations
from tta_pipeline.domain.streams import StreamPlan
from tta_pipeline.errors import PipelineError, RecordError
from tta_pipeline.results.chains import Link, choose_chain
from tta_pipeline.results.evaluation_parts import ShiftFacts
from tta_pipeline.results.evaluation_record import Evaluation
from tta_pipeline.results.names import HELD_OUT, RESULT_NAME, find_results
from tta_pipeline.results.plans import Labels, Plan, PlannedStream, folder_of_key, read_plan
from tta_pipeline.results.result_files import StoredResult, predictions_path, read_result
from tta_pipeline.shards.benchmark_expectation import expected_for_benchmark
from tta_pipeline.shards.expected_shard_set import ANYTHING, ExpectedShardSet, expected_for_cell
from tta_pipeline.shards.manifest import read_manifest
from tta_pipeline.shards.set_facts import Manifest
from tta_pipeline.util.files import hash_file


class Unit(NamedTuple):
    """A cell at a position of a stream; experiments are compared unit by unit."""

    stream: str
    """Partition key of the stream."""
    seed: int
    position: int
    """Position of the segment in the stream."""
    cell: str
    """Key of the cell."""


@dataclass(frozen=True, kw_only=True)
class CountedCell:
    """The evaluation of one cell that counts."""

    row: Evaluation
    """The evaluation, with the labels of the current files."""
    path: Path
    """The file of its result."""
    is_of_others: bool = False
    """Whether it was added from a publication."""

    @property
    def unit(self) -> Unit:
        """The position of the cell in the stream."""
        return Unit(self.row.cell.stream, self.row.cell.seed, self.row.cell.position, self.cell.key)

    @property
    def cell(self) -> Cell:
        """The cell."""
        return Cell(corruption=self.row.cell.corruption, severity=self.row.cell.severity)

    def in_stream_of(self, other: Self) -> Self:
        """Return the evaluation as it would be in the stream of *other*, if it ignores the stream."""
        stream = other.row.cell
        cell = replace(
            self.row.cell,
            seed=stream.seed,
            position=stream.position,
            visit=stream.visit,
            stream_order=stream.stream_order,
            order_hash=stream.order_hash,
        )
        return replace(self, row=replace(self.row, cell=cell))

    @property
    def predictions_path(self) -> Path | None:
        """The file with the prediction for each sample; None if they were not kept."""
        return predictions_path(self.path.parent, self.row)


@dataclass(frozen=True, kw_only=True)
class ExperimentResults:
    """An experiment of a benchmark: the folders of its shards, its streams, and their results."""

    benchmark: Benchmark
    experiment_name: str
    locations: Locations
    is_trial: bool = False
    """Whether it is a trial of a tuning; results of trials are in a separate folder and never count."""

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

    @cached_property
    def labels(self) -> Labels:
        """Facts from the files about the experiment that change no prediction.

        Raises:
            EvaluationError, RecordError: see `resolve_experiment`.
        """
        dataset = self.benchmark.dataset
        return Labels(
            experiment=self.experiment_name,
            model=self.spec.model,
            dataset=dataset.name,
            hyperparameters_origin=self.resolved.origin,
            tuning=self.resolved.tuning,
            shifts={name: shift_facts(dataset, name) for name in (*dataset.names, CLEAN.corruption)},
        )

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of the streams in the benchmark file."""
        return self.spec.all_seeds

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
        return None if unknown is None else self.locations.shards(unknown.benchmark, cell)

    def expected_unknown(self, cell: Cell) -> ExpectedShardSet:
        """Return the expectations of the shards of the unknown images in the stream of *cell*, if there are any.

        Raises:
            ClassMapError: the pinned class map of their benchmark is damaged.
        """
        unknown = self.spec.protocol.unknown
        return ANYTHING if unknown is None else expected_for_cell(self.locations, unknown.benchmark, cell)

    @property
    def clean_folder(self) -> Path | None:
        """Folder of the clean images whose confidences set the threshold for unknown images; None if there is none."""
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

    @property
    def results_folder(self) -> Path:
        """Folder of the benchmark's results."""
        return self.locations.results(self.benchmark.name)

    def key_folder(self, key: PartitionKey) -> str:
        """Return the folder of the results at *key* below the benchmark's."""
        name = folder_of_key(key.key)
        return f"{HELD_OUT}/{name}" if self.is_trial else name

    @cached_property
    def plan(self) -> Plan | None:
        """The experiment's plan, as the last run wrote it, read once; None if there is none."""
        return read_plan(self.locations, self.benchmark.name, self.experiment_name)

    def planned_stream(self, plan: StreamPlan) -> PlannedStream | None:
        """Return the stream of *plan* in the experiment's plan; None if it is missing there or has other cells."""
        cells = [tuple(cell.key for cell in each.cells) for each in plan.segments]
        for stream in self.plan.streams if self.plan else ():
            if (stream.key, stream.seed) == (plan.key.key, plan.seed):
                return stream if [segment.cells for segment in stream.segments] == cells else None
        return None

    def find(
        self,
        key: PartitionKey,
        fingerprints: Sequence[str],
        *,
        with_predictions: bool = False,
        tell: Callable[[str], None] = lambda _: None,
    ) -> Mapping[str, Sequence[StoredResult]]:
        """Return the intact results at *key* by fingerprint, read and hashed.

        Args:
            key: Key of the stream.
            fingerprints: Fingerprints of its segments.
            with_predictions: Whether results count only if their predictions were kept and are intact.
            tell: Called with a message for each result that cannot be used.
        """
        wanted = {fingerprint[:16]: fingerprint for fingerprint in fingerprints}
        found: dict[str, list[StoredResult]] = {}
        for path in find_results(self.results_folder / self.key_folder(key)):
            if (fingerprint := wanted.get(path.name[:16])) is None:
                continue
            try:
                stored = read_result(path)
            except RecordError as error:
                tell(str(error))
                continue
            if stored.result.fingerprint != fingerprint:
                continue
            if with_predictions and (problem := _problem_of_predictions(stored)):
                tell(problem)
                continue
            found.setdefault(fingerprint, []).append(stored)
        return found

    def counted(self, plan: StreamPlan) -> tuple[StoredResult, ...]:
        """Return the results of the stream of *plan* that count by the experiment's plan; they may be incomplete.

        If a result has no predictions, it gets the predictions of a later pass that predicted the same.
        """
        asked = self.planned_stream(plan)
        if asked is None:
            return ()
        found = self.find(plan.key, asked.fingerprints)
        chosen = chosen_results(asked.fingerprints, found)
        return tuple(_with_predictions(each, found[each.result.evaluations[0].setup.fingerprint]) for each in chosen)

    def counted_cells(self, key: PartitionKey) -> tuple[CountedCell, ...]:
        """Return the evaluations at *key* that count, of each cell of each stream in order; some may be missing."""
        return tuple(
            CountedCell(row=self.relabelled(row), path=stored.path)
            for plan in self.plans(key)
            for stored in self.counted(plan)
            for row in stored.result.evaluations
        )

    def all_counted_cells(self) -> Mapping[Unit, CountedCell]:
        """Return all evaluations that count, in the order of the keys, by the cell's position in a stream."""
        finished = self.finished_keys()
        return {each.unit: each for key in self.keys if key in finished for each in self.counted_cells(key)}

    @property
    def planned_units(self) -> frozenset[Unit]:
        """The positions of cells in the streams of the experiment's plan."""
        return frozenset(
            Unit(stream.key, stream.seed, position, cell)
            for stream in (self.plan.streams if self.plan else ())
            for position, segment in enumerate(stream.segments)
            for cell in segment.cells
        )

    def relabelled(self, row: Evaluation) -> Evaluation:
        """Return *row* with the labels of the current files."""
        with suppress(PipelineError):  # not tuned yet
            return replace(row, labels=self.labels.of_shift(row.cell.corruption))
        return row

    def rows(self, key: PartitionKey) -> tuple[Evaluation, ...]:
        """Return the evaluation of each cell in each stream at *key*.

        Raises:
            RecordError: a cell has no evaluation that counts.
        """
        found = tuple(each.row for each in self.counted_cells(key))
        expected = sum(len(segment.cells) for plan in self.plans(key) for segment in plan.segments)
        if len(found) < expected:
            raise RecordError(
                f"{self.benchmark.name}: only {len(found)} of {expected} cells at {key.key} have a result for the "
                f"current plan of {self.experiment_name}; expected a result per cell: run it"
            )
        return found

    def is_finished(self, plan: StreamPlan) -> bool:
        """Return whether there is a file for each fingerprint of the plan; no file is read."""
        asked = self.planned_stream(plan)
        if asked is None or len(asked.fingerprints) < len(asked.segments):
            return False
        names = self._names_at(asked.folder)
        return all(fingerprint[:16] in names for fingerprint in asked.fingerprints)

    @property
    def has_results(self) -> bool:
        """Whether there is a result of any experiment at any of the keys."""
        return any(True for key in self.keys for _ in find_results(self.results_folder / self.key_folder(key)))

    def finished_keys(self) -> frozenset[PartitionKey]:
        """Return the keys at which all streams are finished, see `is_finished`."""
        keys = self.keys if self.plan else ()
        return frozenset(key for key in keys if all(map(self.is_finished, self.plans(key))))

    def _names_at(self, folder: str) -> frozenset[str]:
        """Return the first parts of the names of the results in *folder*, listed once."""
        if folder not in self._listed:
            names = (path.name for path in find_results(self.results_folder / folder))
            self._listed[folder] = frozenset(found[1] for name in names if (found := RESULT_NAME.fullmatch(name)))
        return self._listed[folder]

    @cached_property
    def _listed(self) -> dict[str, frozenset[str]]:
        return {}

    def states_folder(self, plan: StreamPlan, first_fingerprint: str) -> Path:
        """Return the folder of the states of the stream of *plan*, whose first segment has this fingerprint."""
        return self.locations.states(self.benchmark.name) / self.key_folder(plan.key) / first_fingerprint[:16]


def link_of(stored: StoredResult) -> Link:
    """Return *stored* as a part of a chain."""
    result = stored.result
    return Link(
        file=stored.path.name,
        sha256=stored.sha256,
        previous=result.previous,
        finished_at=result.finished_at,
        device=result.evaluations[0].machine.device,
    )


def chosen_results(
    fingerprints: Sequence[str], found: Mapping[str, Sequence[StoredResult]]
) -> tuple[StoredResult, ...]:
    """Return the results of a stream with *fingerprints* that count, see `choose_chain`."""
    by_hash = {stored.sha256: stored for several in found.values() for stored in several}
    links = {fingerprint: [link_of(each) for each in several] for fingerprint, several in found.items()}
    return tuple(by_hash[link.sha256] for link in choose_chain(fingerprints, links))


def _with_predictions(stored: StoredResult, others: Sequence[StoredResult]) -> StoredResult:
    """Return *stored*; if it has no predictions, add the predictions of one of *others* that predicted the same."""
    rows = stored.result.evaluations
    if rows[0].predicted.samples_sha256 is not None:
        return stored
    for other in others:
        kept = other.result.evaluations
        is_same = [row.predicted.predictions_sha256 for row in rows] == [
            row.predicted.predictions_sha256 for row in kept
        ]
        if is_same and kept[0].predicted.samples_sha256 is not None:
            with_hash = tuple(row.with_samples(kept[0].predicted.samples_sha256) for row in rows)
            return replace(stored, result=replace(stored.result, evaluations=with_hash))
    return stored


def _problem_of_predictions(stored: StoredResult) -> str:
    """Return why the predictions of *stored* cannot be used; empty if they are intact."""
    row = stored.result.evaluations[0]
    path = predictions_path(stored.path.parent, row)
    if path is None:
        return f"{stored.path.name} has no predictions, and this run keeps them"
    try:
        is_intact = hash_file(path) == row.predicted.samples_sha256
    except OSError as error:
        return f"{path} cannot be read ({error.strerror})"
    return "" if is_intact else f"{path} is damaged: its hash is not the one in {stored.path.name}"


def shift_facts(dataset: Dataset, shift: str) -> ShiftFacts:
    """Return the facts of *dataset* about *shift*, one of its names or clean images, for a record."""
    found = dataset.facts_of(shift)
    return ShiftFacts(
        shift_position=found.shift_position,
        shift_family=found.shift_family,
        shift_group=found.shift_group,
        counts_in_mean=found.counts_in_mean,
    )
