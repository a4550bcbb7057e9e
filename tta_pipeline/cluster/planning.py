"""What is to be done of a benchmark: shards before evaluations, nothing that is finished, the report at the end."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.cluster.costs import Costs
from tta_pipeline.cluster.pieces import Cut, Piece, Work, evaluation_pieces
from tta_pipeline.errors import ManifestError
from tta_pipeline.evaluation.experiment import ExperimentResults
from tta_pipeline.locations import Locations
from tta_pipeline.partitions import CLEAN, TRAIN, WHOLE, Cell, PartitionKey
from tta_pipeline.progress import Progress
from tta_pipeline.shards.belonging import belonging_of
from tta_pipeline.shards.manifest import read_manifest

if TYPE_CHECKING:
    from tta_pipeline.evaluation.runner import ExperimentRunner


@dataclass(frozen=True, kw_only=True)
class Planner:
    """Plans the work that is left of some experiments of a benchmark."""

    benchmark: Benchmark
    locations: Locations
    experiments: tuple[str, ...]
    device: str = "auto"
    """Device that will evaluate, in the notation of `Machine`; it is part of what determines a result."""
    tell: Callable[[str], None] = lambda _: None

    def pieces(self, *, by: Cut, num_devices: int, without: Iterable[Piece] = ()) -> tuple[Piece, ...]:
        """Return what is unfinished as pieces, stage by stage; empty if everything is finished or *without* has it.

        Args:
            by: The most that a piece covers; see `evaluation_pieces`.
            num_devices: Number of pieces that run at a time.
            without: Pieces that run or wait already.

        Raises:
            EvaluationError: a model cannot be loaded.
        """
        busy = {at for piece in without for at in piece.places}
        costs = Costs.measured(self.benchmark, self.locations)
        work = tuple(each for each in self.unfinished(costs) if each.place not in busy)
        if not work:
            return ()
        before = (*self._shard_pieces(work), *self._training_pieces(work))
        return (
            *(piece for piece in before if not busy.issuperset(piece.places)),
            *evaluation_pieces(
                work, by=by, num_devices=num_devices, severities=self.benchmark.severities, is_timed=costs.is_timed
            ),
            Piece(stage="report", assets=("robustness_report",)),
        )

    def unfinished(self, costs: Costs) -> Iterator[Work]:
        """Yield each partition key at which an experiment has unfinished streams; nothing is written.

        Raises:
            EvaluationError: a model cannot be loaded.
        """
        progress = Progress(
            self.tell, what="looking for unfinished cells", total=len(self.experiments), unit="experiments"
        )
        for name in self.experiments:
            results = ExperimentResults(benchmark=self.benchmark, experiment_name=name, locations=self.locations)
            for key in self._unfinished_keys(results):
                yield Work(
                    experiment=name,
                    key=key.key,
                    asset=f"{'clean/' if key == CLEAN else ''}evaluation/{name}",
                    corruption=key.corruption if isinstance(key, Cell) else "",
                    is_partition=key not in (CLEAN, WHOLE),
                    expected_s=sum(costs.expected_s(name, plan) for plan in results.plans(key)),
                )
            progress.advance(1)

    def _unfinished_keys(self, results: ExperimentResults) -> Iterator[PartitionKey]:
        recorded = {key for key in results.keys if all(map(results.is_recorded, results.plans(key)))}
        if not recorded or results.spec.model in self._untrained:
            yield from results.keys
            return
        # Imports torch, and loads the model: its weights are part of the fingerprint.
        from tta_pipeline.evaluation.machine import Machine
        from tta_pipeline.evaluation.runner import ExperimentRunner

        with ExperimentRunner(results, machine=Machine(device=self.device), run_id="", tell=self.tell) as runner:
            yield from (key for key in results.keys if key not in recorded or not _is_finished(runner, results, key))

    @cached_property
    def _untrained(self) -> frozenset[str]:
        """Models that are still to be trained, as the benchmark file says now."""
        used = {self.benchmark.experiments[name].model for name in self.experiments}
        return frozenset(name for name in self.benchmark.trained_models if name in used and not self._is_trained(name))

    def _is_trained(self, model: str) -> bool:
        from tta_pipeline.training.source_model import SourceTraining

        try:
            return (
                SourceTraining(benchmark=self.benchmark, model=model, locations=self.locations).finished() is not None
            )
        except ManifestError:
            return False

    def _training_pieces(self, work: Sequence[Work]) -> Iterator[Piece]:
        used = {self.benchmark.experiments[each.experiment].model for each in work}
        for model in sorted(self._untrained & used):
            of_several = f"/{model}" if len(self.benchmark.trained_models) > 1 else ""
            yield Piece(stage="training", assets=(f"source_model{of_several}",))

    def _shard_pieces(self, work: Sequence[Work]) -> Iterator[Piece]:
        """Yield the shard sets that *work* reads and that have no manifest yet.

        The first of them comes before the others if it has to pin the classes.
        """
        missing = self._missing(work)
        sets = [cell for cell in missing if cell in (CLEAN, TRAIN)]
        for cell in sets:
            yield Piece(stage="sets", assets=tuple(f"{cell.corruption}/{asset}" for asset in missing[cell]))
        pins_classes = not sets and not self.locations.class_map(self.benchmark.name).exists()
        for together in self._read_together([cell for cell in missing if cell not in sets]):
            assets = dict.fromkeys(asset for cell in together for asset in missing[cell])
            keys = tuple(cell.key for cell in together)
            yield Piece(stage="sets" if pins_classes else "shards", assets=tuple(assets), keys=keys)
            pins_classes = False

    def _missing(self, work: Sequence[Work]) -> dict[Cell, tuple[str, ...]]:
        """Return the assets that make the missing shard sets of each cell, in the benchmark's order."""
        benchmark = self.benchmark
        needed: dict[Cell, dict[str, None]] = {}
        for name, keys in _by_experiment(work).items():
            results = ExperimentResults(benchmark=benchmark, experiment_name=name, locations=self.locations)
            cells = {
                cell for key in results.keys if key.key in keys for plan in results.plans(key) for cell in plan.cells
            }
            for cell in cells:
                needed.setdefault(cell, {}).update({results.spec.shards or "": None})
            if benchmark.uses_clean_images(name):
                needed.setdefault(CLEAN, {}).update({"": None})
            if results.spec.model in self._untrained:
                needed |= {cell: {"": None, **needed.get(cell, {})} for cell in self._trained_on}
        order = {cell: position for position, cell in enumerate((CLEAN, TRAIN, *benchmark.cells))}
        found = {
            cell: tuple(self._missing_assets(cell, needed[cell])) for cell in sorted(needed, key=order.__getitem__)
        }
        return {cell: assets for cell, assets in found.items() if assets}

    @property
    def _trained_on(self) -> tuple[Cell, ...]:
        return (TRAIN, CLEAN) if self.benchmark.has_clean else (TRAIN,)

    def _missing_assets(self, cell: Cell, transforms: Iterable[str]) -> Iterator[str]:
        """Yield the assets for the set of *cell* that the benchmark starts from, and for each of *transforms*."""
        name = self.benchmark.name
        if not self._has_manifest(self.locations.shards(name, cell), cell):
            yield from ("source_split",) if self.benchmark.is_drawn else ()
            yield from ("tar_shards", "shard_manifest")
        for transform in filter(None, transforms):
            if not self._has_manifest(self.locations.transformed(name, transform, cell), cell):
                yield f"transformed_shards/{transform}"

    def _has_manifest(self, folder: Path, cell: Cell) -> bool:
        try:
            read_manifest(folder, belonging_of(self.locations, self.benchmark.name, cell))
        except ManifestError:
            return False
        return True

    def _read_together(self, cells: Iterable[Cell]) -> Iterator[list[Cell]]:
        """Yield the *cells* of each corruption, and of neighbouring ones that lie in the same files.

        A run reads an archive once for all its cells.
        """
        benchmark = self.benchmark
        of_corruptions = [list(group) for _, group in groupby(cells, key=attrgetter("corruption"))]
        places = {
            group[0].corruption: {path for cell in group for path in benchmark.source.places(cell, benchmark.shift_set)}
            for group in of_corruptions
        }
        together: list[list[Cell]] = []
        for group in of_corruptions:
            here = places[group[0].corruption]
            is_shared = bool(together and here) and here == places[together[-1][-1].corruption]
            if is_shared and _severities(together[-1]) == _severities(group):
                together[-1] += group
            else:
                together.append(group)
        yield from together


def _is_finished(runner: "ExperimentRunner", results: ExperimentResults, key: PartitionKey) -> bool:
    try:
        return all(standing.is_finished for plan in results.plans(key) for standing in runner.standings(plan))
    except ManifestError:
        return False


def _by_experiment(work: Iterable[Work]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for each in work:
        found.setdefault(each.experiment, set()).add(each.key)
    return found


def _severities(cells: Iterable[Cell]) -> set[int]:
    return {cell.severity for cell in cells}
