"""One experiment over many streams: what is finished is not done again, and the next cell is opened ahead."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from tta_pipeline.adaptation import implementation_of
from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.experiments import Experiment
from tta_pipeline.benchmarks.models import TrainedModel
from tta_pipeline.benchmarks.streams import Plan, Visit, plans
from tta_pipeline.errors import EvaluationError, ManifestError, RecordError
from tta_pipeline.evaluation.evaluate import Evaluator, Identity, Result
from tta_pipeline.evaluation.fingerprint import (
    Fingerprint,
    arithmetic_flags,
    fingerprint,
    method_code_sha256,
)
from tta_pipeline.evaluation.machine import Machine, device_type, leased_device
from tta_pipeline.evaluation.models import LoadedModel, load_model
from tta_pipeline.evaluation.opening import Opened, open_sets
from tta_pipeline.evaluation.ranks import ALONE, Ranks
from tta_pipeline.evaluation.record import Evaluation
from tta_pipeline.evaluation.samples import SamplePredictions
from tta_pipeline.evaluation.standing import Standing
from tta_pipeline.evaluation.states import NUM_KEPT, States
from tta_pipeline.evaluation.timing import timed
from tta_pipeline.files import write_atomically
from tta_pipeline.locations import Locations
from tta_pipeline.metrics.records import Record, latest_record, now, publish_record
from tta_pipeline.partitions import CLEAN, TRAIN, Cell
from tta_pipeline.progress import Progress
from tta_pipeline.shards.belonging import Belonging, belonging_of
from tta_pipeline.shards.manifest import MANIFEST_FILE, Manifest, ShardSet, read_manifest
from tta_pipeline.sources import benchmark_class_map
from tta_pipeline.streaming.decoded import DecodedCells
from tta_pipeline.streaming.pixels import StoredPixels
from tta_pipeline.streaming.staging import Stage, node_local_folder
from tta_pipeline.training.source_model import require_trained_so


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is evaluated, and where its data and results lie."""

    benchmark: Benchmark
    experiment: str
    locations: Locations

    @property
    def spec(self) -> Experiment:
        """What the benchmark file says of the experiment."""
        return self.benchmark.experiments[self.experiment]

    def folder(self, cell: Cell) -> Path:
        """Return the folder of the shards that the experiment reads."""
        transform = self.spec.shards
        if transform:
            return self.locations.transformed(self.benchmark.name, transform, cell)
        return self.locations.shards(self.benchmark.name, cell)

    @property
    def source_folder(self) -> Path | None:
        """The folder of clean shards that the method looks at before the stream; None if it looks at none."""
        if not self.benchmark.uses_clean_images(self.experiment):
            return None
        return self.locations.shards(self.benchmark.name, CLEAN)

    def manifest(self, cell: Cell) -> Manifest:
        """Return the manifest of *cell*.

        Raises:
            ManifestError: it cannot be read, or is that of something else.
        """
        return read_manifest(self.folder(cell), self.belonging(cell))

    def belonging(self, cell: Cell) -> Belonging:
        """Return what the shards of *cell* should be of."""
        return belonging_of(self.locations, self.benchmark.name, cell)

    def plans(self, key: str) -> tuple[Plan, ...]:
        """Return the streams at *key*, one for each seed."""
        return plans(self.benchmark, self.experiment, key)

    def rows(self, key: str) -> tuple[Evaluation, ...]:
        """Return the newest evaluation of each cell in each stream at *key*; none is missing.

        Raises:
            RecordError: a cell has none, or the newest is damaged.
        """
        every = [(plan, visit, cell) for plan in self.plans(key) for visit in plan.visits for cell in visit.cells]
        found = [(place, self.latest(*place)) for place in every]
        for (_, _, cell), row in found:
            if row is None:
                raise RecordError(f"found no evaluation of {cell.key} by {self.experiment}; expected one: evaluate it")
        return tuple(row for _, row in found if row is not None)

    def record_name(self, plan: Plan, visit: Visit, cell: Cell) -> str:
        """Return what the records of *cell* are called."""
        return self.record_name_of(self.experiment, plan, visit, cell)

    def record_name_of(self, experiment: str, plan: Plan, visit: Visit, cell: Cell) -> str:
        """Return what the records of *cell* would be called if the experiment were called *experiment*."""
        spec = self.spec
        folders = [experiment, *([f"seed-{plan.seed}"] if spec.seeds else [])]
        name = f"{cell.corruption}-{cell.severity}"
        if spec.protocol.partitioned_by == "cell":
            return "/".join([*folders, name])
        return "/".join([*folders, plan.key, f"{visit.position:03d}-{name}"])

    def newest_record(self, plan: Plan, visit: Visit, cell: Cell) -> Record | None:
        """Return the newest record of *cell*, or None if it has none.

        Raises:
            RecordError: it is damaged or foreign.
        """
        return latest_record(self._results, kind="evaluations", name=self.record_name(plan, visit, cell))

    def latest(self, plan: Plan, visit: Visit, cell: Cell) -> Evaluation | None:
        """Return the newest evaluation of *cell*, or None if it has none.

        Raises:
            RecordError: its record is damaged or foreign.
        """
        record = self.newest_record(plan, visit, cell)
        return record.evaluation if record else None

    def under_another_name(self, plan: Plan, visit: Visit, cell: Cell, *, fingerprint: str) -> Record | None:
        """Return the record of *cell* with *fingerprint* of an experiment that the benchmark file has no more."""
        evaluations = self._results / "evaluations"
        names = sorted(path.name for path in evaluations.iterdir()) if evaluations.is_dir() else []
        for name in names:
            if name in self.benchmark.experiments:
                continue
            with suppress(RecordError):  # a damaged one is named when records are published
                place = self.record_name_of(name, plan, visit, cell)
                record = latest_record(self._results, kind="evaluations", name=place)
                if record and record.evaluation and record.evaluation.fingerprint == fingerprint:
                    return record
        return None

    def sample_problems(self, row: Evaluation) -> Iterator[str]:
        """Yield what is wrong with the predictions that were kept with *row*: they are counted once more."""
        cell = Cell(corruption=row.corruption, severity=row.severity)
        if row.samples_sha256 is None:
            return
        plan = next(plan for plan in self.plans(row.stream) if plan.seed == row.seed)
        path = self.samples_path(self.record_name(plan, plan.visits[row.position], cell), row.samples_sha256)
        try:
            kept = SamplePredictions.read(path, sha256=row.samples_sha256)
            index = ShardSet.open(self.folder(cell), self.belonging(cell)).index
        except (RecordError, ManifestError) as error:
            yield str(error)
            return
        num_correct = kept.num_correct(index)
        if (len(kept.positions), num_correct, kept.sha256) != (
            row.num_samples,
            row.num_correct,
            row.predictions_sha256,
        ):
            yield (
                f"{path} has {len(kept.positions)} predictions, {num_correct} of them correct; expected "
                f"{row.num_samples} and {row.num_correct} as its record says"
            )

    def samples_path(self, name: str, sha256: str) -> Path:
        """Return where the predictions of each sample lie that hash to *sha256*, of the evaluation called *name*."""
        return self.locations.predictions(self.benchmark.name) / name / f"{sha256}.parquet"

    @property
    def _results(self) -> Path:
        return self.locations.results(self.benchmark.name)

    def load_model(self) -> LoadedModel:
        """Return the experiment's model.

        Raises:
            EvaluationError: see `load_model`; or the benchmark's own was trained otherwise than it says now.
        """
        name = self.spec.model
        self._require_trained_so(self.benchmark.models[name])
        class_map = benchmark_class_map(self.benchmark, self.locations)
        return load_model(
            name,
            self.benchmark.models[name],
            source_model=self.locations.source_model(self.benchmark.name),
            classes=class_map.classes,
        )

    def _require_trained_so(self, model: object) -> None:
        train = self.locations.shards(self.benchmark.name, TRAIN)
        # Whoever has the weights alone evaluates them as they are.
        if isinstance(model, TrainedModel) and (train / MANIFEST_FILE).exists():
            manifest = read_manifest(train, self.belonging(TRAIN))
            require_trained_so(self.locations.source_model(self.benchmark.name), manifest, model)


class _Held(NamedTuple):
    """What was opened, and what keeps its staged shards from being removed."""

    opened: Opened
    held: ExitStack


class Step(NamedTuple):
    """A visit of a stream."""

    plan: Plan
    visit: Visit


class Sweep:
    """Evaluates streams in a process that keeps model, threads and device warm."""

    def __init__(
        self,
        subject: Subject,
        *,
        machine: Machine,
        run_id: str,
        tell: Callable[[str], None],
        ranks: Ranks = ALONE,
        keeps_predictions: bool = True,
    ) -> None:
        self._subject = subject
        self._machine = machine
        self._run_id = run_id
        self._tell = tell
        self._ranks = ranks
        self._keeps_predictions = keeps_predictions
        self._unproven: list[Evaluation] = []
        self._to_come: list[Step] = []
        self._opening: dict[Step, Future[_Held]] = {}
        self._manifests: dict[Cell, Manifest] = {}
        self._stage = _stage(machine, tell)
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

    def unfinished(self, key: str) -> tuple[Plan, ...]:
        """Return the streams at *key* whose newest records are not of all that decides predictions as it is now.

        Results that an experiment had under another name become its own first.
        """
        todo = []
        for plan in self._subject.plans(key):
            standings = [self._taken_over(plan, standing) for standing in self.standings(plan)]
            left = [standing for standing in standings if not standing.is_finished]
            if left:
                todo.append(plan)
                self._unproven += [standing.stored for standing in left if standing.stored and standing.is_unproven]
                self._say_why(plan, left[0])
        return tuple(todo)

    def say_what_is_unproven(self) -> None:
        """Tell how many of the cells found unfinished have results of an earlier version, and what they took."""
        if self._unproven:
            hours = sum(row.wall_s for row in self._unproven) / 3600
            self._tell(
                f"{len(self._unproven)} cells have results of an earlier version of tta_pipeline, which did not record "
                f"all that decides them: they are evaluated again, about {hours:,.1f} h by what they took then"
            )

    def standings(self, plan: Plan) -> Iterator[Standing]:
        """Yield each cell of *plan* in its order: its newest record, and what decides its predictions now."""
        for visit, present in zip(plan.visits, self._fingerprints(plan), strict=True):
            for cell in visit.cells:
                yield self._standing(plan, visit, cell, present)

    def _standing(self, plan: Plan, visit: Visit, cell: Cell, present: Fingerprint) -> Standing:
        try:
            record = self._subject.newest_record(plan, visit, cell)
        except RecordError as error:
            return Standing(visit=visit, cell=cell, present=present, stored=None, versions={}, problem=str(error))
        stored, versions = (record.evaluation, record.versions) if record else (None, {})
        return Standing(visit=visit, cell=cell, present=present, stored=stored, versions=versions)

    def _say_why(self, plan: Plan, standing: Standing) -> None:
        if standing.problem or (standing.stored and not standing.is_unproven):
            self._tell(f"stream {plan.key}, {standing.cell.key} is evaluated anew: {standing.reason}")

    def expect(self, plans: Iterable[Plan]) -> None:
        """Be told what will be evaluated, so that each visit is opened while the one before computes."""
        self._to_come = [Step(plan, visit) for plan in plans for visit in plan.visits]

    def evaluate(self, plan: Plan, *, anew: bool = False) -> None:
        """Evaluate *plan* and record each of its cells.

        A stream that was broken off goes on behind the last visit that is recorded, from the state that was saved
        then, unless it is to begin *anew*.

        Raises:
            ManifestError, StreamError, EvaluationError: see `Evaluator.evaluate`.
        """
        first = 0 if anew else self._resumed(plan)
        for visit in plan.visits[first:]:
            self._evaluate(Step(plan, visit))

    def _evaluate(self, step: Step) -> None:
        started_at = now()
        opened, held = self._opened(step)
        with held:
            self._manifests |= zip(step.visit.cells, opened.manifests, strict=True)
            self._open_next(step)
            identity = Identity(
                stream=step.plan.key,
                position=step.visit.position,
                seed=step.plan.seed,
                fingerprint=self._fingerprints(step.plan)[step.visit.position],
                code_sha256=self._code_sha256,
            )
            what = ", ".join(dict.fromkeys(cell.key for cell in step.visit.cells[:3]))
            progress = Progress(self._tell, what=what, total=len(opened.order))
            results = self._evaluator.evaluate(opened, identity, progress.advance)
        if self._ranks.is_first:
            self._record(step, results, started_at)

    def _record(self, step: Step, results: Sequence[Result], started_at: str) -> None:
        """Record *results*; if the stream goes on, save before from where, so that a kill loses a visit only."""
        states = self._states(step.plan)
        goes_on = step.visit is not step.plan.visits[-1]
        if goes_on:
            states.save(results[0].row.fingerprint, self._evaluator.state())
        for result in results:
            cell = Cell(corruption=result.row.corruption, severity=result.row.severity)
            name = self._subject.record_name(step.plan, step.visit, cell)
            row = self._with_samples(name, result) if self._keeps_predictions else result.row
            publish_record(
                self._results, kind="evaluations", name=name, run_id=self._run_id, started_at=started_at, facts=row
            )
        done = self._fingerprints(step.plan)[: step.visit.position + 1] if goes_on else []
        states.keep_only([each.sha256 for each in done[-NUM_KEPT:]])

    def _with_samples(self, name: str, result: Result) -> Evaluation:
        """Write what is predicted for each sample, and return the row with its hash."""
        data = result.samples.encoded()
        sha256 = hashlib.sha256(data).hexdigest()
        write_atomically(self._subject.samples_path(name, sha256), data)
        return replace(result.row, samples_sha256=sha256)

    def _resumed(self, plan: Plan) -> int:
        """Bring the method to where *plan* was broken off, and return the position of the visit to make."""
        num_finished = self._num_finished(plan)
        if num_finished in (0, len(plan.visits)):
            return 0
        done = [each.sha256 for each in self._fingerprints(plan)[:num_finished]]
        found = self._states(plan).newest(done, self._evaluator.device, self._tell)
        if found is None:
            return 0
        position, state = found
        self._evaluator.resume(state, self._manifest(plan.visits[0].cells[0]), seed=plan.seed)
        self._tell(f"stream {plan.key} goes on at {position} of {len(plan.visits)}")
        return position

    def _num_finished(self, plan: Plan) -> int:
        """Return how many visits from the first on have records of all that decides predictions as it is now."""
        left = (standing.visit.position for standing in self.standings(plan) if not standing.is_finished)
        return next(left, len(plan.visits))

    def _taken_over(self, plan: Plan, standing: Standing) -> Standing:
        """Return *standing* with the result that the experiment had under another name, which becomes its own."""
        if standing.stored or standing.problem or not self._ranks.is_first:
            return standing
        subject, place = self._subject, (plan, standing.visit, standing.cell)
        record = subject.under_another_name(*place, fingerprint=standing.present.sha256)
        if record is None or record.evaluation is None:
            return standing
        before, name = record.evaluation, subject.record_name(*place)
        samples_sha256 = before.samples_sha256
        if samples_sha256:
            kept = subject.samples_path(subject.record_name_of(before.experiment, *place), samples_sha256)
            if kept.exists():
                write_atomically(subject.samples_path(name, samples_sha256), kept.read_bytes())
        row = replace(before, experiment=subject.experiment, model=subject.spec.model, copied_from=record.sha256)
        self._tell(f"stream {plan.key}, {standing.cell.key}: the result of {before.experiment} is the same; taken over")
        publish_record(
            self._results,
            kind="evaluations",
            name=name,
            run_id=record.run_id,
            started_at=record.started_at,
            facts=row,
            versions_then=record.versions,
        )
        return replace(standing, stored=row, versions=record.versions)

    def _fingerprints(self, plan: Plan) -> list[Fingerprint]:
        """Return what decides the predictions of each visit: all that its stream has had until then."""
        subject = self._subject
        code_sha256, arithmetic = self._code_sha256, self._arithmetic
        so_far: list[Manifest] = []
        found = []
        for visit in plan.visits:
            so_far += [self._manifest(cell) for cell in visit.cells]
            found.append(
                fingerprint(
                    subject.spec,
                    seed=plan.seed,
                    model=self._model,
                    code_sha256=code_sha256,
                    arithmetic=arithmetic,
                    device=device_type(self._machine.device),
                    image_size=subject.benchmark.image_size_of(subject.experiment),
                    manifests=tuple(so_far),
                    source=self._source.manifests[0] if self._source else None,
                )
            )
        return found

    def _manifest(self, cell: Cell) -> Manifest:
        if cell not in self._manifests:
            self._manifests[cell] = self._subject.manifest(cell)
        return self._manifests[cell]

    def _states(self, plan: Plan) -> States:
        subject = self._subject
        folder = subject.locations.states(subject.benchmark.name) / subject.experiment
        return States(folder=folder / f"{plan.key}-seed-{plan.seed}")

    def _opened(self, step: Step) -> _Held:
        return self._opening.pop(step).result() if step in self._opening else self._open(step)

    def _open(self, step: Step) -> _Held:
        """Open the cells of *step* where they lie, or staged; another thread may do it."""
        subject = self._subject
        folders = [subject.folder(cell) for cell in step.visit.cells]
        with ExitStack() as stack:
            with timed() as staging:
                if self._stage:
                    sets = [stack.enter_context(self._stage.shard_set(str(folder))) for folder in folders]
                    folders = [shard_set.folder for shard_set in sets]
            opened = open_sets(
                folders,
                belonging=[subject.belonging(cell) for cell in step.visit.cells],
                experiment=subject.spec,
                seed=step.plan.seed,
                staging_s=staging.wall_s if self._stage else 0.0,
            )
            return _Held(opened, stack.pop_all())

    def _open_next(self, step: Step) -> None:
        """Have the visit that will come after *step* opened meanwhile; a fault is raised when it is its turn."""
        following = self._to_come[self._to_come.index(step) + 1 :] if step in self._to_come else []
        for other in following[:1]:
            self._opening[other] = self._thread.submit(self._open, other)

    @property
    def _results(self) -> Path:
        return self._subject.locations.results(self._subject.benchmark.name)

    @cached_property
    def _model(self) -> LoadedModel:
        return self._subject.load_model()

    @cached_property
    def _code_sha256(self) -> str:
        """Of the method, asked before it is imported."""
        try:
            return method_code_sha256(self._subject.spec)
        except ValueError as error:
            raise EvaluationError(f"method {self._subject.spec.method}: {error}") from error

    @cached_property
    def _arithmetic(self) -> Mapping[str, Any]:
        """As it is once the method is imported, which may set some; what it sets later is part of its code."""
        implementation_of(self._subject.spec.entry)
        return arithmetic_flags()

    @cached_property
    def _source(self) -> Opened | None:
        folder = self._subject.source_folder
        return open_sets([folder], belonging=[self._subject.belonging(CLEAN)]) if folder else None

    @cached_property
    def _evaluator(self) -> Evaluator:
        benchmark, experiment = self._subject.benchmark, self._subject.experiment
        machine = self._machine
        decoded = DecodedCells(folder=Path(machine.decoded_folder), limit_bytes=machine.decoded_limit_bytes)
        return Evaluator(
            benchmark=benchmark.name,
            name=experiment,
            experiment=benchmark.experiments[experiment],
            model=self._model,
            image_size=benchmark.image_size_of(experiment),
            device=self._ranks.device or self._stack.enter_context(leased_device(machine.device, self._tell)),
            num_threads=machine.num_threads,
            open_pixels=decoded.open_pixels if machine.decoded_folder else StoredPixels,
            ranks=self._ranks,
            source=self._source,
        )


def _stage(machine: Machine, tell: Callable[[str], None]) -> Stage | None:
    if not machine.stage_folder:
        return None
    is_default = machine.stage_folder == "$TMPDIR"
    root = node_local_folder() / "staged" if is_default else Path(machine.stage_folder).expanduser()
    return Stage(root=root, limit_bytes=machine.stage_limit_bytes, tell=tell)
