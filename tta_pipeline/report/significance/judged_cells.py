"""Samples of a cell that an experiment got wrong, from its stored predictions."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt

from tta_pipeline.benchmarks.places import Place
from tta_pipeline.domain.cells import Cell
from tta_pipeline.errors import RecordError
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.evaluation.sample_predictions import SamplePredictions
from tta_pipeline.results.evaluation_record import Evaluation
from tta_pipeline.shards.expected_shard_set import expected_for_cell
from tta_pipeline.shards.photographs import Numbered, Photographs
from tta_pipeline.shards.sample_index import keys_sha256
from tta_pipeline.shards.shard_set import ShardSet


@dataclass(frozen=True, kw_only=True)
class CellSamples:
    """The samples of a cell's shards, opened and sorted once for several experiments."""

    shard_set: ShardSet
    photographs: Numbered
    """The photograph of each sample of the index, (N,)."""
    rank: npt.NDArray[np.int64]
    """Rank of each sample of the index in alphabetical order of keys, (N,)."""

    @classmethod
    def open(
        cls, results: ExperimentResults, cell: Cell, photographs: Photographs, *, like: Self | None = None
    ) -> Self:
        """Read manifest and index of the shards of *cell*.

        Args:
            results: An experiment of the benchmark.
            cell: The cell.
            photographs: Numbers of the photographs of all cells that are compared.
            like: Samples of another cell: if they have the same keys, as severities do, the sorting is theirs.

        Raises:
            ManifestError: manifest or index cannot be read, or belong to another shard set.
        """
        shard_set = ShardSet.open(
            results.folder(cell), expected_for_cell(results.locations, results.benchmark.name, cell)
        )
        if like and like.shard_set.index.table["key"].equals(shard_set.index.table["key"]):
            return cls(shard_set=shard_set, photographs=like.photographs, rank=like.rank)
        rank = np.empty(len(shard_set.index), np.int64)
        rank[np.argsort(np.array(shard_set.index.keys), kind="stable")] = np.arange(len(rank))
        return cls(shard_set=shard_set, photographs=photographs.number(shard_set.index.keys, cell), rank=rank)


@dataclass(frozen=True, kw_only=True)
class JudgedCell:
    """Predictions for the samples of a cell in one stream, sorted by key."""

    row: Evaluation
    keys_sha256: str
    """sha256 of the samples' keys in this order."""
    positions: npt.NDArray[np.int64]
    """Position of each sample in the index of the shard set, (N,)."""
    photographs: Numbered
    """The photograph of each sample, (N,)."""
    predictions: npt.NDArray[np.int64]
    """Predicted label of each sample, (N,)."""
    confidences: npt.NDArray[np.float32]
    """Probability of each sample's predicted class, (N,); NaN where the model gave NaN."""
    is_wrong: npt.NDArray[np.bool_]
    """Whether each sample's prediction differs from its label, (N,)."""


def recorded_places(results: ExperimentResults) -> Mapping[tuple[str, int, int, str], Place]:
    """Return the recorded cells of all streams, by the stream's key, seed, position and the cell's key."""
    recorded = results.recorded_keys()
    places = (place for key in results.keys if key in recorded for place in results.places(key))
    return {(place.plan.key.key, place.plan.seed, place.segment.position, place.cell.key): place for place in places}


def judge_cell(results: ExperimentResults, place: Place, samples: CellSamples) -> JudgedCell:
    """Return the wrong samples of *place*, after checking their number against the record.

    Args:
        results: The experiment.
        place: The cell, in one of its streams.
        samples: The samples of the cell.

    Raises:
        RecordError, ManifestError: see `read_predictions`.
    """
    row = results.row(place)
    kept, index = read_predictions(results, place, row, samples.shard_set), samples.shard_set.index
    order = np.argsort(samples.rank[kept.positions], kind="stable")
    positions = kept.positions[order]
    keys = index.keys
    return JudgedCell(
        row=row,
        keys_sha256=keys_sha256([keys[position] for position in positions]),
        positions=positions,
        photographs=replace(samples.photographs, numbers=samples.photographs.numbers[positions]),
        predictions=kept.predictions[order],
        confidences=kept.confidences[order],
        is_wrong=index.labels[positions] != kept.predictions[order],
    )


def read_predictions(
    results: ExperimentResults, place: Place, row: Evaluation, shard_set: ShardSet
) -> SamplePredictions:
    """Return the kept predictions of *row*, the record of *place*, which agree with it and with *shard_set*.

    Raises:
        RecordError: the predictions are missing, damaged, were not kept, disagree with the record, or belong to shards
            that have changed since.
        ManifestError: the index of the shards cannot be read.
    """
    called = f"{results.experiment_name} at {place.cell.key}"
    if row.samples_sha256 is None:
        raise RecordError(
            f"{called} kept no predictions; expected per-sample predictions: evaluate it again with keep_predictions"
        )
    kept = SamplePredictions.read(
        results.samples_path(results.record_name(place), row.samples_sha256), sha256=row.samples_sha256
    )
    if shard_set.manifest.sha256 != row.manifest_sha256:
        raise RecordError(
            f"{called} was evaluated on shards with manifest {row.manifest_sha256}, but {shard_set.folder} has "
            f"{shard_set.manifest.sha256}: evaluate it again"
        )
    if not kept.agree(row, shard_set.index):
        raise RecordError(
            f"{called} has {kept.num_correct(shard_set.index)} correct stored predictions; expected "
            f"{row.num_correct} of {row.num_samples}, with the hash in its record: evaluate it again with `remeasure`"
        )
    return kept
