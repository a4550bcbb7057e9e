"""Runs a published experiment again where the data is, and compares cell by cell."""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from pydantic import ValidationError

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.experiments import Experiment
from tta_pipeline.benchmarks.places import Place
from tta_pipeline.errors import EvaluationError, RecordError
from tta_pipeline.evaluation.experiment import ExperimentResults
from tta_pipeline.evaluation.fingerprint import differing
from tta_pipeline.evaluation.machine import Machine
from tta_pipeline.evaluation.runner import ExperimentRunner
from tta_pipeline.extras.reproduction.gathering import machine_of
from tta_pipeline.extras.reproduction.result import CellOutcome, ExperimentResult
from tta_pipeline.results.evaluation import Evaluation
from tta_pipeline.util.locations import Locations
from tta_pipeline.util.mistakes import mistakes
from tta_pipeline.util.partitions import PartitionKey

WITHIN = 0.005
"""Largest difference of two errors in [0, 1] that counts as the same.

With other hardware or another torch, sums round differently; where probabilities nearly tie, a prediction flips, and a
method that adapts to its predictions carries it on. Seeds of one method differ by 0.001 to 0.003 here.
"""
_PART = {
    "data": "data", "source": "data", "model": "weights", "code": "code", "version": "code", "method": "settings",
    "settings": "settings", "image_size": "settings", "arithmetic": "device",
}  # fmt: skip
"""What a part of a fingerprint is called in an answer."""
_AROUND = (
    "tta_pipeline", "torch", "torchvision", "timm", "open_clip_torch", "numpy", "pillow", "simplejpeg", "gpu_name",
    "cpu_model", "compute_threads", "num_processes",
)  # fmt: skip
"""Libraries, and parts of the machine, that may change a prediction though no fingerprint names them."""
Outcome = Literal["same hash", "same error", "other error"]


@dataclass(frozen=True, kw_only=True)
class CellComparison:
    """A published cell beside its repetition."""

    name: str
    published: CellOutcome
    error: float
    same_hash: bool
    differs: tuple[str, ...]
    """What decided the one and not the other: data, weights, code, settings, device."""

    @property
    def error_change(self) -> float:
        """Error now less the published one."""
        return self.error - self.published.error


@dataclass(frozen=True, kw_only=True)
class Repetition:
    """A published experiment beside its repetition."""

    result: ExperimentResult
    cells: Sequence[CellComparison]
    around: Mapping[str, tuple[str, str]]
    """What is another now than then and decides nothing but how sums are rounded: libraries, processor, threads."""

    @property
    def largest_change(self) -> float:
        """Largest difference of an error, in [0, 1]."""
        return max(abs(cell.error_change) for cell in self.cells)

    def outcome(self, within: float) -> Outcome:
        """Return the answer in two words; errors that differ by up to *within* are the same."""
        if all(cell.same_hash for cell in self.cells):
            return "same hash"
        return "same error" if self.largest_change <= within else "other error"

    @property
    def differs(self) -> tuple[str, ...]:
        """What differs in any cell, each once."""
        return tuple(dict.fromkeys(part for cell in self.cells for part in cell.differs))


def repeat(
    result: ExperimentResult,
    folder: Path,
    benchmark: Benchmark,
    locations: Locations,
    scratch: Path,
    *,
    partitions: Collection[str],
    device: str,
    versions: Mapping[str, str],
    tell: Callable[[str], None],
) -> Repetition:
    """Evaluate *result* again, with its own settings, on the shards and weights that are here.

    On a CPU it is done by as many threads as then, since their number decides how sums are rounded. Nothing of the
    data root is changed: records go to *scratch*, a folder that is empty.

    Args:
        result: What was published.
        folder: Its folder, which has the list of its samples if a file lists them.
        benchmark: The benchmark of that name here.
        locations: Where shards and weights are.
        scratch: Where the new records go.
        partitions: Keys to do; empty: all that were published.
        device: Device, as of `Machine`.
        versions: Versions of libraries now.
        tell: Called with messages about progress.

    Raises:
        EvaluationError: the model is not in the benchmark here, a stream has other cells, or it cannot be evaluated.
        RecordError: the settings are of another version of this project, or a key was not published.
        ManifestError: shards are missing or damaged.
    """
    results = _as_published(result, folder, benchmark, locations, scratch)
    keys = _wanted(result, results, partitions)
    if (threads := result.machine.get("compute_threads", "")).isdigit():
        torch.set_num_threads(int(threads))
    with ExperimentRunner(
        results, machine=Machine(device=device), run_id="reproduce", tell=tell, keeps_predictions=False
    ) as runner:
        for key in keys:
            runner.plan(key)
        for key in keys:
            runner.evaluate(key)
    rows = [results.row(place) for key in keys for place in results.places(key)]
    then, now = {**result.versions, **result.machine}, {**versions, **machine_of(rows)}
    return Repetition(
        result=result,
        cells=tuple(_compared(result, results, keys)),
        around={
            name: (then.get(name) or "none", now.get(name) or "none")
            for name in _AROUND
            if (then.get(name) or "none") != (now.get(name) or "none")
        },
    )


def _as_published(
    result: ExperimentResult, folder: Path, benchmark: Benchmark, locations: Locations, scratch: Path
) -> ExperimentResults:
    """Return the experiment as it was, on the data that is here, with its records in *scratch*."""
    if result.model.name not in benchmark.models:
        raise EvaluationError(
            f"{benchmark.name} has no model {result.model.name} here; expected the one of the published result: take "
            "it from the folder's benchmark.yaml, with the path of the weights on this machine"
        )
    try:
        spec = Experiment.model_validate({**result.settings, "subset": _subset(result, folder), "tuned": False})
    except ValidationError as error:
        raise RecordError(
            f"the settings of {result.experiment} are not those of this version: "
            + "; ".join(mistakes(error, "settings"))
            + f": use version {result.versions.get('tta_pipeline')}"
        ) from error
    return ExperimentResults(
        benchmark=benchmark.model_copy(update={"experiments": {result.experiment: spec}}),
        experiment_name=result.experiment,
        locations=replace(locations, scratch=scratch),
    )


def _subset(result: ExperimentResult, folder: Path) -> object:
    if result.sample_list:
        return {"listed": str(folder.absolute() / result.sample_list)}
    return result.settings.get("subset")


def _wanted(
    result: ExperimentResult, results: ExperimentResults, partitions: Collection[str]
) -> tuple[PartitionKey, ...]:
    published = {cell.partition for cell in result.cells}
    if odd := [key for key in partitions if key not in published]:
        raise RecordError(f"{', '.join(odd)} was not published; expected some of {', '.join(sorted(published))}")
    wanted = set(partitions) or published
    known = {key.key: key for key in results.keys}
    if gone := sorted(wanted - set(known)):
        raise EvaluationError(
            f"{results.benchmark.name} has no {', '.join(gone)} here; expected the cells of the published result"
        )
    keys = tuple(known[name] for name in known if name in wanted)
    _require_same_cells(result, results, keys)
    return keys


def _require_same_cells(result: ExperimentResult, results: ExperimentResults, keys: Sequence[PartitionKey]) -> None:
    """Refuse a stream that has other cells here, since what is not compared would count as the same."""
    for key in keys:
        published = {_where(cell) for cell in result.cells if cell.partition == key.key}
        here = {_where_of(key, place) for place in results.places(key)}
        if differing_cells := sorted(published ^ here):
            _, seed, position, corruption, severity = differing_cells[0]
            raise EvaluationError(
                f"stream {key.key} of {results.benchmark.name} has {len(here)} cells here, the published one "
                f"{len(published)}; only one of them has {corruption}|{severity} at position {position} with seed "
                f"{seed}; expected the same corruptions and severities: take benchmark.yaml of the published folder"
            )


def _where(cell: CellOutcome) -> tuple[str, int, int, str, int]:
    return cell.partition, cell.seed, cell.position, cell.corruption, cell.severity


def _where_of(key: PartitionKey, place: Place) -> tuple[str, int, int, str, int]:
    return key.key, place.plan.seed, place.segment.position, place.cell.corruption, place.cell.severity


def _compared(
    result: ExperimentResult, results: ExperimentResults, keys: Sequence[PartitionKey]
) -> Iterator[CellComparison]:
    then = {_where(cell): cell for cell in result.cells}
    for key in keys:
        for place in results.places(key):
            row = results.row(place)
            published = then[_where_of(key, place)]
            yield CellComparison(
                name=published.name,
                published=published,
                error=row.error,
                same_hash=(row.predictions_sha256, row.order_hash, row.num_correct, row.num_samples)
                == (published.predictions_sha256, published.order_hash, published.num_correct, published.num_samples),
                differs=tuple(_differences(published, row)),
            )


def _differences(published: CellOutcome, row: Evaluation) -> Iterator[str]:
    """Yield the parts that differ, each once."""
    if published.fingerprint_parts is None or row.fingerprint_parts is None:
        return
    found = differing(published.fingerprint_parts, json.loads(row.fingerprint_parts))
    yield from dict.fromkeys(_PART.get(name.partition(".")[0], name) for name in found)
