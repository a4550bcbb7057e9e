"""One experiment over many cells: what is finished is not done again, and the next cell is opened ahead."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tta_pipeline.benchmarks.spec import Benchmark
from tta_pipeline.evaluation.evaluate import Evaluator, OpenedCell, fingerprint, open_cell
from tta_pipeline.evaluation.machine import Machine, device_type, leased_device
from tta_pipeline.evaluation.models import LoadedModel, load_model
from tta_pipeline.evaluation.ranks import ALONE, Ranks
from tta_pipeline.locations import Locations
from tta_pipeline.metrics.records import latest_record, now, publish_record
from tta_pipeline.partitions import CLEAN, Cell
from tta_pipeline.progress import Progress
from tta_pipeline.shards.manifest import MANIFEST_FILE, Manifest, read_record
from tta_pipeline.sources import benchmark_class_map
from tta_pipeline.streaming.decoded import DecodedCells
from tta_pipeline.streaming.pixels import StoredPixels


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is evaluated, and where its data and results lie."""

    benchmark: Benchmark
    experiment: str
    locations: Locations

    def folder(self, cell: Cell) -> Path:
        """Return the folder of the shards that the experiment reads."""
        transform = self.benchmark.experiments[self.experiment].shards
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
        """Return the manifest of *cell*."""
        return read_record(self.folder(cell) / MANIFEST_FILE, Manifest)

    def record_name(self, cell: Cell) -> str:
        """Return what the records of *cell* are called."""
        return f"{self.experiment}/{cell.corruption}-{cell.severity}"

    def latest(self, cell: Cell) -> Mapping[str, Any] | None:
        """Return the facts of the newest evaluation of *cell*, or None if it has none."""
        results = self.locations.results(self.benchmark.name)
        record = latest_record(results, kind="evaluations", name=self.record_name(cell))
        return record.facts if record else None

    def load_model(self) -> LoadedModel:
        """Return the experiment's model.

        Raises:
            EvaluationError: see `load_model`.
        """
        name = self.benchmark.experiments[self.experiment].model
        class_map = benchmark_class_map(self.benchmark, self.locations)
        return load_model(
            name,
            self.benchmark.models[name],
            source_model=self.locations.source_model(self.benchmark.name),
            classes=class_map.classes,
        )


class Sweep:
    """Evaluates cells in a process that keeps model, threads and device warm."""

    def __init__(
        self,
        subject: Subject,
        cells: Sequence[Cell],
        *,
        machine: Machine,
        run_id: str,
        tell: Callable[[str], None],
        ranks: Ranks = ALONE,
    ) -> None:
        self._subject = subject
        self.cells = list(cells)
        self._machine = machine
        self._run_id = run_id
        self._tell = tell
        self._ranks = ranks
        self._opening: dict[Cell, Future[OpenedCell]] = {}
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

    def is_finished(self, cell: Cell) -> bool:
        """Return whether the newest record of *cell* is of the data, weights and settings as they are now."""
        subject, latest = self._subject, self._subject.latest(cell)
        return latest is not None and latest["fingerprint"] == fingerprint(
            subject.benchmark.experiments[subject.experiment],
            weights_sha256=self._model.weights_sha256,
            device=device_type(self._machine.device),
            manifest=subject.manifest(cell),
            source=self._source.shard_set.manifest if self._source else None,
        )

    def evaluate(self, cell: Cell) -> Mapping[str, Any]:
        """Evaluate *cell*, record the result, and return its facts.

        Raises:
            ManifestError, StreamError, EvaluationError: see `Evaluator.evaluate`.
        """
        started_at = now()
        opened = self._opened(cell)
        self._open_next(cell)
        progress = Progress(self._tell, what=cell.key, num_images=opened.shard_set.manifest.num_samples)
        facts = asdict(self._evaluator.evaluate(opened, progress.advance))
        if self._ranks.is_first:
            publish_record(
                self._subject.locations.results(self._subject.benchmark.name),
                kind="evaluations",
                name=self._subject.record_name(cell),
                run_id=self._run_id,
                started_at=started_at,
                facts=facts,
            )
        return facts

    def _opened(self, cell: Cell) -> OpenedCell:
        if cell in self._opening:
            return self._opening.pop(cell).result()
        return open_cell(self._subject.folder(cell))

    def _open_next(self, cell: Cell) -> None:
        """Have the cell that will come after *cell* opened meanwhile; a fault is raised when it is its turn."""
        following = self.cells[self.cells.index(cell) + 1 :] if cell in self.cells else []
        for other in following[:1]:
            self._opening[other] = self._thread.submit(open_cell, self._subject.folder(other))

    @cached_property
    def _model(self) -> LoadedModel:
        return self._subject.load_model()

    @cached_property
    def _source(self) -> OpenedCell | None:
        folder = self._subject.source_folder
        return open_cell(folder) if folder else None

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
