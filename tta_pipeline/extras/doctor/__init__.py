"""Checks of the installation: each finding has what was checked, what was found, and what to do. Nothing changes.

For faults that loaders detect, the checks call the loaders; the checks here cover the rest.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from tta_pipeline.domain.locations import Locations
from tta_pipeline.extras.doctor.benchmark_files import check_benchmark_files, check_named_benchmark
from tta_pipeline.extras.doctor.dagster_checks import check_dagster
from tta_pipeline.extras.doctor.data_checks import check_left_overs, check_results
from tta_pipeline.extras.doctor.finding import Finding, fault
from tta_pipeline.extras.doctor.machine_checks import (
    check_accelerators,
    check_added,
    check_data_root,
    check_disk_space,
    check_file_locks,
)


def examine(locations: Locations, names: Sequence[str] = (), *, home: Path) -> Iterator[Finding]:
    """Yield the findings of all checks, or only of the benchmarks *names*, each as soon as it is known.

    Args:
        locations: The data root and the shard store.
        names: Names of benchmarks.
        home: Folder of Dagster's settings and history.
    """
    if names:
        for name in names:
            yield from check_named_benchmark(locations, name)
        return
    for subject, findings in (
        ("data root", check_data_root(locations)),
        ("disk space", check_disk_space(locations)),
        ("file locks", check_file_locks(locations)),
        ("left overs", check_left_overs(locations)),
        ("results", check_results(locations)),
        ("benchmark files", check_benchmark_files(locations)),
        ("dagster", check_dagster(home)),
        ("added", check_added()),
        ("accelerators", check_accelerators()),
    ):
        try:
            yield from findings
        except OSError as error:
            where = error.filename or locations.root
            yield fault(subject, f"{where} cannot be checked ({error.strerror})", "make it readable, or remove it")
