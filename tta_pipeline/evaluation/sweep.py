"""One experiment over many streams: what is finished is not done again, and the next cell is opened ahead."""

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from tta_pipeline.benchmarks.spec import Benchmark, Experiment
from tta_pipeline.benchmarks.streams import Plan, Visit, plans
from tta_pipeline.errors import RecordError
from tta_pipeline.evaluation.evaluate import Evaluator, Identity, Result, fingerprint
from tta_pipeline.evaluation.machine import Machine, device_type, leased_device
from tta_pipeline.evaluation.models import LoadedModel, load_model
from tta_pipeline.evaluation.opening import Opened, open_sets
from tta_pipeline.evaluation.ranks import ALONE, Ranks
from tta_pipeline.evaluation.timing import timed
from tta_pipeline.files import write_atomically
from tta_pipeline.locations import Locations
from tta_pipeline.metrics.records import latest_record, now, publish_record
from tta_pipeline.partitions import CLEAN, Cell
from tta_pipeline.progress import Progress
from tta_pipeline.shards.belonging import Belonging, belonging_of
from tta_pipeline.shards.manifest import Manifest, read_manifest
from tta_pipeline.sources import benchmark_class_map
from tta_pipeline.streaming.decoded import DecodedCells
from tta_pipeline.streaming.pixels import StoredPixels
from tta_pipeline.streaming.staging import Stage, node_local_folder


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

    def rows(self, key: str) -> tuple[Mapping[str, Any], ...]:
        """Return the facts of the newest evaluation of each cell in each stream at *key*; none is missing.

        Raises:
            RecordError: a cell has none.
        """
        every = [(plan, visit, cell) for plan in self.plans(key) for visit in plan.visits for cell in visit.cells]
        found = [(place, self.latest(*place)) for place in every]
        for (_, _, cell), facts in found:
            if facts is None:
                raise RecordError(f"found no evaluation of {cell.key} by {self.experiment}; expected one: evaluate it")
        return tuple(facts for _, facts in found if facts is not None)

    def record_name(self, plan: Plan, visit: Visit, cell: Cell) -> str:
        """Return what the records of *cell* are called."""
        spec = self.spec
        folders = [self.experiment, *([f"seed-{plan.seed}"] if spec.seeds else [])]
        name = f"{cell.corruption}-{cell.severity}"
        if spec.protocol.partitioned_by == "cell":
            return "/".join([*folders, name])
        return "/".join([*folders, plan.key, f"{visit.position:03d}-{name}"])

    def latest(self, plan: Plan, visit: Visit, cell: Cell) -> Mapping[str, Any] | None:
        """Return the facts of the newest evaluation of *cell*, or None if it has none."""
        results = self.locations.results(self.benchmark.name)
        record = latest_record(results, kind="evaluations", name=self.record_name(plan, visit, cell))
        return record.facts if record else None

    def load_model(self) -> LoadedModel:
        """Return the experiment's model.

        Raises:
            EvaluationError: see `load_model`.
        """
        name = self.spec.model
        class_map = benchmark_class_map(self.benchmark, self.locations)
        return load_model(
            name,
            self.benchmark.models[name],
            source_model=self.locations.source_model(self.benchmark.name),
            classes=class_map.classes,
        )


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
        keeps_predictions: bool = False,
    ) -> None:
        self._subject = subject
        self._machine = machine
        self._run_id = run_id
        self._tell = tell
        self._ranks = ranks
        self._keeps_predictions = keeps_predictions
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
        """Return the streams at *key* whose newest records are not of data, weights and settings as they are now."""
        return tuple(plan for plan in self._subject.plans(key) if self._num_finished(plan) < len(plan.visits))

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
            )
            what = ", ".join(dict.fromkeys(cell.key for cell in step.visit.cells[:3]))
            progress = Progress(self._tell, what=what, total=len(opened.order))
            results = self._evaluator.evaluate(opened, identity, progress.advance)
        if self._ranks.is_first:
            self._record(step, results, started_at)

    def _record(self, step: Step, results: Sequence[Result], started_at: str) -> None:
        """Record *results*; if the stream goes on, save before from where, so that a kill loses a visit only."""
        states = self._states(step.plan)
        state = states / f"{results[0].row.fingerprint}.pt"
        goes_on = step.visit is not step.plan.visits[-1]
        if goes_on:
            write_atomically(state, _saved(self._evaluator.state()))
        benchmark, locations = self._subject.benchmark.name, self._subject.locations
        for result in results:
            cell = Cell(corruption=result.row.corruption, severity=result.row.severity)
            name = self._subject.record_name(step.plan, step.visit, cell)
            if self._keeps_predictions:
                folder = locations.predictions(benchmark) / name
                write_atomically(folder / f"{result.row.predictions_sha256}.parquet", _as_parquet(result.samples))
            publish_record(
                locations.results(benchmark),
                kind="evaluations",
                name=name,
                run_id=self._run_id,
                started_at=started_at,
                facts=asdict(result.row),
            )
        for older in states.glob("*.pt"):
            if older != state or not goes_on:
                older.unlink()

    def _resumed(self, plan: Plan) -> int:
        """Bring the method to where *plan* was broken off, and return the position of the visit to make."""
        num_finished = self._num_finished(plan)
        if num_finished in (0, len(plan.visits)):
            return 0
        path = self._states(plan) / f"{self._fingerprints(plan)[num_finished - 1]}.pt"
        if not path.exists():
            return 0
        manifest = self._manifest(plan.visits[0].cells[0])
        state = torch.load(path, map_location=self._evaluator.device, weights_only=True)
        self._evaluator.resume(state, manifest, seed=plan.seed)
        self._tell(f"stream {plan.key} goes on at {num_finished} of {len(plan.visits)}")
        return num_finished

    def _num_finished(self, plan: Plan) -> int:
        """Return how many visits from the first on have records of data, weights and settings as they are now."""
        for visit, expected in zip(plan.visits, self._fingerprints(plan), strict=True):
            for cell in visit.cells:
                latest = self._subject.latest(plan, visit, cell)
                if latest is None or latest["fingerprint"] != expected:
                    return visit.position
        return len(plan.visits)

    def _fingerprints(self, plan: Plan) -> list[str]:
        """Return what decides the predictions of each visit: all that its stream has had until then."""
        subject = self._subject
        so_far: list[Manifest] = []
        found = []
        for visit in plan.visits:
            so_far += [self._manifest(cell) for cell in visit.cells]
            found.append(
                fingerprint(
                    subject.spec,
                    seed=plan.seed,
                    weights_sha256=self._model.weights_sha256,
                    device=device_type(self._machine.device),
                    manifests=so_far,
                    source=self._source.manifests[0] if self._source else None,
                )
            )
        return found

    def _manifest(self, cell: Cell) -> Manifest:
        if cell not in self._manifests:
            self._manifests[cell] = self._subject.manifest(cell)
        return self._manifests[cell]

    def _states(self, plan: Plan) -> Path:
        subject = self._subject
        return subject.locations.states(subject.benchmark.name) / subject.experiment / f"{plan.key}-seed-{plan.seed}"

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

    @cached_property
    def _model(self) -> LoadedModel:
        return self._subject.load_model()

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


def _as_parquet(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def _saved(state: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()
