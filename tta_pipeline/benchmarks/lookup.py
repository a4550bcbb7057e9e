"""Benchmarks by name: those that come with the project, and those under the data root."""

from collections.abc import Mapping
from pathlib import Path

from tta_pipeline.benchmarks.spec import Benchmark, load_benchmark
from tta_pipeline.errors import BenchmarkFileError
from tta_pipeline.locations import Locations

EMBEDDED = Path(__file__).parent


def benchmark_paths(locations: Locations) -> Mapping[str, Path]:
    """Return the benchmark files by name.

    Raises:
        BenchmarkFileError: two have one name.
    """
    found: dict[str, Path] = {}
    for folder in (EMBEDDED, locations.benchmark_files):
        for path in sorted(folder.glob("*.yaml")):
            if path.stem in found:
                raise BenchmarkFileError(f"{path} and {found[path.stem]} have one name; expected another: rename one")
            found[path.stem] = path
    return found


def find_benchmark(name: str, locations: Locations) -> Benchmark:
    """Return the benchmark *name*; the files of others are not read.

    Raises:
        BenchmarkFileError: there is none, or its file is wrong.
    """
    paths = benchmark_paths(locations)
    if name not in paths:
        raise BenchmarkFileError(
            f"found no benchmark {name!r}; expected one of {', '.join(paths)}, or a file {name}.yaml in "
            f"{locations.benchmark_files}"
        )
    return load_benchmark(paths[name])
