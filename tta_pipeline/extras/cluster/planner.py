"""The plan of a benchmark's unfinished work: shards before evaluations, and the report at the end."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.cell_ranges import cell_ranges
from tta_pipeline.domain.cells import CLEAN, TRAIN, WHOLE, Cell, PartitionKey
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import ManifestError, PipelineError
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.extras.cluster.costs import Costs
from tta_pipeline.extras.cluster.pieces import SHARD_SET_KINDS, AssetName, Cut, Piece, Work, evaluation_pieces
from tta_pipeline.shards.benchmark_expectation import expected_for_benchmark
from tta_pipeline.shards.manifest import read_manifest
from tta_pipeline.shards.set_facts import Manifest
from tta_pipeline.shards.shard_set import VERIFIED_FILE, find_damage
from tta_pipeline.util.progress import Progress


@dataclass(frozen=True, kw_only=True)
class Planner:
    """Plans the unfinished work of some experiments of a benchmark."""

    benchmark: Benchmark
    locations: Locations
    experiments: tuple[str, ...]
    unfinished_keys: Callable[[ExperimentResults], Iterable[PartitionKey]]
    """Function that finds the keys with an unfinished stream, for an experiment whose model exists."""
    is_trained: Callable[[str], bool]
    """Function that says whether the model of this name is trained as the benchmark file says now."""
    tell: Callable[[str], None] = lambda _: None
    is_chosen: Callable[[PartitionKey], bool] = lambda _: True
    """Function that says whether the user chose a partition key; the work at other keys is left out."""

    def plan_pieces(self, *, by: Cut, num_devices: int, without: Iterable[Piece] = ()) -> tuple[Piece, ...]:
        """Return the unfinished work as pieces, stage by stage.

        Work that *without* covers is left out, and so is work that needs shards or a model which *without* is making.

        Args:
            by: The most that a piece covers; see `evaluation_pieces`.
            num_devices: Number of pieces that run at the same time.
            without: Pieces that run or wait already.

        Raises:
            EvaluationError: a model cannot be loaded.
        """
        busy = frozenset(at for piece in without for at in piece.places)
        costs = Costs.from_database(self.benchmark, self.locations)
        unfinished = tuple(each for each in self.find_unfinished(costs) if each.place not in busy)
        work = self._drop_waiting(unfinished, busy)
        if not work:
            return ()
        without_shards = self._cells_without_shards(work)
        for damage in filter(None, map(self._find_damage, without_shards)):
            self.tell(f"{damage}: the shards of this cell are made again")
        return (
            *self._shard_pieces(without_shards),
            *self._training_pieces(work),
            *evaluation_pieces(
                work,
                by=by,
                num_devices=num_devices,
                severities=self.benchmark.severities,
                is_timed=costs.is_timed,
                busy=busy,
            ),
            Piece(stage="report", assets=("robustness_report",)),
        )

    def find_unfinished(self, costs: Costs) -> Iterator[Work]:
        """Yield each partition key at which an experiment has unfinished streams; nothing is written.

        Experiments with the same model come one after the other.

        Raises:
            EvaluationError: a model cannot be loaded.
        """
        names = sorted(self.experiments, key=lambda name: self.benchmark.experiments[name].model)
        progress = Progress(self.tell, what="looking for unfinished cells", total=len(names), unit="experiments")
        for name in names:
            results = ExperimentResults(benchmark=self.benchmark, experiment_name=name, locations=self.locations)
            is_trained = results.spec.model not in self._untrained
            for key in filter(self.is_chosen, self.unfinished_keys(results) if is_trained else results.keys):
                plans = results.plans(key)
                yield Work(
                    experiment=name,
                    key=key.key,
                    asset=f"{'clean/' if key == CLEAN else ''}evaluation/{name}",
                    corruption=key.corruption if isinstance(key, Cell) else "",
                    is_partition=key not in (CLEAN, WHOLE),
                    cells=plans[0].cells,  # other seeds have the same cells in another order
                    expected_s=sum(costs.expected_s(name, plan) for plan in plans),
                )
            progress.advance(1)

    def finished_places(self, pieces: Sequence[Piece]) -> Mapping[Piece, frozenset[tuple[str, str]]]:
        """Return the finished places of each of *pieces*, as in `Piece.places`.

        A place is finished if everything is there that the benchmark file asks for. A report never counts as finished,
        since it can be made of any results. If the state of an experiment cannot be determined, the reason is told, and
        it counts as unfinished.
        """
        names = [AssetName.parse(asset) for piece in pieces for asset in piece.assets]
        experiments = {name.of for name in names if name.kind == "evaluation"} & self.benchmark.experiments.keys()
        # Experiments with the same model come one after the other.
        ordered = sorted(experiments, key=lambda name: self.benchmark.experiments[name].model)
        keys = {name: self._finished_keys(name) for name in ordered}
        return {
            piece: frozenset((asset, key) for asset, key in piece.places if self._is_finished(asset, key, keys))
            for piece in pieces
        }

    def _finished_keys(self, experiment: str) -> frozenset[str]:
        results = ExperimentResults(benchmark=self.benchmark, experiment_name=experiment, locations=self.locations)
        if results.spec.model in self._untrained:
            return frozenset()
        try:
            unfinished = frozenset(self.unfinished_keys(results))
        except PipelineError as error:
            self.tell(f"{experiment}: {error}")
            return frozenset()
        return frozenset(key.key for key in results.keys if key not in unfinished)

    def _is_finished(self, asset: str, key: str, keys: Mapping[str, frozenset[str]]) -> bool:
        """Return whether *asset* is finished at *key*; *keys* are the finished keys of each experiment."""
        kind, of, beside = AssetName.parse(asset)
        if kind == "evaluation":
            return (beside.key if beside else key or WHOLE.key) in keys.get(of, ())
        if kind == "source_model":
            return self.is_trained(of or next(iter(self.benchmark.trained_models), ""))
        cell = beside or next((cell for cell in self.benchmark.cells if cell.key == key), None)
        if cell is None or kind not in SHARD_SET_KINDS:
            return False
        return self._has_shards(cell)

    def _drop_waiting(self, work: Sequence[Work], busy: AbstractSet[tuple[str, str]]) -> tuple[Work, ...]:
        """Return *work* without the parts that need shards or a model that pieces at the places *busy* are making.

        The reason: stages of one submission do not wait for stages of another.
        """
        made = {
            cell
            for cell in self._cells_without_shards(work)
            if any(_place(cell, asset) in busy for asset in self._assets_of_shards)
        }
        trained = {model for model in self._untrained if (self.benchmark.source_model_asset(model), "") in busy}
        ready = tuple(
            each
            for each in work
            if self.benchmark.experiments[each.experiment].model not in trained
            and not made.intersection(self._cells_read_by(each))
        )
        if len(ready) < len(work):
            self.tell(
                f"{len(work) - len(ready):,} partitions need shards or models that submitted pieces are still "
                "making: submit these partitions when those pieces are done"
            )
        return ready

    @cached_property
    def _untrained(self) -> frozenset[str]:
        """Models that are not yet trained as the benchmark file says now."""
        used = {self.benchmark.experiments[name].model for name in self.experiments}
        return frozenset(name for name in self.benchmark.trained_models if name in used and not self.is_trained(name))

    def _training_pieces(self, work: Sequence[Work]) -> Iterator[Piece]:
        used = {self.benchmark.experiments[each.experiment].model for each in work}
        for model in sorted(self._untrained & used):
            yield Piece(stage="training", assets=(self.benchmark.source_model_asset(model),))

    @property
    def _assets_of_shards(self) -> tuple[str, ...]:
        """The assets that make the shards of a cell, in their order."""
        return (*(["source_split"] if self.benchmark.is_drawn else []), "tar_shards", "shard_manifest")

    def _shard_pieces(self, missing: Sequence[Cell]) -> Iterator[Piece]:
        """Yield the pieces that make the shards of the cells *missing*.

        If the classes are not pinned yet, the first piece pins them, so it comes before the others.
        """
        sets = [cell for cell in missing if cell in (CLEAN, TRAIN)]
        for cell in sets:
            yield Piece(stage="sets", assets=tuple(_place(cell, asset)[0] for asset in self._assets_of_shards))
        pins_classes = not sets and not self.locations.class_map(self.benchmark.name).exists()
        left = [cell for cell in missing if cell not in sets]
        for together in cell_ranges(self.benchmark, left, are_joined=self._lie_in_the_same_files):
            keys = tuple(cell.key for cell in together)
            yield Piece(stage="sets" if pins_classes else "shards", assets=self._assets_of_shards, keys=keys)
            pins_classes = False

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
        return self._read_manifest(cell) is not None and self._find_damage(cell) is None

    def _find_damage(self, cell: Cell) -> str | None:
        """Return which shard of *cell* is damaged, if an evaluation has found one; else None.

        It removes the note that the shards were hashed. Those that others made stay as they are.
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
        """Return whether one piece has both: a run reads an archive once for all its cells."""
        here = self._places(following)
        return bool(here) and here == self._places(last)

    def _places(self, cells: Iterable[Cell]) -> set[Path]:
        """Return the files in which *cells* lie."""
        benchmark = self.benchmark
        return {path for cell in cells for path in benchmark.source.places(cell, benchmark.shift_set)}


def _place(cell: Cell, asset: str) -> tuple[str, str]:
    """Return the place, as in `Piece.places`, of *asset* of *cell*; clean and training sets have no partitions."""
    return (f"{cell.corruption}/{asset}", "") if cell in (CLEAN, TRAIN) else (asset, cell.key)
