"""Finds files that nothing refers to any more, with their sizes, and removes them on request.

Only files with names that this project gives are considered: results, stored predictions, states, decoded cells,
trained weights and checkpoints, and temporary files of killed processes.
"""

import fcntl
import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.load_files import LoadedBenchmarks
from tta_pipeline.domain.locations import Locations
from tta_pipeline.domain.streams import StreamPlan
from tta_pipeline.errors import ManifestError, RecordError
from tta_pipeline.evaluation.experiment_results import ExperimentResults, link_of
from tta_pipeline.loading.decoded_cache import DecodedCache
from tta_pipeline.results.chains import ends_of_chains
from tta_pipeline.results.names import HELD_OUT, PLANS, RESULT_NAME, void_name
from tta_pipeline.results.plans import Plan
from tta_pipeline.results.result_files import Result, predictions_path, read_result
from tta_pipeline.results.training_record import TrainingRun
from tta_pipeline.shards.manifest import MANIFEST_FILE, read_manifest
from tta_pipeline.shards.set_facts import Manifest
from tta_pipeline.util.files import (
    find_abandoned,
    is_abandoned,
    is_unpublished,
    node_local_folder,
    remove_if_abandoned,
)

Kind = Literal["superseded", "gone", "predictions", "states", "decoded", "unfinished"]
_SETTLED_AFTER_S = 3600.0
"""Age after which no active run can still refer to a file: runs write predictions and states before the result."""
_PREDICTIONS = re.compile(r"[0-9a-f]{16}-[0-9a-f]{8}\.parquet")
_STATE = re.compile(r"[0-9a-f]{64}(?:-[0-9a-f]{8}-[0-9]{6,})?\.(?:state|part)|[0-9a-f]{16}\.lock")
_FIRST = "0" * 8
"""Part of the name of a state inside the first segment, as named by `StreamStates`."""
_OF_TRAINING = re.compile(r"(?:newest|before)\.checkpoint|(?:best|last)\.safetensors|CACHEDIR\.TAG")


@dataclass(frozen=True, kw_only=True, slots=True)
class Unreferenced:
    """A file that nothing refers to, or a folder of a killed process."""

    kind: Kind
    benchmark: str
    path: Path
    size_bytes: int


def find_unreferenced(
    loaded: LoadedBenchmarks, locations: Locations, *, decoded: Sequence[Path] = (), beside: Sequence[Path] = ()
) -> Iterator[Unreferenced]:
    """Yield every file under the data root, and in the folders *decoded*, that nothing refers to.

    Unpublished folders and files of killed processes are searched for under the data root, on node-local disk, and
    directly in the folders *beside*.
    """
    files = {name.partition("/")[0] for name in loaded.benchmarks}
    for file in sorted(files):
        yield from _FileOfBenchmarks.of(file, loaded, locations).find_unreferenced()
    if not loaded.faults:  # a benchmark or experiment with a fault may refer to any file
        weights = _named_weights(loaded)
        for benchmark in loaded.benchmarks.values():
            yield from _find_in_trained_models(benchmark, locations, weights)
    roots = locations.roots if decoded else ()
    manifests = {manifest.sha256 for root in roots for manifest in _manifests(root)}
    for folder in decoded:
        for path in DecodedCache(folder=folder, limit_bytes=0).find_unreferenced(manifests):
            yield _describe("decoded", "", path)
    yield from _unfinished(locations, beside)


def remove_unreferenced(found: Sequence[Unreferenced], locations: Locations) -> None:
    """Remove the files, and the folders of results, predictions and states that become empty."""
    for each in found:
        if each.kind == "unfinished":
            remove_if_abandoned(each.path)
        else:
            each.path.unlink(missing_ok=True)
    for each in found:
        if each.benchmark:
            _remove_empty_folders(each.path.parent, below=locations.root)


@dataclass(frozen=True, kw_only=True)
class _FileOfBenchmarks:
    """A benchmark file, with the results and states of all benchmarks that it has or had."""

    name: str
    benchmarks: Mapping[str, Benchmark]
    """By name: the file's only benchmark, or one benchmark for each of its datasets."""
    locations: Locations
    is_whole: bool
    """Whether no part of the file is left out because of a fault; such a part may refer to any result or state."""
    plans: "_Plans"

    @classmethod
    def of(cls, name: str, loaded: LoadedBenchmarks, locations: Locations) -> "_FileOfBenchmarks":
        return cls(
            name=name,
            benchmarks={each: found for each, found in loaded.benchmarks.items() if each.partition("/")[0] == name},
            locations=locations,
            is_whole=all(fault.path.stem != name for fault in loaded.faults),
            plans=_Plans.read(locations.results(name)),
        )

    def find_unreferenced(self) -> Iterator[Unreferenced]:
        """Yield its unreferenced results, plans, predictions and states."""
        kept, left = set[Path](), dict[Path, Kind]()
        for path in sorted(self.locations.results(self.name).rglob("*.json")):
            if not RESULT_NAME.fullmatch(path.name):
                continue
            result = read_result(path).result
            kind = self._kind_of(result)
            predictions = {found for row in result.evaluations if (found := predictions_path(path.parent, row))}
            if kind is None:
                kept |= predictions
            else:
                left |= dict.fromkeys((path, path.with_name(void_name(path.name)), *predictions), kind)
        left |= dict.fromkeys(self._plans_of_gone_benchmarks(), "gone")
        for path, kind in left.items():
            if path not in kept and path.exists():
                yield _describe(kind, self._owner(path), path)
        for path in _find_old_files(self.locations.results(self.name), _PREDICTIONS):
            if path not in kept and path not in left:
                yield _describe("predictions", self._owner(path), path)
        if self.is_whole:
            yield from self._find_states()

    def _kind_of(self, result: Result) -> Kind | None:
        """Return why nothing refers to *result*; None if something does, or may."""
        if not self.is_whole:
            return None
        benchmark = self.benchmarks.get(result.benchmark)
        if benchmark is None:
            return "gone"  # of a dataset that the file no longer names
        if result.training is not None:
            return self._kind_of_training(benchmark, result.training)
        if result.kind != "evaluation" or result.key.partition("/")[0] == HELD_OUT:
            return None
        row = result.evaluations[0]
        if not self.plans.tell_of(result) or not self.plans.has(benchmark, row.labels.experiment):
            return None
        return "superseded" if row.labels.model in benchmark.models else "gone"

    def _kind_of_training(self, benchmark: Benchmark, training: TrainingRun) -> Kind | None:
        if training.model not in benchmark.trained_models:
            return "gone"
        present = _stated_weights(self.locations.source_model(benchmark.name, training.model))
        return None if present in (None, training.weights_sha256) else "superseded"

    def _plans_of_gone_benchmarks(self) -> Iterator[Path]:
        """Yield the plans of datasets that the file no longer names; a run removes other experiments' plans."""
        if self.is_whole:
            yield from (path for plan, path in self.plans.found if plan.benchmark not in self.benchmarks)

    def _owner(self, path: Path) -> str:
        """Return the benchmark whose results or states include *path*."""
        folders = {name: (self.locations.results(name), self.locations.states(name)) for name in self.benchmarks}
        return next((name for name, some in folders.items() if any(map(path.is_relative_to, some))), self.name)

    def _find_states(self) -> Iterator[Unreferenced]:
        """Yield the states from which no stream would resume; trials' states stay, since no plan lists them."""
        states = self.locations.states(self.name)
        in_use = {
            path
            for benchmark in self.benchmarks.values()
            for name in benchmark.experiments
            for path in _states_in_use(benchmark, name, self.locations)
        }
        for path in _find_old_files(states, _STATE):
            is_lock = path.suffix == ".lock"
            stem = path.parent / re.sub(r"-[0-9]+$", "", path.stem)
            is_needed = not is_lock and (stem in in_use or path.parents[1] in in_use)
            is_of_trial = HELD_OUT in path.relative_to(states).parts[:2]
            lock = path if is_lock else path.parent.with_name(f"{path.parent.name}.lock")
            if not is_needed and not is_of_trial and not _is_held(lock):
                yield _describe("states", self._owner(path), path)


@dataclass(frozen=True, kw_only=True)
class _Plans:
    """The plans among the results of a benchmark file."""

    found: Sequence[tuple[Plan, Path]]

    @classmethod
    def read(cls, results: Path) -> "_Plans":
        """Return the plans under *results*.

        Raises:
            RecordError: a plan cannot be read.
        """
        return cls(found=[(_read_plan(path), path) for path in sorted(results.rglob(f"{PLANS}/*.json"))])

    @cached_property
    def _asked(self) -> frozenset[str | None]:
        segments = (each for plan, _ in self.found for stream in plan.streams for each in stream.segments)
        return frozenset(each.fingerprint for each in segments)

    @cached_property
    def _unknown(self) -> frozenset[tuple[str, str]]:
        """Benchmarks and folders of results whose plans lack fingerprints, since shards are missing."""
        return frozenset(
            (plan.benchmark, stream.folder)
            for plan, _ in self.found
            for stream in plan.streams
            if len(stream.fingerprints) < len(stream.segments)
        )

    def tell_of(self, result: Result) -> bool:
        """Return whether it is certain that no plan needs *result*."""
        return result.fingerprint not in self._asked and (result.benchmark, result.key) not in self._unknown

    def has(self, benchmark: Benchmark, experiment: str) -> bool:
        """Return whether *experiment* has a plan or, if the file does not name it, any other of *benchmark*."""
        experiments = {plan.labels.experiment for plan, _ in self.found if plan.benchmark == benchmark.name}
        return experiment in experiments if experiment in benchmark.experiments else bool(experiments)


def _read_plan(path: Path) -> Plan:
    try:
        return Plan.parse(path, path.read_bytes())
    except OSError as error:
        raise RecordError(
            f"{path} cannot be read ({error.strerror}); expected a plan of results: make the file readable"
        ) from error
    except RecordError as error:
        raise RecordError(f"{path} {error}") from error


def _states_in_use(benchmark: Benchmark, experiment: str, locations: Locations) -> Iterator[Path]:
    """Yield the places of states from which a run of *experiment* would resume: folders, or files without their ending.

    All states of a stream may be in use if its fingerprints are unknown because a plan or shards are missing.
    """
    results = ExperimentResults(benchmark=benchmark, experiment_name=experiment, locations=locations)
    for key in results.keys:
        folder = locations.states(benchmark.name) / results.key_folder(key)
        for plan in results.plans(key) if folder.is_dir() else ():
            asked = results.planned_stream(plan)
            if asked is None or len(asked.fingerprints) < len(asked.segments):
                yield folder
            else:
                yield from _states_to_continue_from(results, plan, asked.fingerprints, with_predictions=False)
                yield from _states_to_continue_from(results, plan, asked.fingerprints, with_predictions=True)


def _states_to_continue_from(
    results: ExperimentResults, plan: StreamPlan, fingerprints: Sequence[str], *, with_predictions: bool
) -> Iterator[Path]:
    """Yield the paths, without ending or number, of the states after and inside each segment that a chain reaches."""
    found = results.find(plan.key, fingerprints, with_predictions=with_predictions)
    links = {fingerprint: [link_of(each) for each in several] for fingerprint, several in found.items()}
    reached = ends_of_chains(fingerprints, links)
    folder = results.states_folder(plan, fingerprints[0])
    if len(reached) == len(fingerprints):
        return
    yield folder / f"{fingerprints[0]}-{_FIRST}"
    for fingerprint, ends in zip(fingerprints[1:], reached, strict=False):
        for end in ends:
            yield folder / end.sha256
            yield folder / f"{fingerprint}-{end.sha256[:8]}"


def _is_held(lock: Path) -> bool:
    """Return whether a run evaluates the stream with this lock."""
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:  # held, or another user's
        return True
    return False


def _unfinished(locations: Locations, beside: Sequence[Path]) -> Iterator[Unreferenced]:
    """Yield the unpublished files of killed processes; files locked by a running process are skipped."""
    near = (path for folder in (node_local_folder(), *beside) for path in folder.iterdir() if is_unpublished(path.name))
    found = (path.absolute() for path in (*find_abandoned(locations.root), *filter(is_abandoned, near)))
    yield from (_describe("unfinished", "", path) for path in dict.fromkeys(found))


def _manifests(root: Path) -> Iterator[Manifest]:
    """Yield the intact manifests below *root*, also behind links to folders, such as a benchmark on another disk."""
    seen = set[str]()
    for folder, names, files in os.walk(root, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:
            names.clear()
        elif MANIFEST_FILE in files:
            with suppress(ManifestError):
                yield read_manifest(Path(folder))
        seen.add(real)


def _named_weights(loaded: LoadedBenchmarks) -> frozenset[Path]:
    """Return the files of weights that benchmark files name."""
    models = (model for benchmark in loaded.benchmarks.values() for model in benchmark.models.values())
    paths = (getattr(model, name, None) for model in models for name in ("path", "weights"))
    return frozenset(path.expanduser().resolve() for path in paths if isinstance(path, Path))


def _find_in_trained_models(
    benchmark: Benchmark, locations: Locations, named: frozenset[Path]
) -> Iterator[Unreferenced]:
    """Yield the files of trained models that *benchmark* no longer has: weights, facts, checkpoints; never *named*."""
    models = benchmark.trained_models
    weights = locations.source_model(benchmark.name, "any").parent
    for path in sorted(weights.glob("*.safetensors")):
        facts = path.with_suffix(".json")  # weights without this file were not trained by this project
        if path.stem not in models and facts.exists() and path.resolve() not in named:
            yield from (_describe("gone", benchmark.name, each) for each in (path, facts))
    for folder in sorted(locations.training(benchmark.name, "any").parent.glob("*/")):
        if folder.name not in models:
            ours = _find_old_files(folder, _OF_TRAINING)
            yield from (_describe("gone", benchmark.name, path) for path in ours if path.resolve() not in named)


def _stated_weights(path: Path) -> str | None:
    """Return the sha256 of the trained weights at *path* from the facts next to them; None if the facts lack it."""
    try:
        weights_sha256: str = json.loads(path.with_suffix(".json").read_bytes())["run"]["weights_sha256"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return weights_sha256


def _find_old_files(folder: Path, name: re.Pattern[str]) -> Iterator[Path]:
    """Yield the files in *folder* whose names match *name*, and that are too old to be recorded by an active run."""
    return (path for path in sorted(folder.rglob("*")) if name.fullmatch(path.name) and _is_old(path))


def _is_old(path: Path) -> bool:
    return time.time() - path.stat().st_mtime > _SETTLED_AFTER_S


def _describe(kind: Kind, benchmark_name: str, path: Path) -> Unreferenced:
    files = (each for each in path.rglob("*") if each.is_file()) if path.is_dir() else (path,)
    size_bytes = sum(each.stat().st_size for each in files)
    return Unreferenced(kind=kind, benchmark=benchmark_name, path=path, size_bytes=size_bytes)


def _remove_empty_folders(folder: Path, *, below: Path) -> None:
    while folder != below and folder.is_relative_to(below):
        try:
            folder.rmdir()
        except FileNotFoundError:  # removed for another file
            pass
        except OSError:  # it is not empty
            return
        folder = folder.parent
