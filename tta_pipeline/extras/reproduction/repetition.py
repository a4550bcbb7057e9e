"""Runs a published experiment again on local data, and compares the results cell by cell."""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from pydantic import ValidationError

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.experiment_specs import Experiment
from tta_pipeline.benchmarks.file_fingerprint import CHOSEN_BY
from tta_pipeline.benchmarks.places import Place
from tta_pipeline.domain.cells import PartitionKey
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import EvaluationError, RecordError
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.evaluation.fingerprint import diff_parts
from tta_pipeline.evaluation.machine import Machine
from tta_pipeline.evaluation.runner import ExperimentRunner
from tta_pipeline.extras.reproduction.collected_result import machine_of
from tta_pipeline.extras.reproduction.result import CellOutcome, ExperimentResult
from tta_pipeline.results.evaluation_record import Evaluation
from tta_pipeline.util.plurals import count_of
from tta_pipeline.util.validation_errors import mistakes

_PART = {
    "data": "data", "source": "data", "model": "weights", "code": "code", "version": "code", "method": "settings",
    "settings": "settings", "image_size": "settings", "arithmetic": "device",
}  # fmt: skip
"""Words for the parts of a fingerprint in an answer."""
_CONTEXT_FACTS = (
    "tta_pipeline", "torch", "torchvision", "timm", "open_clip_torch", "transformers", "numpy", "pillow", "simplejpeg",
    "gpu_name", "cpu_model", "compute_threads",
)  # fmt: skip
"""Libraries and facts of the machine that may change a prediction although they are in no fingerprint."""
Outcome = Literal["same hash", "same error", "other error"]


@dataclass(frozen=True, kw_only=True)
class CellComparison:
    """A published cell beside its repetition."""

    name: str
    published: CellOutcome
    error: float
    same_hash: bool
    differs: tuple[str, ...]
    """Parts that differ between the two: data, weights, code, settings, device."""

    @property
    def error_change(self) -> float:
        """Error of the repetition minus the published error."""
        return self.error - self.published.error


@dataclass(frozen=True, kw_only=True)
class Repetition:
    """A published experiment beside its repetition."""

    result: ExperimentResult
    cells: Sequence[CellComparison]
    around: Mapping[str, tuple[str, str]]
    """Published and present values of facts that differ but affect only how sums are rounded: libraries, processor,
    threads."""

    @property
    def largest_change(self) -> float:
        """Largest absolute difference between a cell's errors, in [0, 1]."""
        return max(abs(cell.error_change) for cell in self.cells)

    def outcome(self, within: float) -> Outcome:
        """Return the answer in two words; errors that differ by up to *within* count as equal."""
        if all(cell.same_hash for cell in self.cells):
            return "same hash"
        return "same error" if self.largest_change <= within else "other error"

    @property
    def differs(self) -> tuple[str, ...]:
        """Parts that differ in any cell, each once."""
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
    """Evaluate *result* again, with its own settings, on the local shards and weights.

    A CPU computes with the published number of threads, since their number decides how sums are rounded. Nothing in the
    data root is changed: records go to the empty folder *scratch*.

    Args:
        result: The published result.
        folder: Folder of the result, with the list of its samples if there is one.
        benchmark: The local benchmark of the same name.
        locations: Locations of shards and weights.
        scratch: Empty folder for the new records.
        partitions: Keys to evaluate; empty: all that were published.
        device: Device, in the notation of `Machine`.
        versions: Present versions of libraries.
        tell: Called with messages about progress.

    Raises:
        EvaluationError: the local benchmark lacks the model, a stream has other cells, or it cannot be evaluated.
        RecordError: the settings are invalid in this version of the project, or a key was not published.
        ManifestError: shards are missing or damaged.
    """
    results = _published_experiment(result, folder, benchmark, locations, scratch)
    keys = _select_keys(result, results, partitions)
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
        cells=tuple(_compare_cells(result, results, keys)),
        around={
            name: (then.get(name) or "none", now.get(name) or "none")
            for name in _CONTEXT_FACTS
            if (then.get(name) or "none") != (now.get(name) or "none")
        },
    )


def _published_experiment(
    result: ExperimentResult, folder: Path, benchmark: Benchmark, locations: Locations, scratch: Path
) -> ExperimentResults:
    """Return the experiment with the published settings, on local data, with its records in *scratch*."""
    if result.model.name not in benchmark.models:
        raise EvaluationError(
            f"{benchmark.name} has no model {result.model.name} here; expected the one of the published result: take "
            "it from the folder's benchmark.yaml, with the path of the weights on this machine"
        )
    try:
        spec = Experiment.model_validate({**result.settings, "subset": _subset(result, folder), "tuned": False})
    except ValidationError as error:
        raise RecordError(
            f"the settings of {result.experiment} are not valid in this version: "
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


def _select_keys(
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
    """Refuse a stream that has other cells here: cells that are not compared would count as the same."""
    for key in keys:
        published = {_key_of_cell(cell) for cell in result.cells if cell.partition == key.key}
        here = {_key_of_place(key, place) for place in results.places(key)}
        if differing_cells := sorted(published ^ here):
            _, seed, position, corruption, severity = differing_cells[0]
            raise EvaluationError(
                f"stream {key.key} of {results.benchmark.name} has {count_of(len(here), 'cell')} here, the published "
                f"one {len(published)}; only one of them has {corruption}|{severity} at position {position} with seed "
                f"{seed}; expected the same corruptions and severities: take benchmark.yaml of the published folder"
            )


def _key_of_cell(cell: CellOutcome) -> tuple[str, int, int, str, int]:
    return cell.partition, cell.seed, cell.position, cell.corruption, cell.severity


def _key_of_place(key: PartitionKey, place: Place) -> tuple[str, int, int, str, int]:
    return key.key, place.plan.seed, place.segment.position, place.cell.corruption, place.cell.severity


def _compare_cells(
    result: ExperimentResult, results: ExperimentResults, keys: Sequence[PartitionKey]
) -> Iterator[CellComparison]:
    then = {_key_of_cell(cell): cell for cell in result.cells}
    for key in keys:
        for place in results.places(key):
            row = results.row(place)
            published = then[_key_of_place(key, place)]
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
    found = diff_parts(published.fingerprint_parts, json.loads(row.fingerprint_parts)).keys()
    # The repetition has the chosen values as its own; what chose them decides nothing here.
    yield from dict.fromkeys(_PART.get(name.partition(".")[0], name) for name in found if name != CHOSEN_BY)
