"""A published experiment in a folder: its plan, and the results that count by it.

<folder>/benchmark.yaml                                 the benchmark file
<folder>/subset/<name>                                  the list of a subset's samples, if there is one
<folder>/results/<benchmark>/plans/<experiment>.json    the plan of the experiment
<folder>/results/<benchmark>/<key>/<name>.json, .parquet  its results and predictions, byte by byte
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from tta_pipeline.domain.locations import ADDED, RESULTS, Locations
from tta_pipeline.errors import RecordError
from tta_pipeline.evaluation.experiment_results import CountedCell, Unit, chosen_results
from tta_pipeline.evaluation.sample_predictions import SamplePredictions
from tta_pipeline.results.evaluation_record import Evaluation
from tta_pipeline.results.names import PLANS, find_results, plan_files
from tta_pipeline.results.plans import Plan
from tta_pipeline.results.result_files import StoredResult, read_result
from tta_pipeline.util.json_values import JsonObject
from tta_pipeline.util.nearest_names import name_choices

BENCHMARK_FILE = "benchmark.yaml"
SAMPLE_LISTS = "subset"
"""Folder of the lists of subsets' samples."""
_MACHINE = ("device", "cpu_model", "num_cores", "decode_threads", "compute_threads")


@dataclass(frozen=True, kw_only=True)
class PublishedExperiment:
    """An experiment with its plan and the results that count by it."""

    folder: Path
    """Folder of everything that was published, or the data root itself."""
    plan: Plan
    stored: tuple[StoredResult, ...]
    """The results that count, in the order of the streams."""
    source: str | None = None
    """Name here of the source whose results were added; None if nothing was added."""

    @property
    def name(self) -> str:
        """Name of the experiment."""
        return self.plan.labels.experiment

    @property
    def experiment_name(self) -> str:
        """Name of the experiment in this data root: `<source>:<name>` if it was added."""
        return f"{self.source}:{self.name}" if self.source else self.name

    @property
    def rows(self) -> Sequence[Evaluation]:
        """The evaluation of each cell of each stream, with the labels of the plan."""
        return [cell.row for cell in self.cells]

    @cached_property
    def cells(self) -> Sequence[CountedCell]:
        """The evaluations, with the labels of the plan and the files of their results."""
        return [
            CountedCell(
                row=self._labelled(row),
                path=stored.path,
                is_of_others=self.source is not None,
            )
            for stored in self.stored
            for row in stored.result.evaluations
        ]

    def _labelled(self, row: Evaluation) -> Evaluation:
        labels = self.plan.labels.of_shift(row.cell.corruption)
        return replace(row, labels=replace(labels, experiment=self.experiment_name))

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of the streams that have results."""
        return tuple(sorted({row.cell.seed for row in self.rows}))

    @property
    def planned_units(self) -> frozenset[Unit]:
        """The positions in streams of the cells that have a result; cells that were not published are not required."""
        return frozenset(self.all_counted_cells())

    def all_counted_cells(self) -> Mapping[Unit, CountedCell]:
        """Return all evaluations, by the cell's position in a stream."""
        return {cell.unit: cell for cell in self.cells}

    @property
    def num_missing(self) -> int:
        """Number of cells in the plan that have no result."""
        return self.plan.num_cells - len(self.rows)

    def require_predictions(self) -> None:
        """Refuse predictions that do not match the results; each file is read and hashed."""
        for cell in self.cells:
            kept = SamplePredictions.of(cell)
            if (len(kept.positions), kept.sha256) != (
                cell.row.scores.num_samples,
                cell.row.predicted.predictions_sha256,
            ):
                raise RecordError(
                    f"{cell.predictions_path} has different predictions from {cell.path.name}; expected the "
                    "predictions of that result: rerun the cell"
                )

    @cached_property
    def settings(self) -> JsonObject:
        """The experiment with all hyperparameters."""
        found = {row.setup.config for row in self.rows}
        if len(found) != 1:
            raise RecordError(
                f"{self.name} has results with {len(found)} different settings; expected one setting: rerun it, which "
                "evaluates only what is out of date"
            )
        settings: JsonObject = json.loads(found.pop())
        return settings

    @property
    def sample_list(self) -> Path | None:
        """The file that listed the samples of the subset, on the machine that evaluated; None if there is none."""
        subset = self.settings.get("subset")
        listed = subset.get("file") if isinstance(subset, dict) else None
        return Path(listed) if listed else None

    @property
    def versions(self) -> Mapping[str, str]:
        """Versions of libraries, and facts about the machine, at the time of the last result."""
        return {**self.stored[-1].result.versions, **machine_of(self.rows)}


def read_plan(path: Path) -> Plan:
    """Read the plan at *path*."""
    try:
        return Plan.parse(path, path.read_bytes())
    except (OSError, RecordError) as error:
        raise RecordError(f"{path} {error}") from error


def read_experiment(folder: Path, plan_path: Path) -> PublishedExperiment | None:
    """Return the experiment of the plan at *plan_path*, with its results in *folder*; None if it has no results."""
    plan = read_plan(plan_path)
    beside = plan_path.parent.parent
    stored: list[StoredResult] = []
    for stream in plan.streams:
        found = {
            each: list(map(read_result, find_results(beside / stream.folder, each))) for each in stream.fingerprints
        }
        stored += chosen_results(stream.fingerprints, found)
    return PublishedExperiment(folder=folder, plan=plan, stored=tuple(stored)) if stored else None


def added_experiments(locations: Locations, benchmark: str) -> tuple[str, ...]:
    """Return the added experiments of *benchmark*, as `<source>:<experiment>`, in order."""
    plans = locations.root.glob(f"{ADDED}/*/{RESULTS}/{benchmark}/{PLANS}/*.json")
    return tuple(sorted(f"{path.relative_to(locations.root / ADDED).parts[0]}:{path.stem}" for path in plans))


def read_added(locations: Locations, benchmark: str, name: str) -> PublishedExperiment:
    """Return the added experiment `<source>:<experiment>` of *benchmark*."""
    source, _, experiment = name.partition(":")
    folder = locations.root / ADDED / source
    path = folder / RESULTS / benchmark / PLANS / f"{experiment}.json"
    found = read_experiment(folder, path)
    if found is None:
        raise RecordError(
            f"{path} has no results; expected its result files next to it: copy the whole published folder, and add "
            "it again"
        )
    return replace(found, source=source)


def find_experiment(folder: Path, name: str | None) -> PublishedExperiment:
    """Return the published experiment *name* in *folder*; if *name* is None, the only one."""
    plans = {path.stem: path for path in plan_files(folder / RESULTS)}
    if not plans:
        raise RecordError(
            f"{folder} has no {RESULTS}/<benchmark>/{PLANS}; expected a folder that `tta-pipeline results publish` "
            "wrote: check the path"
        )
    if name is None and len(plans) > 1:
        raise RecordError(
            f"{folder} contains {len(plans)} experiments; expected one name: choose one of {', '.join(plans)}"
        )
    chosen = name or next(iter(plans))
    if chosen not in plans:
        choice = name_choices(chosen, plans, listed_in=str(folder / RESULTS))
        raise RecordError(f"{folder} has no experiment {chosen!r}; expected one of {choice}")
    found = read_experiment(folder, plans[chosen])
    if found is None:
        raise RecordError(
            f"{folder} has a plan for {chosen}, but no results; expected its result files: copy the whole published "
            "folder"
        )
    return found


def machine_of(rows: Sequence[Evaluation]) -> dict[str, str]:
    """Return descriptions of the machines that computed *rows*, by fact."""
    return {name: ", ".join(dict.fromkeys(str(getattr(row.machine, name)) for row in rows)) for name in _MACHINE}
