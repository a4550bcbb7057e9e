"""Results that the present benchmark files ask for: their places, and the settings of each.

A result whose place or settings are no longer in the file stays on disk, but counts in no mean. If the file is missing
or cannot be read, nothing is known, and its results stay as they are.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.file_fingerprint import decided_parts, decided_sha256_of, decided_sha256s
from tta_pipeline.benchmarks.load_files import LoadedBenchmarks, load_all_benchmarks
from tta_pipeline.benchmarks.model_specs import AnyModel
from tta_pipeline.benchmarks.places import Place, record_name
from tta_pipeline.benchmarks.stream_plans import partition_keys, stream_plans
from tta_pipeline.domain.locations import Locations
from tta_pipeline.domain.streams import StreamPlan
from tta_pipeline.results.evaluation_record import Evaluation
from tta_pipeline.results.resolved_experiment import ResolvedExperiment, resolve_experiment


class ExpectedPlace(NamedTuple):
    """One place of results with its settings; None: the file does not state a fact."""

    folder: str
    """Folder of its records, relative to the data root."""
    shift_set: str
    model: str
    decided_sha256: str
    """See `decided_sha256s`."""
    weights_sha256: str | None
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None

    def matches(self, row: Evaluation) -> bool:
        """Return whether *row*, a result of this place, has the settings in the file now (in SQL: `mark_latest`)."""
        decided_sha256 = decided_sha256_of(row.fingerprint_parts)
        stated = ((self.weights_sha256, row.weights_sha256), (self.mean, row.mean), (self.std, row.std))
        return (self.shift_set, self.model, self.decided_sha256) == (row.shift_set, row.model, decided_sha256) and all(
            asked == found for asked, found in stated if asked is not None
        )


class ExperimentGroup(NamedTuple):
    """An experiment, identified by the folders of its records."""

    benchmark: str
    part: str
    """Shift set, if the folder of its results has one; else empty."""
    experiment: str


@dataclass(frozen=True, kw_only=True)
class ExpectedResults:
    """All results that the benchmark files ask for, of benchmarks that have any."""

    places: tuple[ExpectedPlace, ...]
    readable: frozenset[str]
    """Benchmark files that can be read, by name."""
    faulty: tuple[ExperimentGroup, ...]
    """Faulty parts of the files: an experiment; or, with an empty name, all experiments of a shift set or file."""

    def knows(self, group: ExperimentGroup) -> bool:
        """Return whether the files define *group* now; False if its file, or its part of the file, cannot be read."""
        return group.benchmark in self.readable and not any(_covers(fault, group) for fault in self.faulty)

    @cached_property
    def sha256(self) -> str:
        """Hash of all fields: while it stays the same, the same results count."""
        found = hashlib.sha256(repr((sorted(self.readable), sorted(self.faulty))).encode())
        for place in self.places:
            found.update(repr(place).encode())
        return found.hexdigest()


def read_expected_results(locations: Locations) -> ExpectedResults:
    """Read all benchmark files and return the results that they ask for, without data, models or torch."""
    loaded = load_all_benchmarks(locations)
    places: list[ExpectedPlace] = []
    faulty = [ExperimentGroup(fault.path.stem, fault.part or "", fault.experiment or "") for fault in loaded.faults]
    for benchmark in loaded.benchmarks.values():
        if not (locations.results(benchmark.name) / "evaluations").is_dir():
            continue  # no result could count, and the embedded benchmark alone has eight thousand places
        for name in benchmark.experiments:
            try:
                places += _all_places(benchmark, name, locations)
            except Exception:  # noqa: BLE001 - not tuned yet, no subset list, or anything that a user's method raises
                faulty.append(ExperimentGroup(benchmark.file, _part(benchmark), name))
    return ExpectedResults(places=tuple(places), readable=_readable_files(loaded), faulty=tuple(faulty))


def _readable_files(loaded: LoadedBenchmarks) -> frozenset[str]:
    return frozenset(benchmark.file for benchmark in loaded.benchmarks.values())


def expected_places(
    benchmark: Benchmark,
    experiment_name: str,
    resolved: ResolvedExperiment,
    locations: Locations,
    plans: Iterable[StreamPlan],
) -> Iterator[tuple[Place, ExpectedPlace]]:
    """Yield each place of *plans*, streams of *resolved*, and the place's settings.

    Raises:
        OSError: the list of the experiment's subset cannot be read.
    """
    evaluations = locations.results(benchmark.name).relative_to(locations.scratch or locations.root) / "evaluations"
    experiment, criterion = resolved.experiment, resolved.criterion
    model, image_size = _stated_facts(benchmark.models[experiment.model]), benchmark.image_size
    parts_of_seed = {
        seed: decided_parts(experiment, seed=seed, image_size=image_size, criterion=criterion)
        for seed in experiment.all_seeds
    }
    for plan in plans:
        hashes = decided_sha256s(parts_of_seed[plan.seed], (segment.cells for segment in plan.segments))
        for segment, decided_sha256 in zip(plan.segments, hashes, strict=True):
            for place in (Place(plan, segment, cell) for cell in segment.cells):
                yield (
                    place,
                    ExpectedPlace(
                        folder=f"{evaluations}/{record_name(experiment_name, experiment, place)}",
                        shift_set=benchmark.shift_set.name,
                        model=experiment.model,
                        decided_sha256=decided_sha256,
                        weights_sha256=model.weights_sha256,
                        mean=model.mean,
                        std=model.std,
                    ),
                )


def _all_places(benchmark: Benchmark, experiment_name: str, locations: Locations) -> Iterator[ExpectedPlace]:
    resolved = resolve_experiment(benchmark, experiment_name, locations)
    plans = (
        plan
        for key in partition_keys(benchmark, experiment_name)
        for plan in stream_plans(benchmark, experiment_name, key)
    )
    return (asked for _, asked in expected_places(benchmark, experiment_name, resolved, locations, plans))


class _StatedModel(NamedTuple):
    """Facts about a model that its section of the file states."""

    weights_sha256: str | None
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None


def _stated_facts(section: AnyModel) -> _StatedModel:
    return _StatedModel(*(getattr(section, name, None) for name in ("sha256", "mean", "std")))


def _part(benchmark: Benchmark) -> str:
    return benchmark.name.partition("/")[2]


def _covers(fault: ExperimentGroup, group: ExperimentGroup) -> bool:
    """Return whether *fault* concerns *group*.

    One experiment in the file can generate several: `<name>_<protocol>`.
    """
    return (
        fault.benchmark == group.benchmark
        and fault.part in ("", group.part)
        and (fault.experiment in ("", group.experiment) or group.experiment.startswith(f"{fault.experiment}_"))
    )
