"""Checks of benchmark files and of the files that they name."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.load_files import ENDING, LoadedBenchmarks, load_all_benchmarks
from tta_pipeline.benchmarks.named_paths import missing_paths, named_paths
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import DataRootError
from tta_pipeline.evaluation.refusals import find_refusals
from tta_pipeline.extras.doctor.finding import Finding, fault, note, ok
from tta_pipeline.extras.doctor.machine_checks import is_installed
from tta_pipeline.shards.uneven_cells import find_uneven_cells
from tta_pipeline.util.files import advice
from tta_pipeline.util.plurals import count_of
from tta_pipeline.util.short_lists import abbreviate_list


def check_benchmark_files(locations: Locations) -> Iterator[Finding]:
    """Check every benchmark file and the files that it names."""
    for path in _misnamed_files(locations.benchmark_files):
        yield note("benchmarks", f"{path} is not read", f"rename it to end in {ENDING}")
    yield from _check_loaded(load_all_benchmarks(locations), locations)


def check_named_benchmark(locations: Locations, name: str) -> Iterator[Finding]:
    """Check the benchmark *name* and the files that it names; if it has several shift sets, check all of them."""
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
            for sentence in find_uneven_cells(benchmark, locations).values():
                yield note(
                    benchmark.name, sentence, "correct the images and run it again, or compare only the other cells"
                )
        except DataRootError as error:
            yield fault(benchmark.name, str(error), "until then it cannot be evaluated")
        except OSError as error:
            yield fault(benchmark.name, f"{error.filename} cannot be checked ({error.strerror})", advice(error))
    for each in loaded.faults:
        subject = f"{each.benchmark}/{each.experiment}" if each.experiment else each.benchmark
        which = "this experiment" if each.experiment else "what this file describes"
        yield fault(subject, each.sentence, f"correct the file; until then {which} is left out, but nothing else")


def _misnamed_files(folder: Path) -> list[Path]:
    """Return files that are probably meant as benchmark files but have another ending."""
    if not folder.is_dir():
        return []
    return sorted(
        path for path in folder.iterdir() if path.suffix != ENDING and path.suffix.lower() in (ENDING, ".yml")
    )


def _check_benchmark(benchmark: Benchmark, locations: Locations, *, is_whole: bool) -> Iterator[Finding]:
    """Yield what is wrong with *benchmark*, or that nothing is.

    Args:
        benchmark: The benchmark, without experiments that have a fault.
        locations: Where things lie.
        is_whole: Whether no experiment of its file has a fault, which is reported elsewhere.
    """
    from tta_pipeline.models.own_transforms import find_other_transforms

    name, num_cells = benchmark.name, len(benchmark.cells)
    num_sharded = sum((locations.shards(name, cell) / "manifest.json").exists() for cell in benchmark.cells)
    experiments = count_of(len(benchmark.experiments), "experiment")
    state = f"{count_of(num_cells, 'cell')}, {num_sharded} of them sharded, {experiments}"
    is_well = True
    for field, path in missing_paths(benchmark):
        is_well = False
        found = f"{field} is {path.absolute()}, which does not exist"
        if field.startswith("source.") and num_sharded == num_cells:
            yield note(name, f"{found}; {state}", "evaluations still work; to shard again, put it back")
        else:
            yield fault(name, found, "put it there, or correct the benchmark file")
    needed = {model.package: model.kind for model in reversed(benchmark.models.values()) if model.package}
    for (package, extra), kind in needed.items():
        if not is_installed(package):
            is_well = False
            found = f"it has models of kind {kind}, for which {package} is not installed"
            yield fault(name, found, f"pip install 'tta_pipeline[{extra}]'")
    missing = {path for field, path in named_paths(benchmark) if field.startswith("models.") and not path.exists()}
    named = [
        name
        for name, spec in benchmark.experiments.items()
        if missing.isdisjoint(path for _, path in named_paths(benchmark.models[spec.model]))  # reported above
    ]
    for refused in find_refusals(benchmark, locations, named):
        is_well = False
        fails = f"until then {'its experiments fail' if refused.is_of_model else 'this experiment fails'}"
        yield (note if refused.is_untuned else fault)(refused.subject, refused.found, fails)
    for other in find_other_transforms(benchmark, (benchmark.experiments[each].model for each in named)):
        yield note(f"{name}/{other.model}", other.found, other.advice)
    absent = [key for key, path in _source_of_cells(benchmark) if not path.exists()]
    if is_well and absent and num_sharded < num_cells:
        yield note(
            name,
            f"{state}; the source lacks {len(absent)} of {num_cells} cells: {abbreviate_list(absent)}",
            "run the cells that are there, or name only those in corruptions and severities",
        )
    elif is_well and not is_whole:
        yield note(name, f"{state}; a fault leaves others out", "see the lines of its experiments")
    elif is_well:
        yield ok(name, state)


def _source_of_cells(benchmark: Benchmark) -> Iterator[tuple[str, Path]]:
    """Yield each cell with the path where it must be; none for archives, which do not show which cells they hold."""
    for cell in benchmark.cells:
        if (place := benchmark.source.own_place(cell, benchmark.shift_set)) is not None:
            yield cell.key, place
