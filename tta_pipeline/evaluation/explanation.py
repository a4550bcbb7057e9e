"""Explain why the streams at a key are finished or not, for the verb `why`."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.file_fingerprint import with_defaults
from tta_pipeline.benchmarks.load_files import experiment_choices
from tta_pipeline.domain.cells import CLEAN, parse_key
from tta_pipeline.domain.locations import Locations
from tta_pipeline.domain.streams import StreamPlan
from tta_pipeline.errors import PartitionKeyError
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.evaluation.inputs import Inputs, SharedCache
from tta_pipeline.evaluation.machine import Machine
from tta_pipeline.evaluation.run_experiment import Board
from tta_pipeline.evaluation.standing import Standing, shorten_value
from tta_pipeline.shards.manifest import MANIFEST_FILE
from tta_pipeline.util.json_values import JsonObject
from tta_pipeline.util.short_lists import abbreviate_list
from tta_pipeline.util.software_versions import software_versions

COLUMNS = ("part", "stored", "present", "means")


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Explanation for one segment of a stream."""

    name: str
    """Name of the segment, or of the stream if shards are missing."""
    reason: str
    """Short reason why the segment is finished or not."""
    standing: Standing | None
    """None: shards are missing, so the current fingerprint is not known."""

    @property
    def is_finished(self) -> bool:
        """Whether the segment needs no evaluation."""
        return self.standing is not None and self.standing.is_finished

    @property
    def facts(self) -> JsonObject:
        """Return the whole explanation as plain JSON."""
        stored = self.standing.row if self.standing else None
        return {
            "cell": self.name,
            "is_finished": self.is_finished,
            "reason": self.reason,
            "stored": with_defaults(json.loads(stored.setup.fingerprint_parts)) if stored else None,
            "present": with_defaults(self.standing.present.parts) if self.standing else None,
            "stored_versions": dict(self.standing.versions) if self.standing else {},
            "present_versions": software_versions(),
        }

    def rows(self, *, shows_all: bool) -> Iterator[tuple[str, str, str, str]]:
        """Yield `COLUMNS` for the parts that differ, or for all parts, and for libraries whose version differs."""
        if self.standing is None:
            return
        differences = self.standing.differences
        for name, value in _flatten(with_defaults(self.standing.present.parts)) if shows_all else ():
            if name not in differences:
                shown = shorten_value(value)
                yield (name, shown, "the same", "") if self.standing.row else (name, "-", shown, "")
        for name, (stored, present) in differences.items():
            yield name, shorten_value(stored), shorten_value(present), "differs"
        present_versions = software_versions()
        for name, stored_version in self.standing.versions.items():
            if name in present_versions and present_versions[name] != stored_version:
                yield f"version of {name}", stored_version, present_versions[name], "outdates nothing"


def explain(
    benchmark: Benchmark, experiment_name: str, key: str, locations: Locations, *, device: str
) -> tuple[Explanation, ...]:
    """Return the explanation for each cell of the streams at *key*.

    Raises:
        PartitionKeyError: the experiment does not exist, or has no such cell or stream.
        EvaluationError, ManifestError: the model is missing, or the shards are damaged.
    """
    if experiment_name not in benchmark.experiments:
        raise PartitionKeyError(
            f"{benchmark.name} has no experiment {experiment_name!r}; expected "
            f"{experiment_choices(benchmark, experiment_name)}"
        )
    results = ExperimentResults(benchmark=benchmark, experiment_name=experiment_name, locations=locations)
    plans = results.plans(parse_key(key, results.keys))
    if missing := _explain_missing_shards(results, plans):
        return (Explanation(name=f"{experiment_name}/{key}", reason=missing, standing=None),)
    board = Board(inputs=Inputs(experiment=results, machine=Machine(device=device), known=SharedCache()))
    return tuple(
        Explanation(name=f"{experiment_name}: {standing.name}", reason=standing.reason, standing=standing)
        for plan in plans
        for standing in board.standings(plan)
    )


def _explain_missing_shards(results: ExperimentResults, plans: Sequence[StreamPlan]) -> str:
    """Return which shards that *plans* need are missing, and what to type; empty if none is missing."""
    key = plans[0].key
    folders = {cell: results.folder(cell) for plan in plans for cell in plan.cells}
    if clean := results.source_folder or results.clean_folder:
        folders[CLEAN] = clean
    missing = [cell.key for cell, folder in folders.items() if not (folder / MANIFEST_FILE).exists()]
    if not missing:
        return ""
    were_added = missing == [CLEAN.key] and results.finished_keys()
    what = f"{'clean images were added, and have ' if were_added else ''}no shards yet: {abbreviate_list(missing)}"
    name = results.benchmark.name
    return f"{what}; type tta-pipeline run {name} --cell '{key.key}' --experiment {results.experiment_name}"


def _flatten(parts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in sorted(parts.items()):
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
