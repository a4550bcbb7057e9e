"""Runner of an experiment over its streams, which skips finished cells and opens the next cell ahead."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, replace
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import torch

from tta_pipeline.benchmarks.experiment_specs import Experiment
from tta_pipeline.benchmarks.open_source import open_source
from tta_pipeline.benchmarks.places import Place, places_of
from tta_pipeline.benchmarks.stream_plans import Segment, StreamPlan
from tta_pipeline.data.sources.listing import Listing
from tta_pipeline.errors import EvaluationError, RecordError
from tta_pipeline.evaluation.benchmark_model import load_benchmark_model
from tta_pipeline.evaluation.build_records import CellResult, MeasuredPass, ModelFacts, Subject, build_records
from tta_pipeline.evaluation.device.arithmetic import arithmetic, arithmetic_flags
from tta_pipeline.evaluation.device.devices import device_type
from tta_pipeline.evaluation.device.leases import leased_device
from tta_pipeline.evaluation.evaluator import Checkpoint, Evaluator
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.evaluation.fingerprint import Fingerprint, compute_fingerprint, method_code_sha256
from tta_pipeline.evaluation.machine import Machine
from tta_pipeline.evaluation.open_stream import OpenStream, open_stream
from tta_pipeline.evaluation.ranks import SINGLE_RANK, Ranks
from tta_pipeline.evaluation.staleness import Staleness
from tta_pipeline.evaluation.stream_states import NUM_KEPT, StreamStates
from tta_pipeline.evaluation.timing import timed
from tta_pipeline.loading.decoded_cache import DecodedCache
from tta_pipeline.loading.remote_blocks import BlockCache
from tta_pipeline.loading.staging import Stage
from tta_pipeline.loading.stored_pixels import StoredPixels
from tta_pipeline.methods import import_implementation
from tta_pipeline.models.loaded_model import LoadedModel
from tta_pipeline.results.evaluation_record import Evaluation
from tta_pipeline.results.records import Record, publish_record, utc_now
from tta_pipeline.shards.benchmark_expectation import expected_for_benchmark
from tta_pipeline.shards.set_facts import Manifest
from tta_pipeline.util.files import copy_atomically, node_local_folder, write_atomically
from tta_pipeline.util.graceful_stop import raise_if_stop_requested
from tta_pipeline.util.json_values import JsonObject
from tta_pipeline.util.partitions import CLEAN, Cell, PartitionKey
from tta_pipeline.util.progress import Progress


class SharedCache:
    """Cache shared by the runners of several experiments: the last model, and manifests."""

    def __init__(self) -> None:
        self._manifests: dict[Path, Manifest] = {}
        self._model: tuple[tuple[str, int], LoadedModel] | None = None

    def manifest(self, experiment: ExperimentResults, cell: Cell) -> Manifest:
        """Return `ExperimentResults.manifest`, read once."""
        folder = experiment.folder(cell)
        if folder not in self._manifests:
            self._manifests[folder] = experiment.manifest(cell)
        return self._manifests[folder]

    def model(self, experiment: ExperimentResults) -> LoadedModel:
        """Return the model of *experiment*; the previous model is dropped to free its memory.

        Raises:
            EvaluationError: see `load_benchmark_model`.
        """
        benchmark, name = experiment.benchmark, experiment.spec.model
        image_size = benchmark.image_size_of(experiment.experiment_name)
        if self._model is None or self._model[0] != (name, image_size):
            self._model = None
            loaded = load_benchmark_model(benchmark, name, experiment.locations, image_size=image_size)
            self._model = (name, image_size), loaded
        return self._model[1]


class _HeldStream(NamedTuple):
    """An opened stream, and the locks that keep its staged shards from being removed."""

    opened: OpenStream
    held: ExitStack


class _Step(NamedTuple):
    """A segment of a stream."""

    plan: StreamPlan
    segment: Segment


class ExperimentRunner:
    """Evaluates the streams of an experiment in a process that keeps model, threads and device warm.

    Call `plan` for all keys first, then `evaluate` for each: the runner then knows the remaining work, and opens each
    segment while the previous one is evaluated.

    Args:
        experiment: The experiment to evaluate.
        machine: Settings of the machine.
        run_id: Run ID of the records.
        tell: Called with progress messages.
        ranks: The processes that evaluate together.
        keeps_predictions: Whether per-sample predictions are written.
        anew: Whether finished cells are evaluated again.
        known: Cache shared with runners of other experiments; benchmark and files must not have changed since.
    """

    def __init__(
        self,
        experiment: ExperimentResults,
        *,
        machine: Machine,
        run_id: str,
        tell: Callable[[str], None],
        ranks: Ranks = SINGLE_RANK,
        keeps_predictions: bool = True,
        anew: bool = False,
        known: SharedCache | None = None,
    ) -> None:
        self._experiment = experiment
        self._machine = machine
        self._run_id = run_id
        self._tell = tell
        self._ranks = ranks
        self._keeps_predictions = keeps_predictions
        self._anew = anew
        self._known = known or SharedCache()
        self._todo: dict[PartitionKey, tuple[StreamPlan, ...]] = {}
        self._rows: dict[Place, Evaluation] = {}
        self._to_come: list[_Step] = []
        self._opening: dict[_Step, Future[_HeldStream]] = {}
        self._manifests: dict[Cell, Manifest] = {}
        self._stage = _make_stage(machine, tell)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._thread = stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="tta-open"))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def plan(self, key: PartitionKey) -> bool:
        """Find the streams at *key* that are left to evaluate, and return whether there are any.

        Raises:
            ManifestError, EvaluationError: the shards or the model are missing, and the fingerprint needs them.
        """
        self._todo[key] = self._experiment.plans(key) if self._anew else self._find_unfinished(key)
        self._to_come += [_Step(plan, segment) for plan in self._todo[key] for segment in plan.segments]
        return bool(self._todo[key])

    def evaluate(self, key: PartitionKey) -> None:
        """Evaluate and record the streams at *key* that `plan` found unfinished.

        An interrupted stream continues from its newest state: the last one inside the interrupted segment, or the one
        after the last recorded segment. With *anew* it starts from the beginning.

        Raises:
            ManifestError, StreamError, EvaluationError: see `Evaluator.evaluate`.
            StoppedError: this process was asked to end; the preceding segments are recorded.
        """
        for plan in self._todo.pop(key):
            position, done = self._restore_state(plan)
            for segment in plan.segments[position:]:
                raise_if_stop_requested()
                self._evaluate(_Step(plan, segment), done)
                done = []

    def rows(self, key: PartitionKey) -> tuple[Evaluation, ...]:
        """Return the evaluation of each cell in each stream at *key*, as `plan` found it or `evaluate` recorded it.

        Raises:
            RecordError: a cell has no current evaluation.
        """
        places = self._experiment.places(key)
        return tuple(self._rows.get(place) or self._experiment.row(place) for place in places)

    def staleness(self, plan: StreamPlan) -> Iterator[Staleness]:
        """Yield the standing of each cell of *plan*, in order: its newest record and its present fingerprint."""
        for segment, present in zip(plan.segments, self._fingerprints(plan), strict=True):
            for cell in segment.cells:
                yield self._cell_staleness(Place(plan, segment, cell), present)

    def _cell_staleness(self, place: Place, present: Fingerprint) -> Staleness:
        try:
            record = self._experiment.valid_record(place, fingerprint=present.sha256)
        except RecordError as error:
            return Staleness(place=place, present=present, record=None, problem=str(error))
        return Staleness(place=place, present=present, record=record)

    def _find_unfinished(self, key: PartitionKey) -> tuple[StreamPlan, ...]:
        """Return the streams at *key* whose newest records do not have the present fingerprints.

        Results of the experiment under a former name are copied first.
        """
        todo = []
        for plan in self._experiment.plans(key):
            standings = [self._refresh_record(self._copy_renamed_result(standing)) for standing in self.staleness(plan)]
            self._rows |= {each.place: each.stored for each in standings if each.stored and each.is_finished}
            left = [standing for standing in standings if not standing.is_finished]
            if left:
                todo.append(plan)
                self._tell_reason(left[0])
        return tuple(todo)

    def _tell_reason(self, standing: Staleness) -> None:
        if standing.problem or standing.stored:
            self._tell(f"{_describe_place(standing.place)} is evaluated again: {standing.reason}")

    def _restore_state(self, plan: StreamPlan) -> tuple[int, list[MeasuredPass]]:
        """Restore the method to the state at which *plan* was interrupted, or to the source model.

        Returns:
            The position of the next segment, and its finished parts.
        """
        self._evaluator.start(self._manifest(plan.segments[0].cells[0]), seed=plan.seed)
        num_finished = 0 if self._anew else self._num_finished(plan)
        if self._anew or num_finished == len(plan.segments):
            return 0, []
        states, where = self._states(plan), f"position {{}} of {len(plan.segments)}"
        fingerprints = [each.sha256 for each in self._fingerprints(plan)]
        if self._has_checkpoints and (within := states.read_newest_within(fingerprints[num_finished], self._tell)):
            state, done = within
            self._evaluator.load_state_dict(state)
            num_samples = sum(len(part.collected.samples.indices) for part in done)
            self._tell(f"stream {plan.key.key} continues at {where.format(num_finished)}, after {num_samples:,} images")
            return num_finished, done
        found = states.read_newest(fingerprints[:num_finished], self._tell)
        if found is None:
            return 0, []
        position, state = found
        self._evaluator.load_state_dict(state)
        self._tell(f"stream {plan.key.key} continues at {where.format(position)}")
        return position, []

    @property
    def _has_checkpoints(self) -> bool:
        """Whether states are saved inside segments.

        Methods evaluated by several processes have no state; loaders other than indexed cannot start in the middle.
        """
        return self._ranks.num_ranks == 1 and self._experiment.spec.loader == "indexed"

    def _num_finished(self, plan: StreamPlan) -> int:
        """Return the number of leading segments that are finished."""
        left = (place.segment.position for place in places_of(plan) if place not in self._rows)
        return next(left, len(plan.segments))

    def _evaluate(self, step: _Step, done: Sequence[MeasuredPass]) -> None:
        started_at = utc_now()
        opened, held = self._take_opened(step)
        with held:
            self._manifests |= zip(step.segment.cells, opened.manifests, strict=True)
            self._open_next(step)
            subject = self._subject(step)
            what = ", ".join(dict.fromkeys(cell.key for cell in step.segment.cells[:3]))
            progress = Progress(self._tell, what=what, total=len(opened.order))
            measurement = self._evaluator.evaluate(
                opened,
                progress.advance,
                segment=(subject.stream, subject.position),
                done=done,
                checkpoint=self._make_checkpoint(step, subject.fingerprint, len(done)),
            )
        if self._ranks.is_first:
            self._record(step, tuple(build_records(subject, measurement)), started_at)

    def _subject(self, step: _Step) -> Subject:
        """Return what is evaluated at *step*."""
        experiment, spec = self._experiment, self._experiment.resolved.experiment
        return Subject(
            benchmark=experiment.benchmark.file,
            experiment=experiment.experiment_name,
            stream=step.plan.key.key,
            position=step.segment.position,
            visit=step.segment.visit,
            seed=step.plan.seed,
            fingerprint=self._fingerprints(step.plan)[step.segment.position],
            code_sha256=self._code_sha256,
            model=ModelFacts.of(self._model),
            method=spec.method_name,
            protocol=spec.protocol.name,
            subset=spec.subset.name if spec.subset else "all",
            settings=_recorded_settings(spec),
            batch_size=spec.batch_size,
            precision=spec.precision,
            compile=spec.compile,
            origin=experiment.resolved.origin,
            tuning=experiment.resolved.tuning,
            shift_set=experiment.benchmark.shift_set,
            streams_per_device=self._machine.streams_per_device,
        )

    def _make_checkpoint(self, step: _Step, present: Fingerprint, num_done: int) -> Checkpoint | None:
        """Return the checkpoint inside the segment of *step*, of which *num_done* parts are done; None: no saving."""
        if not self._has_checkpoints:
            return None
        states, fingerprint = self._states(step.plan), present.sha256
        states.remove_within(fingerprint, after=num_done)

        def save(number: int, part: MeasuredPass) -> None:
            states.save_within(fingerprint, number, self._evaluator.state_dict(), part)
            raise_if_stop_requested()

        return Checkpoint(every=self._machine.checkpoint_every, save=save)

    def _record(self, step: _Step, results: Sequence[CellResult], started_at: str) -> None:
        """Record *results*; before that, save the state of a continuing stream, so that a kill loses one segment."""
        states = self._states(step.plan)
        goes_on = step.segment is not step.plan.segments[-1]
        if goes_on:
            states.save(results[0].row.fingerprint, self._evaluator.state_dict())
        for result in results:
            place = Place(*step, Cell(corruption=result.row.corruption, severity=result.row.severity))
            name = self._experiment.record_name(place)
            row = self._write_predictions(name, result) if self._keeps_predictions else result.row
            publish_record(
                self._experiment.records_folder,
                kind=self._experiment.kind,
                name=name,
                run_id=self._run_id,
                started_at=started_at,
                facts=row,
            )
            self._rows[place] = row
        done = self._fingerprints(step.plan)[: step.segment.position + 1] if goes_on else []
        states.keep_only([each.sha256 for each in done[-NUM_KEPT:]])

    def _write_predictions(self, name: str, result: CellResult) -> Evaluation:
        """Write the predictions of each sample, and return the row with the hash of their file."""
        data = result.samples.to_parquet()
        sha256 = hashlib.sha256(data).hexdigest()
        write_atomically(self._experiment.samples_path(name, sha256), data)
        return replace(result.row, samples_sha256=sha256)

    def _copy_renamed_result(self, standing: Staleness) -> Staleness:
        """Copy the result that the experiment had under a former name, if any, and return *standing* with it."""
        if standing.stored or standing.problem or not self._ranks.is_first:
            return standing
        experiment, place = self._experiment, standing.place
        record = experiment.find_renamed_record(place, fingerprint=standing.present.sha256)
        if record is None or record.evaluation is None:
            return standing
        before, name = record.evaluation, experiment.record_name(place)
        samples_sha256 = before.samples_sha256
        if samples_sha256:
            kept = experiment.samples_path(experiment.record_name_of(before.experiment, place), samples_sha256)
            if kept.exists():
                copy_atomically(kept, experiment.samples_path(name, samples_sha256))
        self._tell(f"{_describe_place(place)}: the result of {before.experiment} is the same; taken over")
        return self._record_again(standing, record, before)

    def _refresh_record(self, standing: Staleness) -> Staleness:
        """Record a finished result again if its facts differ from the files now; return *standing* with the new record.

        The predictions stay the same; only the means that include them, or the origin of their settings, may change. An
        earlier record that is valid again becomes the newest.
        """
        record, stored = standing.record, standing.stored
        if record is None or stored is None or not standing.is_finished or not self._ranks.is_first:
            return standing
        facts = self._present_facts(standing.place.cell)
        changed = [name for name, value in facts.items() if getattr(stored, name) != value]
        newest = self._experiment.newest_record(standing.place)
        if not changed and newest is not None and newest.sequence == record.sequence:
            return standing
        what = (
            f"with a new {', '.join(changed)}" if changed else f"as in record {record.sequence}, which is valid again"
        )
        self._tell(f"{_describe_place(standing.place)}: recorded again {what}; nothing is evaluated")
        return self._record_again(standing, record, stored)

    def _record_again(self, standing: Staleness, record: Record, before: Evaluation) -> Staleness:
        """Record *before*, the evaluation in *record*, again under this experiment and shift set."""
        experiment, place = self._experiment, standing.place
        row = replace(
            before,
            experiment=experiment.experiment_name,
            copied_from=record.sha256,
            **self._present_facts(place.cell),
        )
        repeated = publish_record(
            experiment.records_folder,
            kind=experiment.kind,
            name=experiment.record_name(place),
            run_id=record.run_id,
            started_at=record.started_at,
            facts=row,
            versions_then=record.versions,
        )
        return replace(standing, record=repeated)

    def _present_facts(self, cell: Cell) -> dict[str, Any]:
        """Return the facts in a record of *cell* that depend on the present files and not on its predictions."""
        return {
            "model": self._experiment.spec.model,
            **asdict(self._experiment.benchmark.shift_set.facts_of(cell.corruption)),
            **self._experiment.resolved.facts,
        }

    def _fingerprints(self, plan: StreamPlan) -> list[Fingerprint]:
        """Return the fingerprint of each segment, which covers the stream up to it."""
        experiment = self._experiment
        code_sha256, arithmetic = self._code_sha256, self._arithmetic
        so_far: list[Manifest] = []
        found = []
        for segment in plan.segments:
            so_far += [self._manifest(cell) for cell in segment.cells]
            found.append(
                compute_fingerprint(
                    experiment.resolved.experiment,
                    seed=plan.seed,
                    model=self._model,
                    code_sha256=code_sha256,
                    arithmetic=arithmetic,
                    device=device_type(self._machine.device),
                    image_size=experiment.benchmark.image_size_of(experiment.experiment_name),
                    manifests=tuple(so_far),
                    source=self._source.manifests[0] if self._source else None,
                )
            )
        return found

    def _manifest(self, cell: Cell) -> Manifest:
        if cell not in self._manifests:
            self._manifests[cell] = self._known.manifest(self._experiment, cell)
        return self._manifests[cell]

    def _states(self, plan: StreamPlan) -> StreamStates:
        return StreamStates(folder=self._experiment.states_folder(plan))

    def _take_opened(self, step: _Step) -> _HeldStream:
        return self._opening.pop(step).result() if step in self._opening else self._open(step)

    def _open(self, step: _Step) -> _HeldStream:
        """Open the cells of *step*, in place or from staged copies; may run in another thread."""
        experiment = self._experiment
        folders = [experiment.folder(cell) for cell in step.segment.cells]
        with ExitStack() as stack:
            stage = None if self._list_files else self._stage
            with timed() as staging:
                if stage:
                    sets = [stack.enter_context(stage.shard_set(str(folder))) for folder in folders]
                    folders = [shard_set.folder for shard_set in sets]
            opened = open_stream(
                folders,
                belonging=[experiment.expected_shard_set(cell) for cell in step.segment.cells],
                experiment=experiment.spec,
                seed=step.segment.order_seed(step.plan.seed),
                staging_s=staging.wall_s if stage else 0.0,
                list_files=self._list_files,
            )
            return _HeldStream(opened, stack.pop_all())

    def _open_next(self, step: _Step) -> None:
        """Open the segment after *step* in the background; its errors are raised when its turn comes."""
        following = self._to_come[self._to_come.index(step) + 1 :] if step in self._to_come else []
        for other in following[:1]:
            self._opening[other] = self._thread.submit(self._open, other)

    @cached_property
    def _list_files(self) -> Callable[[Cell], Listing] | None:
        """Function that lists the loose files of a cell, if the experiment reads them; else None."""
        if self._experiment.spec.loader != "imagefolder":
            return None
        return open_source(self._experiment.benchmark, self._experiment.locations).listing

    @cached_property
    def _model(self) -> LoadedModel:
        return self._known.model(self._experiment)

    @cached_property
    def _code_sha256(self) -> str:
        """Hash of the method's code, taken before it is imported."""
        try:
            return method_code_sha256(self._experiment.spec)
        except ValueError as error:
            raise EvaluationError(f"method {self._experiment.spec.method}: {error}") from error

    @cached_property
    def _arithmetic(self) -> Mapping[str, Any]:
        """Arithmetic flags after the import of the method, which may set some; its code hash covers later changes."""
        spec = self._experiment.spec
        import_implementation(spec.entry)
        with arithmetic(device_type(self._machine.device), spec.precision, deterministic=spec.deterministic):
            return arithmetic_flags()

    @cached_property
    def _source(self) -> OpenStream | None:
        experiment = self._experiment
        folder = experiment.source_folder
        if folder is None:
            return None
        return open_stream(
            [folder], belonging=[expected_for_benchmark(experiment.benchmark, experiment.locations, CLEAN)]
        )

    def _leased_device(self) -> AbstractContextManager[torch.device]:
        return leased_device(self._machine.device, self._tell, num_streams=self._machine.streams_per_device)

    @cached_property
    def _evaluator(self) -> Evaluator:
        benchmark, machine = self._experiment.benchmark, self._machine
        experiment_name = self._experiment.experiment_name
        cache = BlockCache(root=_stage_root(machine), limit_bytes=machine.remote_limit_bytes)
        decoded = DecodedCache(
            folder=Path(machine.decoded_folder), limit_bytes=machine.decoded_limit_bytes, cache=cache
        )
        stored = partial(StoredPixels, cache=cache)
        return Evaluator(
            experiment=self._experiment.resolved.experiment,
            model=self._model,
            image_size=benchmark.image_size_of(experiment_name),
            device=self._ranks.device or self._stack.enter_context(self._leased_device()),
            num_threads=machine.num_threads,
            open_pixels=decoded.open_pixels if machine.decoded_folder else stored,
            kept_in=decoded if machine.decoded_folder else None,
            ranks=self._ranks,
            source=self._source,
        )


def _recorded_settings(experiment: Experiment) -> JsonObject:
    hyperparameters = experiment.configured_hyperparameters().model_dump(mode="json")
    return {**experiment.model_dump(mode="json"), "hyperparameters": hyperparameters}


def _describe_place(place: Place) -> str:
    return f"stream {place.plan.key.key}, {place.cell.key}"


def _make_stage(machine: Machine, tell: Callable[[str], None]) -> Stage | None:
    root = _stage_root(machine)
    return Stage(root=root, limit_bytes=machine.stage_limit_bytes, tell=tell) if root else None


def _stage_root(machine: Machine) -> Path | None:
    if not machine.stage_folder:
        return None
    is_default = machine.stage_folder == "$TMPDIR"
    return node_local_folder() / "staged" if is_default else Path(machine.stage_folder).expanduser()
