"""Plans: the results that each experiment requires now, as the fingerprint of each segment of its streams.

`run` makes it from benchmark file, model, code and manifests, and writes
`results/<benchmark>/plans/<experiment>.json`. A result counts if and only if its fingerprint is in a plan. A plan also
records facts that change no prediction, such as the family of a corruption: they may change without another evaluation.
It is made from local files, and can be made again at any time.
"""

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from pydantic_core import from_json

from tta_pipeline.domain.cells import CLEAN
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import RecordError
from tta_pipeline.results.evaluation_parts import CellLabels, ShiftFacts
from tta_pipeline.results.evaluation_record import Evaluation
from tta_pipeline.results.names import PLANS, problem_of_place
from tta_pipeline.util.files import write_atomically

_FORMAT = 1
NO_FILE = ""
"""Replaces the hash of a benchmark file in a plan made by `tta-pipeline evaluate --record`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedSegment:
    """A segment of a stream."""

    fingerprint: str | None
    """sha256 of everything that determines its predictions now; None if its shards or the model are missing."""
    cells: tuple[str, ...]
    """Keys of its cells, such as `fog|5`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedStream:
    """A stream of an experiment's plan."""

    key: str
    """Partition key: a cell such as `fog|5`, a severity, or all."""
    seed: int
    segments: tuple[PlannedSegment, ...]

    @property
    def folder(self) -> str:
        """Folder of its results below the benchmark's folder, such as `fog-5`."""
        return folder_of_key(self.key)

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """The fingerprints of its segments, up to the first unknown one."""
        known = []
        for segment in self.segments:
            if segment.fingerprint is None:
                break
            known.append(segment.fingerprint)
        return tuple(known)


_NOTHING = ShiftFacts(shift_position=None, shift_family=None, shift_group=None, counts_in_mean=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Labels:
    """Facts about an experiment from files, which change no prediction."""

    experiment: str
    model: str
    """Name of the model in the benchmark file."""
    dataset: str
    """Name of the dataset."""
    hyperparameters_origin: str
    tuning: str | None = None
    """The choice of a tuning as JSON; None if the experiment uses none."""
    shifts: Mapping[str, ShiftFacts]
    """By corruption or split; empty if no file has them."""

    def of_shift(self, shift: str) -> CellLabels:
        """Return the labels of an evaluation on *shift*."""
        return CellLabels(
            experiment=self.experiment,
            model=self.model,
            dataset=self.dataset,
            hyperparameters_origin=self.hyperparameters_origin,
            tuning=self.tuning,
            shift=self.shifts.get(shift, _NOTHING),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The results that an experiment requires."""

    benchmark: str
    """Name of the benchmark: of its file, or `<file>/<dataset>`."""
    file_sha256: str
    """sha256 of the bytes of the benchmark file."""
    labels: Labels
    streams: tuple[PlannedStream, ...]
    own_files: Mapping[str, str] = field(default_factory=dict)
    """sha256 of each file of a user's own method, by its path relative to the data root, so that projects can move."""

    @property
    def num_cells(self) -> int:
        """Number of planned cells, each as often as its streams visit it."""
        return sum(len(segment.cells) for stream in self.streams for segment in stream.segments)

    @property
    def num_averaged_cells(self) -> int:
        """Number of cells of one seed that count in the mean; without a benchmark file, all but clean cells."""
        cells = (cell.partition("|")[0] for stream in self.streams for each in stream.segments for cell in each.cells)
        shifts = self.labels.shifts
        counted = [
            name
            for name in cells
            if name != CLEAN.corruption and shifts.get(name, _NOTHING).counts_in_mean is not False
        ]
        return len(counted) // max(1, len({stream.seed for stream in self.streams}))

    @property
    def num_averaged_shifts(self) -> int:
        """Number of corruptions or splits of the dataset that count in its mean."""
        return sum(
            facts.counts_in_mean is True for name, facts in self.labels.shifts.items() if name != CLEAN.corruption
        )

    def encoded(self) -> bytes:
        """Return the bytes of the file; equal plans have equal bytes."""
        streams = [
            [stream.key, stream.seed, [[each.fingerprint, list(each.cells)] for each in stream.segments]]
            for stream in self.streams
        ]
        content = {
            "format": _FORMAT, "benchmark": self.benchmark, "file_sha256": self.file_sha256,
            "labels": asdict(self.labels), "own_files": dict(self.own_files), "streams": streams,
        }  # fmt: skip
        return (json.dumps(content, separators=(",", ":")) + "\n").encode()

    @classmethod
    def parse(cls, path: Path, data: bytes) -> Self:
        """Return the plan in *data*, the content of the file at *path*.

        Raises:
            RecordError: it is not a plan of this version, or belongs to another experiment; the message omits *path*.
        """
        try:
            content = from_json(data)
            if content.pop("format") != _FORMAT:
                raise RecordError(
                    "was made by another version of tta_pipeline; expected a plan of this version: run `tta-pipeline "
                    "run BENCHMARK --dry-run` to rewrite it"
                )
            labels = content.pop("labels")
            shifts = {name: ShiftFacts(**facts) for name, facts in labels.pop("shifts").items()}
            streams = tuple(_parse_stream(*stream) for stream in content.pop("streams"))
            plan = cls(**content, labels=Labels(**labels, shifts=shifts), streams=streams)
            problem = problem_of_place(path, plan.benchmark, PLANS)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise RecordError(
                "is not a plan of this version of tta_pipeline; expected a plan file: run `tta-pipeline run BENCHMARK "
                "--dry-run` to rewrite it"
            ) from error
        if path.stem != plan.labels.experiment:
            raise RecordError(
                f"is the plan for {plan.labels.experiment}; expected the plan for {path.stem}: run `tta-pipeline run "
                "BENCHMARK --dry-run` to rewrite it"
            )
        if problem:
            raise RecordError(problem)
        return plan


def folder_of_key(key: str) -> str:
    """Return the folder of the results at the partition *key*, below the benchmark's folder."""
    return key.replace("|", "-")


def _parse_stream(key: str, seed: int, segments: list[Any]) -> PlannedStream:
    found = tuple(PlannedSegment(fingerprint=name, cells=tuple(cells)) for name, cells in segments)
    return PlannedStream(key=key, seed=seed, segments=found)


def plan_path(locations: Locations, benchmark: str, experiment: str) -> Path:
    """Return the path of the plan of *experiment*."""
    return locations.results(benchmark) / PLANS / f"{experiment}.json"


def write_plan(locations: Locations, plan: Plan) -> bool:
    """Write *plan* unless it is unchanged; return whether it was written."""
    path, data = plan_path(locations, plan.benchmark, plan.labels.experiment), plan.encoded()
    with suppress(OSError):
        if path.read_bytes() == data:
            return False
    write_atomically(path, data)
    return True


def add_to_plan(locations: Locations, row: Evaluation) -> None:
    """Add *row* to the cells in the plan of an experiment that no benchmark file names."""
    cell, own = row.cell, row.labels
    before = read_plan(locations, cell.benchmark, own.experiment)
    segment = PlannedSegment(fingerprint=row.setup.fingerprint, cells=(cell.key,))
    others = [each for each in before.streams if each.key != cell.stream] if before else []
    labels = Labels(
        experiment=own.experiment,
        model=own.model,
        dataset=own.dataset,
        hyperparameters_origin=own.hyperparameters_origin,
        tuning=own.tuning,
        shifts={**(before.labels.shifts if before else {}), cell.corruption: own.shift},
    )
    streams = (*others, PlannedStream(key=cell.stream, seed=cell.seed, segments=(segment,)))
    write_plan(locations, Plan(benchmark=cell.benchmark, file_sha256=NO_FILE, labels=labels, streams=streams))


def read_plan(locations: Locations, benchmark: str, experiment: str) -> Plan | None:
    """Return the plan of *experiment*; None if it is missing or cannot be read."""
    path = plan_path(locations, benchmark, experiment)
    try:
        return Plan.parse(path, path.read_bytes())
    except (OSError, RecordError):
        return None


def problem_of_plan(path: Path) -> str:
    """Return why the plan at *path* cannot be used; empty if it can."""
    try:
        Plan.parse(path, path.read_bytes())
    except (OSError, RecordError) as error:
        return str(error)
    return ""


def drop_other_plans(
    locations: Locations, benchmark: str, experiments: Collection[str], *, unreadable: Collection[str] = ()
) -> None:
    """Remove the plans of *benchmark* for experiments not in *experiments*, but not their results.

    Also remove older plans of a file that changed from several datasets to one, or from one to several.

    Args:
        locations: Folders of the results.
        benchmark: Name of the benchmark.
        experiments: Names of its experiments.
        unreadable: Names in its file that are faulty now; each may cover several experiments, `<name>_<protocol>`.
    """
    folder, (file, _, dataset) = locations.results(benchmark), benchmark.partition("/")
    kept = (*experiments, *unreadable)
    others = [
        path
        for path in folder.glob(f"{PLANS}/*.json")
        if path.stem not in kept and not path.stem.startswith(tuple(f"{name}_" for name in unreadable))
    ]
    others += locations.results(file).glob(f"{PLANS}/*.json" if dataset else f"*/{PLANS}/*.json")
    for path in others:
        path.unlink(missing_ok=True)
