"""Plans beside submissions: what runs or waits is not planned again, and what an ended piece has finished is found."""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import NamedTuple

from tta_pipeline.domain.cells import CLEAN, TRAIN, WHOLE, Cell
from tta_pipeline.errors import PipelineError
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.evaluation.work.pieces import Cut, Piece, Work, assets_of_shards
from tta_pipeline.evaluation.work.planner import Planner, place_of

SHARD_SET_KINDS = ("source_split", "tar_shards", "shard_manifest")
"""Kinds of assets that produce a folder of shards with its manifest."""


def plan_beside(planner: Planner, active: Sequence[Piece], *, by: Cut, num_devices: int) -> tuple[Piece, ...]:
    """Return the unfinished work as pieces, without what the *active* pieces cover or make; see `Planner.plan_pieces`.

    Raises:
        EvaluationError: a model cannot be loaded.
    """
    busy = frozenset(at for piece in active for at in piece.places)
    free = [each for each in planner.find_unfinished() if each.place not in busy]
    work = apart_from(_without_waiting(planner, free, busy), busy)
    return planner.plan_pieces(work, by=by, num_devices=num_devices)


def apart_from(work: Sequence[Work], busy: AbstractSet[tuple[str, str]]) -> list[Work]:
    """Return *work* such that no range of a piece spans a place that is *busy*.

    Where an experiment has a busy cell of a corruption, each of its other cells counts as a corruption of its own.
    """
    cut_up = {(asset, key.partition("|")[0]) for asset, key in busy}
    return [replace(each, corruption=each.key) if (each.asset, each.corruption) in cut_up else each for each in work]


def _without_waiting(planner: Planner, work: Sequence[Work], busy: AbstractSet[tuple[str, str]]) -> Sequence[Work]:
    """Return *work* without the parts that need shards or a model that pieces at the places *busy* are making.

    The reason: stages of one submission do not wait for stages of another.
    """
    benchmark = planner.benchmark
    made = {
        cell
        for cell in planner.cells_without_shards(work)
        if any(place_of(cell, asset) in busy for asset in assets_of_shards(benchmark))
    }
    trained = {model for model in planner.untrained if (benchmark.source_model_asset(model), "") in busy}
    ready = [
        each
        for each in work
        if benchmark.experiments[each.experiment].model not in trained
        and not made.intersection(planner.cells_read_by(each))
    ]
    if len(ready) < len(work):
        planner.tell(
            f"{len(work) - len(ready):,} partitions need shards or models that submitted pieces are still "
            "making: submit these partitions when those pieces are done"
        )
    return ready


class AssetName(NamedTuple):
    """The parts of an asset key, without the benchmark's prefix."""

    kind: str
    """Kind of the asset, such as `evaluation` or `shard_manifest`."""
    of: str
    """Experiment or model that the key names; empty: none."""
    beside: Cell | None
    """The clean or the training set, if the asset belongs to one; None: it belongs to the partitions of its run."""

    @classmethod
    def parse(cls, asset: str) -> "AssetName":
        """Parse the asset key *asset*."""
        folder, _, rest = asset.partition("/")
        beside = {cell.corruption: cell for cell in (CLEAN, TRAIN)}.get(folder)
        kind, _, of = (rest if beside else asset).partition("/")
        return cls(kind=kind, of=of, beside=beside)


def finished_places(planner: Planner, pieces: Sequence[Piece]) -> Mapping[Piece, frozenset[tuple[str, str]]]:
    """Return the finished places of each of *pieces*, as in `Piece.places`.

    A place is finished if everything is there that the benchmark file asks for. A report never counts as finished,
    since it can be made of any results. If the state of an experiment cannot be determined, the reason is told, and
    it counts as unfinished.
    """
    known = planner.benchmark.experiments
    names = [AssetName.parse(asset) for piece in pieces for asset in piece.assets]
    experiments = {name.of for name in names if name.kind == "evaluation"} & known.keys()
    # Experiments with the same model come one after the other.
    ordered = sorted(experiments, key=lambda name: known[name].model)
    keys = {name: frozenset(_finished_keys(planner, name)) for name in ordered}
    return {
        piece: frozenset((asset, key) for asset, key in piece.places if _is_finished(planner, asset, key, keys))
        for piece in pieces
    }


def _finished_keys(planner: Planner, experiment: str) -> Iterator[str]:
    results = ExperimentResults(benchmark=planner.benchmark, experiment_name=experiment, locations=planner.locations)
    if results.spec.model in planner.untrained:
        return
    try:
        unfinished = frozenset(planner.unfinished_keys(results))
    except PipelineError as error:
        planner.tell(f"{experiment}: {error}")
        return
    yield from (key.key for key in results.keys if key not in unfinished)


def _is_finished(planner: Planner, asset: str, key: str, keys: Mapping[str, frozenset[str]]) -> bool:
    """Return whether *asset* is finished at *key*; *keys* are the finished keys of each experiment."""
    kind, of, beside = AssetName.parse(asset)
    if kind == "evaluation":
        return (beside.key if beside else key or WHOLE.key) in keys.get(of, ())
    if kind == "source_model":
        return planner.is_trained(of or next(iter(planner.benchmark.trained_models), ""))
    cell = beside or next((cell for cell in planner.benchmark.cells if cell.key == key), None)
    return cell is not None and kind in SHARD_SET_KINDS and planner.has_shards(cell)
