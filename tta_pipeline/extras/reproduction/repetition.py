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
from tta_pipeline.domain.cells import PartitionKey
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import EvaluationError, RecordError
from tta_pipeline.evaluation.experiment_results import ExperimentResults, Unit
from tta_pipeline.evaluation.fingerprint import diff_parts
from tta_pipeline.evaluation.machine import Machine
from tta_pipeline.evaluation.published import SAMPLE_LISTS, PublishedExperiment, machine_of
from tta_pipeline.evaluation.run_experiment import run_experiment
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
    "device", "cpu_model", "compute_threads",
)  # fmt: skip
"""Libraries and facts of the machine that may change a prediction although they are in no fingerprint."""
Outcome = Literal["same hash", "same error", "other error"]


@dataclass(frozen=True, kw_only=True)
class CellComparison:
    """A published cell and its repetition."""

    name: str
    published_error: float
    error: float
    same_hash: bool
    differs: tuple[str, ...]
    """Parts that differ between the two: data, weights, code, settings, device."""

    @property
    def error_change(self) -> float:
        """Error of the repetition minus the published error."""
        return self.error - self.published_error


@dataclass(frozen=True, kw_only=True)
class Repetition:
    """A published experiment and its repetition."""

    cells: Sequence[CellComparison]
    around: Mapping[str, tuple[str, str]]
    """Published and current values of facts that differ but affect only how sums are rounded: libraries, processor,
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
    published: PublishedExperiment,
    benchmark: Benchmark,
    locations: Locations,
    scratch: Path,
    *,
    keys: Collection[str],
    device: str,
    versions: Mapping[str, str],
    tell: Callable[[str], None],
) -> Repetition:
    """Evaluate *published* again, with its own settings, on the local shards and weights.

    A CPU computes with the published number of threads, since their number decides how sums are rounded. Nothing in the
    data root is changed: results go to the empty folder *scratch*.

    Args:
        published: The published experiment.
        benchmark: The local benchmark of the same name.
        locations: Locations of shards and weights.
        scratch: Empty folder for the new results.
        keys: Partition keys to evaluate; empty: all that were published.
        device: Device, in the notation of `Machine`.
        versions: Current versions of libraries.
        tell: Called with messages about progress.
    """
    results = _local_experiment(published, benchmark, locations, scratch)
    chosen = _select_keys(published, results, keys)
    then = published.versions
    if (threads := then.get("compute_threads", "")).isdigit():
        torch.set_num_threads(int(threads))
    found = run_experiment(
        results, chosen, machine=Machine(device=device), run_id="reproduce", tell=tell, keeps_predictions=False
    )
    rows = [row for key in chosen for row in found[key]]
    now = {**versions, **machine_of(rows)}
    before = {cell.unit: cell.row for cell in published.cells}
    return Repetition(
        cells=tuple(_compare(before[_unit_of(row)], row) for row in rows),
        around={
            name: (then.get(name) or "none", now.get(name) or "none")
            for name in _CONTEXT_FACTS
            if (then.get(name) or "none") != (now.get(name) or "none")
        },
    )


def _local_experiment(
    published: PublishedExperiment, benchmark: Benchmark, locations: Locations, scratch: Path
) -> ExperimentResults:
    """Return the experiment with the published settings, on local data, with its results in *scratch*."""
    model = published.plan.labels.model
    if model not in benchmark.models:
        raise EvaluationError(
            f"{benchmark.name} has no model {model} here; expected the model of the published result: copy it from "
            "the published benchmark.yaml, with the path to the weights on this machine"
        )
    settings = published.settings
    listed = published.sample_list
    subset = {"file": str((published.folder / SAMPLE_LISTS / listed.name).absolute())} if listed else settings["subset"]
    try:
        spec = Experiment.model_validate({**settings, "subset": subset, "tuned": False, "model": model})
    except ValidationError as error:
        raise RecordError(
            f"the settings of {published.name} are not valid in this version: "
            + "; ".join(mistakes(error, "settings"))
            + f": use version {published.versions.get('tta_pipeline')}"
        ) from error
    return ExperimentResults(
        benchmark=benchmark.model_copy(update={"experiments": {published.name: spec}}),
        experiment_name=published.name,
        locations=replace(locations, scratch=scratch),
    )


def _select_keys(
    published: PublishedExperiment, results: ExperimentResults, keys: Collection[str]
) -> tuple[PartitionKey, ...]:
    there = {row.cell.stream for row in published.rows}
    if odd := [key for key in keys if key not in there]:
        raise RecordError(
            f"{', '.join(odd)} was not published; expected any of {', '.join(sorted(there))}: correct the name"
        )
    wanted = set(keys) or there
    known = {key.key: key for key in results.keys}
    if gone := sorted(wanted - set(known)):
        raise EvaluationError(
            f"{results.benchmark.name} has no {', '.join(gone)} here; expected the cells of the published result: "
            "copy corruptions and severities from the published benchmark.yaml"
        )
    chosen = tuple(known[name] for name in known if name in wanted)
    for key in chosen:
        _require_same_cells(published, results, key)
    return chosen


def _require_same_cells(published: PublishedExperiment, results: ExperimentResults, key: PartitionKey) -> None:
    """Refuse a stream with other cells here: cells that are not compared would count as the same."""
    before = {cell.unit for cell in published.cells if cell.unit.stream == key.key}
    here = {
        Unit(key.key, plan.seed, segment.position, cell.key)
        for plan in results.plans(key)
        for segment in plan.segments
        for cell in segment.cells
    }
    if differing := sorted(before ^ here):
        first = differing[0]
        raise EvaluationError(
            f"The stream {key.key} of {results.benchmark.name} has {count_of(len(here), 'cell')} here, but "
            f"{len(before)} in the published result; only one of the two has {first.cell} at position "
            f"{first.position} with seed {first.seed}; expected the same corruptions and severities: use the "
            "published benchmark.yaml"
        )


def _unit_of(row: Evaluation) -> Unit:
    return Unit(row.cell.stream, row.cell.seed, row.cell.position, row.cell.key)


def _compare(published: Evaluation, row: Evaluation) -> CellComparison:
    before, now = published.by_column(), row.by_column()
    same = ("predictions_sha256", "order_hash", "num_correct", "num_samples")
    return CellComparison(
        name=_name_of(row),
        published_error=published.error,
        error=row.error,
        same_hash=all(before[name] == now[name] for name in same),
        differs=tuple(_differences(published, row)),
    )


def _name_of(row: Evaluation) -> str:
    cell = row.cell.key
    where = [] if row.cell.stream == cell else [f"of stream {row.cell.stream}, segment {row.cell.position}"]
    return " ".join([cell, *where, *([f"with seed {row.cell.seed}"] if row.cell.seed else [])])


def _differences(published: Evaluation, row: Evaluation) -> Iterator[str]:
    """Yield the parts that differ, each once."""
    found = diff_parts(json.loads(published.setup.fingerprint_parts), json.loads(row.setup.fingerprint_parts)).keys()
    # The repetition has the chosen values in its settings; how they were chosen has no effect here.
    yield from dict.fromkeys(_PART.get(name.partition(".")[0], name) for name in found if name != CHOSEN_BY)
