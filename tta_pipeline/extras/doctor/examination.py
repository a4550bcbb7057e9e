"""All checks of the doctor, in the order of its report."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tta_pipeline.extras.doctor.benchmark_files import benchmark_files, named_benchmark
from tta_pipeline.extras.doctor.finding import Finding, fault
from tta_pipeline.extras.doctor.machine import accelerators, data_root, extras, file_locks, room
from tta_pipeline.extras.doctor.project import dagster_storage, left_overs, result_records
from tta_pipeline.extras.doctor.run_queue import runs_at_once
from tta_pipeline.extras.doctor.shard_sets import shard_checksums
from tta_pipeline.util.locations import Locations


def examine(
    locations: Locations, names: Sequence[str] = (), *, limit_of_queue: Callable[[Path], int | None]
) -> Iterator[Finding]:
    """Yield the findings of all checks, or only of the benchmarks *names*, each as soon as it is made.

    Args:
        locations: Where things lie.
        names: Names of benchmarks.
        limit_of_queue: See `runs_at_once`.

    Raises:
        BenchmarkFileError: there is no benchmark of a name in *names*.
    """
    if names:
        for name in names:
            yield from named_benchmark(locations, name)
        return
    looks = (data_root, room, file_locks, left_overs, shard_checksums, result_records, benchmark_files)
    for subject, findings in (
        *((look.__name__, look(locations)) for look in looks),
        ("dagster_storage", dagster_storage()),
        ("extras", extras()),
        ("accelerators", accelerators()),
        ("runs at once", runs_at_once(limit_of_queue)),
    ):
        try:
            yield from findings
        except OSError as error:
            where = error.filename or locations.root
            yield fault(
                subject.replace("_", " "),
                f"{where} cannot be checked ({error.strerror})",
                "make it readable, or remove it",
            )
