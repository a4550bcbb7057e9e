"""The plan of a benchmark's unfinished work: shards before evaluations, and the report at the end."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.cell_ranges import cell_ranges
from tta_pipeline.domain.cells import CLEAN, TRAIN, WHOLE, Cell, PartitionKey
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import ManifestError
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.evaluation.work.costs import Costs
from tta_pipeline.evaluation.work.planned_runs import REPORT, PlannedRun, Work, assets_of_shards, evaluation_runs
from tta_pipeline.results.names import find_results
from tta_pipeline.shards.benchmark_expectation import expected_for_benchmark
from tta_pipeline.shards.manifest import MANIFEST_FILE, read_manifest
from tta_pipeline.shards.set_facts import Manifest
from tta_pipeline.shards.shard_set import VERIFIED_FILE, ShardSet, find_damage
from tta_pipeline.util.progress import Progress


@dataclass(frozen=True, kw_only=True)
class Planner:
    """Plans the unfinished work of some experiments of a benchmark."""

    benchmark: Benchmark
    locations: Locations
    experiments: tuple[str, ...]
    unfinished_keys: Callable[[ExperimentResults, Sequence[PartitionKey]], Iterable[PartitionKey]]
    """Function that finds which keys have an unfinished stream, for an experiment with results or a plan."""
    find_trained: Callable[..., object]
    """`models.trained_models.find_trained`, or a function that imports it first: with torch, which a new plan does not
    need."""
    tell: Callable[[str], None] = lambda _: None
    is_chosen: Callable[[str, PartitionKey], bool] = lambda *_: True
    """Function that returns whether an experiment at a partition key is requested; other work is left out."""

    def plan_runs(self, work: Sequence[Work]) -> tuple[PlannedRun, ...]:
        """Return the runs for *work* from `find_unfinished` and for what it needs, stage by stage."""
        if not work:
            return (REPORT,) if self._report_is_outdated() else ()
        without_shards = self._cells_without_shards(work)
        for damage in filter(None, map(self._find_damage, without_shards)):
            self.tell(f"{damage}: the shards of this cell are made again")
        return (
            *self._shard_runs(without_shards),
            *self._training_runs(work),
            *evaluation_runs(self.benchmark, work, is_timed=self._costs.is_timed),
            REPORT,
        )

    def find_unfinished(self) -> tuple[Work, ...]:
        """Return the work at each partition key at which an experiment has unfinished streams; nothing is written.

        Experiments with the same model come one after the other.

        Raises:
            EvaluationError: a model cannot be loaded.
        """
        work = []
        names = sorted(self.experiments, key=lambda name: self.benchmark.experiments[name].model)
        progress = Progress(self.tell, what="looking for unfinished cells", total=len(names), unit="experiments")
        for name in names:
            results = ExperimentResults(benchmark=self.benchmark, experiment_name=name, locations=self.locations)
            chosen = [key for key in results.keys if self.is_chosen(name, key)]
            for key in self.unfinished_keys(results, chosen) if chosen and self._may_be_finished(results) else chosen:
                plans = results.plans(key)
                work.append(
                    Work(
                        experiment=name,
                        key=key.key,
                        asset=f"{'clean/' if key == CLEAN else ''}evaluation/{name}",
                        corruption=key.corruption if isinstance(key, Cell) else "",
                        is_partition=key not in (CLEAN, WHOLE),
                        cells=plans[0].cells,  # other seeds have the same cells in another order
                        expected_s=sum(self._costs.expected_s(name, plan) for plan in plans),
                    )
                )
            progress.advance(1)
        return tuple(work)

    def _report_is_outdated(self) -> bool:
        """Return whether a result of the benchmark is newer than its report: `--no-report`, or parts, made it."""
        index = self.locations.report(self.benchmark.name) / "index.html"
        written_ns = index.stat().st_mtime_ns if index.exists() else 0
        folders = self.locations.results(self.benchmark.name).glob("*")
        return any(path.stat().st_mtime_ns > written_ns for folder in folders for path in find_results(folder))

    def _may_be_finished(self, results: ExperimentResults) -> bool:
        """Return whether results have to be compared, for which the model is loaded."""
        return (results.plan is not None or results.has_results) and results.spec.model not in self._untrained

    @cached_property
    def _costs(self) -> Costs:
        return Costs.from_database(self.benchmark, self.locations)

    @cached_property
    def _untrained(self) -> frozenset[str]:
        """Models that are not yet trained with the current settings of the benchmark file."""
        used = {self.benchmark.experiments[name].model for name in self.experiments}
        return frozenset(name for name in self.benchmark.trained_models if name in used and not self._is_trained(name))

    def _is_trained(self, model: str) -> bool:
        """Return whether *model* can be evaluated: trained with the settings of the benchmark file, if that is known.

        Without the training shards, its settings cannot be checked, and the model is evaluated as it is; see
        `load_benchmark_model`.
        """
        settings, image_size = self.benchmark.trained_models[model], self.benchmark.image_size
        path = self.locations.source_model(self.benchmark.name, model)
        if not path.exists():
            return False
        shards = self.locations.shards(self.benchmark.name, TRAIN)
        if not (shards / MANIFEST_FILE).exists():
            return True
        try:
            shard_set = ShardSet.open(shards, expected_for_benchmark(self.benchmark, self.locations, TRAIN))
            shard_set.require_intact()
        except ManifestError:
            return False
        return self.find_trained(path, shard_set.manifest, settings, image_size=image_size) is not None

    def _training_runs(self, work: Sequence[Work]) -> Iterator[PlannedRun]:
        used = {self.benchmark.experiments[each.experiment].model for each in work}
        for model in sorted(self._untrained & used):
            yield PlannedRun(stage="training", assets=(self.benchmark.source_model_asset(model),))

    def _shard_runs(self, missing: Sequence[Cell]) -> Iterator[PlannedRun]:
        """Yield the runs that make the shards of the cells *missing*.

        If the classes are not pinned yet, the first run pins them, so it comes before the others. It contains the cells
        that are stored in the same files, so each file is read once. The others are as few as possible.
        """
        assets = assets_of_shards(self.benchmark)
        sets = [cell for cell in missing if cell in (CLEAN, TRAIN)]
        for cell in sets:
            yield PlannedRun(stage="sets", assets=tuple(f"{cell.corruption}/{asset}" for asset in assets))
        left = [cell for cell in missing if cell not in sets]
        if left and not sets and not self.locations.class_map(self.benchmark.name).exists():
            first = next(iter(cell_ranges(self.benchmark, left, are_joined=self._lie_in_the_same_files)))
            yield PlannedRun(stage="sets", assets=assets, keys=tuple(cell.key for cell in first))
            left = [cell for cell in left if cell not in first]
        for together in cell_ranges(self.benchmark, left):
            yield PlannedRun(stage="shards", assets=assets, keys=tuple(cell.key for cell in together))

    def _cells_without_shards(self, work: Iterable[Work]) -> tuple[Cell, ...]:
        """Return the cells that *work* reads and whose shards are missing, in the benchmark's order."""
        needed = {cell for each in work for cell in self._cells_read_by(each)}
        every = (CLEAN, TRAIN, *self.benchmark.cells)
        return tuple(cell for cell in every if cell in needed and not self._has_shards(cell))

    def _cells_read_by(self, work: Work) -> Iterator[Cell]:
        """Yield each cell whose shards *work* needs."""
        yield from work.cells
        if self.benchmark.uses_clean_images(work.experiment):
            yield CLEAN
        if self.benchmark.experiments[work.experiment].model in self._untrained:
            yield from self._training_cells

    @property
    def _training_cells(self) -> tuple[Cell, ...]:
        return (TRAIN, CLEAN) if self.benchmark.has_clean else (TRAIN,)

    def _has_shards(self, cell: Cell) -> bool:
        """Return whether the shards of *cell* exist, match the benchmark file, and are intact."""
        return self._read_manifest(cell) is not None and self._find_damage(cell) is None

    def _find_damage(self, cell: Cell) -> str | None:
        """Return which shard of *cell* is damaged, if an evaluation has found one, or None.

        Such an evaluation removes the record that the shards were hashed. Third-party shards stay as they are.
        """
        folder, manifest = self.locations.shards(self.benchmark.name, cell), self._read_manifest(cell)
        if manifest is None or self.benchmark.has_shards or (folder / VERIFIED_FILE).exists():
            return None
        return next(find_damage(folder, manifest.shards), None)

    def _read_manifest(self, cell: Cell) -> Manifest | None:
        folder = self.locations.shards(self.benchmark.name, cell)
        try:
            return read_manifest(folder, expected_for_benchmark(self.benchmark, self.locations, cell))
        except ManifestError:
            return None

    def _lie_in_the_same_files(self, last: Sequence[Cell], following: Sequence[Cell]) -> bool:
        """Return whether one run makes both: a run reads an archive once for all its cells."""
        here = self._places(following)
        return bool(here) and here == self._places(last)

    def _places(self, cells: Iterable[Cell]) -> set[Path]:
        """Return the files that contain *cells*."""
        benchmark = self.benchmark
        return {path for cell in cells for path in benchmark.images.places(cell, benchmark.dataset)}
