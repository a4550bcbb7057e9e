"""Samples of a cell that an experiment got wrong, from its stored predictions."""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt

from tta_pipeline.domain.cells import Cell
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import RecordError
from tta_pipeline.evaluation.experiment_results import CountedCell
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
        cls, benchmark: str, locations: Locations, cell: Cell, photographs: Photographs, *, like: Self | None = None
    ) -> Self:
        """Read manifest and index of the shards of *cell*.

        Args:
            benchmark: Name of the benchmark.
            locations: Where its shards lie.
            cell: The cell.
            photographs: Numbers of the photographs of all cells that are compared.
            like: Samples of another cell: if they have the same keys, as severities do, the sorting is theirs.

        Raises:
            ManifestError: manifest or index cannot be read, or belong to another shard set.
        """
        shard_set = ShardSet.open(locations.shards(benchmark, cell), expected_for_cell(locations, benchmark, cell))
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


def judge_cell(counted: CountedCell, samples: CellSamples) -> JudgedCell:
    """Return the wrong samples of *counted*, after checking their number against its result.

    Args:
        counted: The evaluation of the cell in one of its streams.
        samples: The samples of the cell.

    Raises:
        RecordError, ManifestError: see `read_predictions`.
    """
    kept, index = read_predictions(counted, samples.shard_set), samples.shard_set.index
    order = np.argsort(samples.rank[kept.positions], kind="stable")
    positions = kept.positions[order]
    keys = index.keys
    return JudgedCell(
        row=counted.row,
        keys_sha256=keys_sha256([keys[position] for position in positions]),
        positions=positions,
        photographs=replace(samples.photographs, numbers=samples.photographs.numbers[positions]),
        predictions=kept.predictions[order],
        confidences=kept.confidences[order],
        is_wrong=index.labels[positions] != kept.predictions[order],
    )


def read_predictions(counted: CountedCell, shard_set: ShardSet) -> SamplePredictions:
    """Return the kept predictions of *counted*, which agree with its result and with *shard_set*.

    Raises:
        RecordError: the predictions are missing, damaged, were not kept, disagree with the result, or belong to shards
            that have changed since.
        ManifestError: the index of the shards cannot be read.
    """
    row = counted.row
    called = f"{row.labels.experiment} at {counted.cell.key}"
    kept = SamplePredictions.of(counted)
    if shard_set.manifest.sha256 != row.cell.manifest_sha256:
        fix = "compare only experiments on the same images" if counted.is_of_others else "evaluate it again"
        raise RecordError(
            f"{called} was evaluated on shards with manifest {row.cell.manifest_sha256}, but {shard_set.folder} has "
            f"manifest {shard_set.manifest.sha256}; expected the same shards: {fix}"
        )
    if not kept.agree(row, shard_set.index):
        raise RecordError(
            f"{called} has {kept.num_correct(shard_set.index)} correct predictions in its file; expected "
            f"{row.scores.num_correct} of {row.scores.num_samples}, and the hash in its result: reevaluate it with "
            f"`tta-pipeline run {row.cell.benchmark.partition('/')[0]} --force`"
        )
    return kept
