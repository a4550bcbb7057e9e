"""Finds files that nothing refers to any more, with their sizes, and removes them on request.

Only files with names that this project gives are considered: numbered records, stored predictions, states, decoded
cells, trained weights and checkpoints, and temporary files of killed processes.
"""

import os
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.load_files import LoadedBenchmarks
from tta_pipeline.benchmarks.model_specs import TrainedModel
from tta_pipeline.domain.locations import RESULT_KINDS, Locations
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.loading.decoded_cache import DecodedCache
from tta_pipeline.results.records import read_record, record_file_name, record_folders, record_numbers
from tta_pipeline.shards.manifest import MANIFEST_FILE
from tta_pipeline.util.files import (
    find_noted_folders,
    hash_file,
    is_abandoned,
    is_unpublished,
    node_local_folder,
    remove_if_abandoned,
)

Kind = Literal["superseded", "gone", "predictions", "states", "decoded", "unfinished"]
_SETTLED_AFTER_S = 3600.0
"""Age after which no run can still be about to refer to a file: runs write predictions and states before the record."""
_PREDICTIONS = re.compile(r"[0-9a-f]{64}\.parquet")
_STATE = re.compile(r"[0-9a-f]{64}\.state")
_WITHIN = re.compile(r"([0-9a-f]{64})-[0-9]{6,}\.(?:state|part)")
_OF_TRAINING = re.compile(r"[0-9a-f]{64}-[0-9]+\.checkpoint|(?:best|last)\.safetensors|CACHEDIR\.TAG|stop")


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

    Unpublished folders and files of killed processes are searched for under the data root, on node-local disk, at the
    places that processes of this machine noted when they began one, and directly in the folders *beside*.

    Raises:
        RecordError: a newest record cannot be read, so the files that it refers to are unknown.
    """
    weights = _named_weights(loaded)
    for benchmark in loaded.benchmarks.values():
        yield from _find_in_benchmark(benchmark, locations, is_whole=not loaded.faults_of(benchmark.name))
        if not loaded.faults:  # a benchmark or experiment with a fault may refer to any file
            yield from _find_in_trained_models(benchmark, locations, weights)
    roots = locations.roots if decoded else ()
    manifests = {hash_file(path) for root in roots for path in _manifests(root)}
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
            _remove_empty_folders(each.path.parent, below=locations.root / each.benchmark.partition("/")[0])


def _find_in_benchmark(benchmark: Benchmark, locations: Locations, *, is_whole: bool) -> Iterator[Unreferenced]:
    results = locations.results(benchmark.name)
    named = _record_names(benchmark, locations)
    samples, fingerprints = set[str](), set[str]()
    for kind in RESULT_KINDS:
        for text, _ in record_folders(str(results / kind)):
            folder = Path(text)
            records = [folder / record_file_name(number) for number in record_numbers(folder)]
            # The results of an experiment that has a fault are kept.
            if is_whole and kind in named and str(folder.relative_to(results / kind)) not in named[kind]:
                yield from (_describe("gone", benchmark.name, path) for path in records)
                continue
            yield from (_describe("superseded", benchmark.name, path) for path in records[:-1])
            evaluation = read_record(records[-1]).evaluation if records else None
            if evaluation:
                samples.add(evaluation.samples_sha256 or "")
                fingerprints.add(evaluation.fingerprint)
    for path in _find_old_files(locations.predictions(benchmark.name), _PREDICTIONS):
        if path.stem not in samples:
            yield _describe("predictions", benchmark.name, path)
    for path in _find_old_files(locations.states(benchmark.name), _STATE):
        if path.stem not in fingerprints:
            yield _describe("states", benchmark.name, path)
    yield from _find_segment_states(benchmark, locations, fingerprints, is_whole=is_whole)


def _find_segment_states(
    benchmark: Benchmark, locations: Locations, recorded: Collection[str], *, is_whole: bool
) -> Iterator[Unreferenced]:
    """Yield the states and parts inside segments from which no stream will resume.

    A stream resumes in its newest segment, unless that is recorded, or the benchmark file no longer has the stream.
    """
    streams = _state_folders(benchmark, locations)
    paths = sorted(_find_old_files(locations.states(benchmark.name), _WITHIN), key=lambda path: path.stat().st_mtime)
    last = {path.parent: path.name[:64] for path in paths}
    for path in paths:
        is_of_stream = path.parent in streams or not is_whole
        if not is_of_stream or path.name[:64] in recorded or path.name[:64] != last[path.parent]:
            yield _describe("states", benchmark.name, path)


def _state_folders(benchmark: Benchmark, locations: Locations) -> frozenset[Path]:
    """Return the state folders of all streams of *benchmark*."""
    every = [
        ExperimentResults(benchmark=benchmark, experiment_name=name, locations=locations)
        for name in benchmark.experiments
    ]
    return frozenset(each.states_folder(plan) for each in every for key in each.keys for plan in each.plans(key))


def _unfinished(locations: Locations, beside: Sequence[Path]) -> Iterator[Unreferenced]:
    """Yield the unpublished files of killed processes; files that a living process holds are left alone."""
    below = (Path(folder, name) for folder, names in _walk_without_links(locations.root) for name in names)
    here = (path for folder in (node_local_folder(), *beside) for path in folder.iterdir())
    found = dict.fromkeys(
        path.absolute() for path in (*below, *here, *find_noted_folders()) if is_unpublished(path.name)
    )
    yield from (_describe("unfinished", "", path) for path in found if is_abandoned(path))


def _walk_without_links(root: Path) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield each folder below *root* with the names in it; links and unpublished folders are not entered."""
    for folder, folders, files in os.walk(root):
        yield folder, (*folders, *files)
        folders[:] = [name for name in folders if not is_unpublished(name)]


def _manifests(root: Path) -> Iterator[Path]:
    """Yield the manifests below *root*, also behind links to folders, such as a benchmark on another disk."""
    seen = set[str]()
    for folder, names, files in os.walk(root, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:
            names.clear()
        elif MANIFEST_FILE in files:
            yield Path(folder, MANIFEST_FILE)
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
    models = _trained_model_names(benchmark)
    weights = locations.source_model(benchmark.name, "any").parent
    for path in sorted(weights.glob("*.safetensors")):
        facts = path.with_suffix(".json")  # weights without this file were not trained by this project
        if path.stem not in models and facts.exists() and path.resolve() not in named:
            yield from (_describe("gone", benchmark.name, each) for each in (path, facts))
    for folder in sorted(locations.training(benchmark.name, "any").parent.glob("*/")):
        if folder.name not in models:
            ours = _find_old_files(folder, _OF_TRAINING)
            yield from (_describe("gone", benchmark.name, path) for path in ours if path.resolve() not in named)


def _record_names(benchmark: Benchmark, locations: Locations) -> Mapping[str, frozenset[str]]:
    """Return the record names of all evaluations and trainings of *benchmark*, by kind of record."""
    found = []
    for experiment in benchmark.experiments:
        results = ExperimentResults(benchmark=benchmark, experiment_name=experiment, locations=locations)
        found += [results.record_name(place) for key in results.keys for place in results.places(key)]
    return {"evaluations": frozenset(found), "trainings": _trained_model_names(benchmark)}


def _trained_model_names(benchmark: Benchmark) -> frozenset[str]:
    """Return the names of the models that *benchmark* trains."""
    return frozenset(name for name, model in benchmark.models.items() if isinstance(model, TrainedModel))


def _find_old_files(folder: Path, name: re.Pattern[str]) -> Iterator[Path]:
    """Yield the files in *folder* whose names match *name*, and that are too old to be recorded by an active run."""
    for path in sorted(folder.rglob("*")):
        if name.fullmatch(path.name) and time.time() - path.stat().st_mtime > _SETTLED_AFTER_S:
            yield path


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
