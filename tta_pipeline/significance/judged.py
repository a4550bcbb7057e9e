"""Which samples of a cell an experiment got wrong, from its kept predictions."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tta_pipeline.errors import RecordError
from tta_pipeline.evaluation.experiment import ExperimentResults, Place
from tta_pipeline.evaluation.samples import SamplePredictions
from tta_pipeline.records.evaluation import Evaluation
from tta_pipeline.shards.manifest import ShardSet


@dataclass(frozen=True, kw_only=True)
class JudgedCell:
    """The samples of a cell in one stream, sorted by key."""

    row: Evaluation
    keys: npt.NDArray[np.str_]
    """Key of each sample, (N,)."""
    is_wrong: npt.NDArray[np.bool_]
    """Whether each was predicted as another class than its label, (N,)."""


def recorded_places(results: ExperimentResults) -> Mapping[tuple[str, int, int, str], Place]:
    """Return each cell of each stream that is recorded, by the stream's key, seed, position and the cell's key."""
    recorded = results.recorded_keys()
    places = (place for key in results.keys if key in recorded for place in results.places(key))
    return {(place.plan.key.key, place.plan.seed, place.segment.position, place.cell.key): place for place in places}


def judged(results: ExperimentResults, place: Place) -> JudgedCell:
    """Return which samples of *place* were wrong; they are recounted and compared with the record.

    Raises:
        RecordError: the record or its predictions are missing, damaged, were not kept, are of other shards than lie
            there now, or disagree.
        ManifestError: the shards cannot be read.
    """
    row = results.row(place)
    called = f"{results.experiment_name} at {place.cell.key}"
    if row.samples_sha256 is None:
        raise RecordError(
            f"{called} kept no predictions; expected those of each sample: evaluate it again with keep_predictions"
        )
    kept = SamplePredictions.read(
        results.samples_path(results.record_name(place), row.samples_sha256), sha256=row.samples_sha256
    )
    shard_set = ShardSet.open(results.folder(place.cell), results.belonging(place.cell))
    if shard_set.manifest.sha256 != row.manifest_sha256:
        raise RecordError(
            f"{called} was evaluated on shards with manifest {row.manifest_sha256}, and {shard_set.folder} has "
            f"{shard_set.manifest.sha256}: evaluate it again"
        )
    is_wrong = shard_set.index.labels[kept.positions] != kept.predictions
    if int(is_wrong.sum()) != row.num_samples - row.num_correct or kept.sha256 != row.predictions_sha256:
        raise RecordError(
            f"{called} has {int(is_wrong.sum())} wrong predictions among those kept; expected "
            f"{row.num_samples - row.num_correct}, and their hash, as its record says: evaluate it again with "
            "`remeasure`"
        )
    keys = np.array(shard_set.index.keys)[kept.positions]
    order = np.argsort(keys, kind="stable")
    return JudgedCell(row=row, keys=keys[order], is_wrong=is_wrong[order])
