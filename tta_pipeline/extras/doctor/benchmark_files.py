"""Checks of benchmark files, and of the shard sets and models in them, by their loaders."""

from collections.abc import Iterator
from dataclasses import replace

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.load_files import ENDING, LoadedBenchmarks, load_all_benchmarks
from tta_pipeline.benchmarks.named_paths import missing_paths
from tta_pipeline.benchmarks.resolved_experiment import find_untuned
from tta_pipeline.domain.locations import EMBEDDED_BENCHMARKS, Locations
from tta_pipeline.errors import ManifestError, PipelineError
from tta_pipeline.evaluation.refusals import find_refusals
from tta_pipeline.extras.doctor.finding import Finding, fault, note, ok
from tta_pipeline.shards.checksums import CHECKSUMS_FILE
from tta_pipeline.shards.expected_shard_set import expected_for_cell
from tta_pipeline.shards.manifest import MANIFEST_FILE
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.shards.uneven_cells import find_uneven_cells
from tta_pipeline.util.files import advice
from tta_pipeline.util.plurals import count_of
from tta_pipeline.util.short_lists import abbreviate_list


def check_benchmark_files(locations: Locations) -> Iterator[Finding]:
    """Load every benchmark file, and open what it names."""
    folder = locations.benchmark_files
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.suffix != ENDING and path.suffix.lower() in (ENDING, ".yml"):
            yield note("benchmarks", f"{path} is not read", f"rename it to end in {ENDING}")
    yield from _check_loaded(load_all_benchmarks(locations), locations)


def check_named_benchmark(locations: Locations, name: str) -> Iterator[Finding]:
    """Load the benchmark *name*, and open what it names; if it has several datasets, open all of them."""
    loaded = load_all_benchmarks(locations)
    found = {each: loaded.benchmarks[each] for each in loaded.benchmarks if name in (each, each.partition("/")[0])}
    faults = tuple(each for each in loaded.faults if name in (each.benchmark, each.path.stem))
    if not found and not faults:
        loaded.benchmark(name)
    yield from _check_loaded(replace(loaded, benchmarks=found, faults=faults), locations)


def _check_loaded(loaded: LoadedBenchmarks, locations: Locations) -> Iterator[Finding]:
    faulty = {each.benchmark for each in loaded.faults}
    for benchmark in loaded.benchmarks.values():
        try:
            yield from _check_benchmark(benchmark, locations, is_whole=benchmark.name not in faulty)
        except PipelineError as error:
            yield fault(benchmark.name, str(error), "until then it cannot be evaluated")
        except OSError as error:
            yield fault(benchmark.name, f"{error.filename} cannot be checked ({error.strerror})", advice(error))
    for each in loaded.faults:
        subject = f"{each.benchmark}/{each.experiment}" if each.experiment else each.benchmark
        which = "this experiment" if each.experiment else "what this file describes"
        yield fault(subject, each.sentence, f"correct the file; until then {which} is left out, but nothing else")


def _check_benchmark(benchmark: Benchmark, locations: Locations, *, is_whole: bool) -> Iterator[Finding]:
    """Yield the faults of *benchmark*, or a finding that there are none.

    Args:
        benchmark: The benchmark, without experiments that have a fault.
        locations: The data root and the shard store.
        is_whole: Whether its file has no faulty experiments, which are reported elsewhere.
    """
    from tta_pipeline.models.own_transforms import find_other_transforms

    name, num_cells = benchmark.name, len(benchmark.cells)
    num_sharded = sum((locations.shards(name, cell) / MANIFEST_FILE).exists() for cell in benchmark.cells)
    findings = [
        *_find_missing(benchmark, is_sharded=num_sharded == num_cells),
        *_find_refused(benchmark, locations),
        *_open_shard_sets(benchmark, locations),
    ]
    yield from findings
    for other in find_other_transforms(benchmark, (spec.model for spec in benchmark.experiments.values())):
        yield note(f"{name}/{other.model}", other.found, other.advice)
    if any(each.mark == "fault" for each in findings):
        return
    origin = " (built-in example)" if (EMBEDDED_BENCHMARKS / f"{name}{ENDING}").is_file() else ""
    state = (
        f"{count_of(num_cells, 'cell')}, {num_sharded} of them sharded, "
        f"{count_of(len(benchmark.experiments), 'experiment')}{origin}"
    )
    places = {cell.key: benchmark.images.own_place(cell, benchmark.dataset) for cell in benchmark.cells}
    absent = [key for key, place in places.items() if place and not place.exists()]
    if absent and num_sharded < num_cells:
        yield note(
            name,
            f"{state}; the source lacks {len(absent)} of {num_cells} cells: {abbreviate_list(absent)}",
            "run the cells that are there, or name only those in corruptions and severities",
        )
    elif not is_whole:
        yield note(name, f"{state}; a fault leaves others out", "see the lines of its experiments")
    else:
        yield ok(name, state)


def _open_shard_sets(benchmark: Benchmark, locations: Locations) -> Iterator[Finding]:
    """Open each cell's shard set if it exists, and yield what is wrong, slow or uneven."""
    slow = []
    for cell in benchmark.cells:
        folder = locations.shards(benchmark.name, cell)
        if not (folder / MANIFEST_FILE).exists():
            continue
        try:
            ShardSet.open(folder, expected_for_cell(locations, benchmark.name, cell))
        except ManifestError as error:
            yield fault(f"{benchmark.name} {cell.key}", str(error), "until then it cannot be evaluated")
        if not (folder / CHECKSUMS_FILE).is_file():
            slow.append(folder)
    if slow:
        yield note(
            benchmark.name,
            f"{count_of(len(slow), 'shard set')} without fast checksums, so that reading compares each sample's "
            f"sha256, which takes longer: {abbreviate_list(slow)}",
            f"tta-pipeline shards verify {locations.root}",
        )
    for sentence in find_uneven_cells(benchmark, locations).values():
        yield note(benchmark.name, sentence, "correct the images and run it again, or compare only the other cells")


def _find_missing(benchmark: Benchmark, *, is_sharded: bool) -> Iterator[Finding]:
    """Yield the missing paths, except for models' paths, which their loaders check."""
    for field, path in missing_paths(benchmark):
        found = f"{field} is {path.absolute()}, which does not exist"
        if field.startswith("images.") and is_sharded:
            yield note(benchmark.name, found, "evaluations still work; to shard again, put it back")
        elif not field.startswith("models."):
            yield fault(benchmark.name, found, "put it there, or correct the benchmark file")


def _find_refused(benchmark: Benchmark, locations: Locations) -> Iterator[Finding]:
    for refused in find_refusals(benchmark, locations, benchmark.experiments):
        fails = f"until then {'its experiments fail' if refused.is_of_model else 'this experiment fails'}"
        yield fault(refused.subject, refused.found, fails)
    for name, found in find_untuned(benchmark, locations, benchmark.experiments).items():
        yield note(f"{benchmark.name}/{name}", found, "until then this experiment fails")
