"""Records of many processes into one data root: `python -m bench.many_users`.

1, 4 and 16 processes record evaluations, each in cells of its own and every tenth in a cell that all share, and publish
their folder of records every 20 records, as runs do. At the end the database must have every record.
"""

import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path
from random import Random

from rich.console import Console
from rich.table import Table

from bench.figures import spread
from bench.metrics import evaluation_facts
from tta_pipeline.domain.locations import Locations
from tta_pipeline.results.database.database import open_metrics, publish_metrics
from tta_pipeline.results.records import publish_record

NUM_PROCESSES = (1, 4, 16)
NUM_RECORDS = 60
PUBLISH_EVERY = 20
SHARED_EVERY = 10
REPEATS = int(os.environ.get("BENCH_REPEATS", "3"))


def main() -> None:
    """Measure each number of processes, and print the records per second and the records that are missing."""
    table = Table(
        "processes", "records/s of all", "of one record, ms", "missing",
        title=f"{len(os.sched_getaffinity(0))} cores, median and range of {REPEATS}",
    )  # fmt: skip
    lost = 0
    for number in NUM_PROCESSES:
        rates, record_ms, missing = zip(*(_measure(number) for _ in range(REPEATS)), strict=True)
        lost += sum(missing)
        table.add_row(str(number), spread(rates, digits=1), spread(record_ms, digits=1), str(sum(missing)))
    Console(width=100).print(table)
    sys.exit(1 if lost else 0)


def _measure(num_processes: int) -> tuple[float, float, int]:
    """Return records per second, the median time of a record in ms, and the number of records that are missing."""
    spawning = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="tta-users-") as folder:
        locations = Locations(root=Path(folder))
        publish_metrics(locations)
        ready = spawning.Barrier(num_processes)
        with spawning.Pool(num_processes, _begin, (locations, ready)) as pool:
            found = pool.map(_record, range(num_processes), chunksize=1)
        wall_s = max(ended for _, ended, _ in found) - min(started for started, _, _ in found)
        publish_metrics(locations)
        with open_metrics(locations.metrics) as connection:
            (known,) = connection.execute("SELECT count(*) FROM evaluations").fetchone() or (0,)
    record_ms = statistics.median(each for *_, times in found for each in times)
    num_records = num_processes * NUM_RECORDS
    return num_records / wall_s, record_ms, num_records - int(known)


def _begin(locations: Locations, ready: Barrier) -> None:
    global _LOCATIONS, _READY  # a process of a pool can only inherit a barrier
    _LOCATIONS, _READY = locations, ready


def _record(user: int) -> tuple[float, float, list[float]]:
    """Record and publish as a run does; return the begin, the end, and the milliseconds of each record."""
    results, times = _LOCATIONS.results("imagenet_c"), []
    _READY.wait()
    started = time.monotonic()
    for number in range(NUM_RECORDS):
        experiment = "shared" if number % SHARED_EVERY == 0 else f"experiment_{user}"
        facts = evaluation_facts(experiment=experiment, corruption="fog", severity=number % 5 + 1, random=Random(user))  # noqa: S311
        begun = time.monotonic()
        publish_record(
            results, kind="evaluations", name=f"{experiment}/fog-{number % 5 + 1}", run_id=str(user),
            started_at="2026-02-01T00:00:00+00:00", facts=facts,
        )  # fmt: skip
        times.append(1000 * (time.monotonic() - begun))
        if number % PUBLISH_EVERY == PUBLISH_EVERY - 1:
            publish_metrics(_LOCATIONS, within=results / "evaluations" / f"experiment_{user}")
    return started, time.monotonic(), times


if __name__ == "__main__":
    main()
