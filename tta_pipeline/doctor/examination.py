"""Everything the doctor looks at, in the order in which it is told."""

from collections.abc import Iterator

from tta_pipeline.doctor.benchmark_files import benchmark_files
from tta_pipeline.doctor.finding import Finding, fault
from tta_pipeline.doctor.machine import accelerators, data_root, extras, file_locks, room
from tta_pipeline.doctor.project import dagster_storage, left_overs, result_records
from tta_pipeline.doctor.shard_sets import shard_checksums
from tta_pipeline.locations import Locations


def examine(locations: Locations) -> Iterator[Finding]:
    """Yield what is found, each thing as soon as it is looked at."""
    looks = (data_root, room, file_locks, left_overs, shard_checksums, result_records, benchmark_files)
    for subject, findings in (
        *((look.__name__, look(locations)) for look in looks),
        ("dagster_storage", dagster_storage()),
        ("extras", extras()),
        ("accelerators", accelerators()),
    ):
        try:
            yield from findings
        except OSError as error:
            where = error.filename or locations.root
            yield fault(
                subject.replace("_", " "),
                f"{where} cannot be looked at ({error.strerror})",
                "make it readable, or take it away",
            )
