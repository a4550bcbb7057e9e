"""Results of a candidate and of a baseline in one form: counts of each cell, and its wrong samples where they are kept.

A baseline is an experiment of the benchmark, or a folder that `results publish` wrote.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tta_pipeline.benchmarks.places import Place
from tta_pipeline.errors import RecordError
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.evaluation.sample_predictions import SamplePredictions
from tta_pipeline.extras.reproduction.result import PREDICTIONS, RESULT_FILE, CellOutcome, ExperimentResult
from tta_pipeline.report.significance.judged_cells import CellSamples, judge_cell, recorded_places
from tta_pipeline.report.significance.pairwise import WrongSamples
from tta_pipeline.results.evaluation_record import Evaluation
from tta_pipeline.shards.sample_index import keys_sha256
from tta_pipeline.util.partitions import CLEAN

Unit = tuple[str, int, int, str]
"""A cell in a stream: the stream's key, its seed, the position of the segment, and the cell's key."""


def name_unit(unit: Unit) -> str:
    """Return *unit* for people: the cell, with stream and seed where they tell more."""
    stream, seed, position, cell = unit
    of_stream = [] if stream == cell else [f"of stream {stream}, segment {position}"]
    return " ".join([cell, *of_stream, *([f"with seed {seed}"] if seed else [])])


@dataclass(frozen=True, kw_only=True)
class JudgedResult:
    """Result of a cell in one stream."""

    in_mean: bool
    num_samples: int
    num_correct: int
    manifest_sha256: str
    subset_sha256: str | None
    decided_by: str
    """All that determined the predictions, by part, as JSON."""
    predictions_sha256: str
    wrong: WrongSamples | None
    """The wrong samples; None if the predictions of each sample are not there."""

    @property
    def error(self) -> float:
        """Top-1 error in [0, 1]."""
        return 1 - self.num_correct / self.num_samples


class OpenSamples:
    """The samples of cells, each opened and sorted once for candidates and baselines that read the same shards."""

    def __init__(self) -> None:
        self._known: dict[Path, CellSamples] = {}

    def of(self, results: ExperimentResults, place: Place) -> CellSamples:
        """Return the samples of the cell at *place* that the experiment of *results* reads.

        Raises:
            ManifestError: the shards cannot be read.
        """
        folder = results.folder(place.cell)
        if folder not in self._known:
            like = next(iter(self._known.values()), None)
            self._known[folder] = CellSamples.open(results, place.cell, like=like)
        return self._known[folder]


def judge_results(results: ExperimentResults, samples: OpenSamples) -> Mapping[Unit, JudgedResult]:
    """Return the recorded results of an experiment.

    Raises:
        RecordError, ManifestError: see `judge_cell`.
    """
    return {unit: _judge(results, place, samples) for unit, place in recorded_places(results).items()}


def _judge(results: ExperimentResults, place: Place, samples: OpenSamples) -> JudgedResult:
    row = results.row(place)
    wrong = None
    if row.samples_sha256 is not None:
        found = judge_cell(results, place, samples.of(results, place))
        wrong = _wrong_samples(row, found.keys_sha256, found.is_wrong)
    return JudgedResult(
        in_mean=_counts(row),
        num_samples=row.num_samples,
        num_correct=row.num_correct,
        manifest_sha256=row.manifest_sha256,
        subset_sha256=row.subset_sha256,
        decided_by=row.fingerprint_parts,
        predictions_sha256=row.predictions_sha256,
        wrong=wrong,
    )


def judge_published(
    result: ExperimentResult, folder: Path, candidate: ExperimentResults, samples: OpenSamples
) -> Mapping[Unit, JudgedResult]:
    """Return the results in the published *folder*, whose content is *result*.

    Their predictions are compared with the labels of the shards that *candidate* reads; those of cells that it reads
    from other shards, or does not have, are left out.

    Raises:
        RecordError: predictions are missing or damaged, or contradict the result.
        ManifestError: the shards cannot be read.
    """
    places = recorded_places(candidate)
    found = {}
    for cell in result.cells:
        unit = (cell.partition, cell.seed, cell.position, f"{cell.corruption}|{cell.severity}")
        opened = samples.of(candidate, places[unit]) if unit in places else None
        found[unit] = JudgedResult(
            in_mean=_counts(cell),
            num_samples=cell.num_samples,
            num_correct=cell.num_correct,
            manifest_sha256=cell.manifest_sha256,
            subset_sha256=result.subset_sha256,
            decided_by=json.dumps(cell.fingerprint_parts, sort_keys=True, separators=(",", ":")),
            predictions_sha256=cell.predictions_sha256,
            wrong=None if opened is None else _wrong_published(cell, folder, opened),
        )
    return found


def _wrong_published(cell: CellOutcome, folder: Path, samples: CellSamples) -> WrongSamples | None:
    if cell.samples_sha256 is None or samples.shard_set.manifest.sha256 != cell.manifest_sha256:
        return None
    path, index = folder / PREDICTIONS / f"{cell.samples_sha256}.parquet", samples.shard_set.index
    kept = SamplePredictions.read(path, sha256=cell.samples_sha256)
    if kept.sha256 != cell.predictions_sha256 or kept.num_correct(index) != cell.num_correct:
        raise RecordError(
            f"{path} has {kept.num_correct(index)} correct predictions; expected {cell.num_correct}, with the hash in "
            f"{folder / RESULT_FILE}: publish the results again"
        )
    order = np.argsort(samples.rank[kept.positions], kind="stable")
    positions, keys = kept.positions[order], index.keys
    is_wrong = index.labels[positions] != kept.predictions[order]
    return _wrong_samples(cell, keys_sha256([keys[position] for position in positions]), is_wrong)


def _wrong_samples(row: Evaluation | CellOutcome, keys: str, is_wrong: npt.NDArray[np.bool_]) -> WrongSamples:
    samples = f"{row.manifest_sha256} {keys}"
    return WrongSamples(samples=samples, images=keys, in_mean=_counts(row), is_wrong=is_wrong)


def _counts(row: Evaluation | CellOutcome) -> bool:
    """Return whether *row* counts in the mean error."""
    return row.in_mean is not False and row.corruption != CLEAN.corruption
