"""Results of many processes in one data root: `python -m bench.many_users`.

1, 4 and 16 processes store results, each of its own experiment and every tenth of one that all share, and publish
every 20 results, as runs do. At the end the database must have every result.
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
from bench.metrics import evaluation, result_of
from tta_pipeline.domain.locations import Locations
from tta_pipeline.results.database.database import open_metrics
from tta_pipeline.results.database.publication import publish_metrics
from tta_pipeline.results.result_files import store_result

NUM_PROCESSES = (1, 4, 16)
NUM_RESULTS = 60
PUBLISH_EVERY = 20
SHARED_EVERY = 10
REPEATS = int(os.environ.get("BENCH_REPEATS", "3"))


def main() -> None:
    """Measure each number of processes, and print the results per second and the results that are missing."""
    table = Table(
        "processes", "results/s of all", "of one result, ms", "missing",
        title=f"{len(os.sched_getaffinity(0))} cores, median and range of {REPEATS}",
    )  # fmt: skip
    lost = 0
    for number in NUM_PROCESSES:
        rates, result_ms, missing = zip(*(_measure(number) for _ in range(REPEATS)), strict=True)
        lost += sum(missing)
        table.add_row(str(number), spread(rates, digits=1), spread(result_ms, digits=1), str(sum(missing)))
    Console(width=100).print(table)
    sys.exit(1 if lost else 0)


def _measure(num_processes: int) -> tuple[float, float, int]:
    """Return results per second, the median time of a result in ms, and the number of results that are missing."""
    spawning = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="tta-users-") as folder:
        locations = Locations(root=Path(folder))
        publish_metrics(locations)
        ready = spawning.Barrier(num_processes)
        with spawning.Pool(num_processes, _begin, (locations, ready)) as pool:
            found = pool.map(_store, range(num_processes), chunksize=1)
        wall_s = max(ended for _, ended, _ in found) - min(started for started, _, _ in found)
        publish_metrics(locations)
        with open_metrics(locations.metrics) as connection:
            (known,) = connection.execute("SELECT count(*) FROM evaluations").fetchone() or (0,)
    result_ms = statistics.median(each for *_, times in found for each in times)
    num_results = num_processes * NUM_RESULTS
    return num_results / wall_s, result_ms, num_results - int(known)


def _begin(locations: Locations, ready: Barrier) -> None:
    global _LOCATIONS, _READY  # a process of a pool can only inherit a barrier
    _LOCATIONS, _READY = locations, ready


def _store(user: int) -> tuple[float, float, list[float]]:
    """Store and publish as a run does; return the begin, the end, and the milliseconds of each result."""
    folder, times = _LOCATIONS.results("imagenet_c"), []
    _READY.wait()
    started = time.monotonic()
    for number in range(NUM_RESULTS):
        experiment = "shared" if number % SHARED_EVERY == 0 else f"experiment_{user}"
        row = evaluation(
            experiment=experiment, corruption="fog", severity=number % 5 + 1, parts=f'"{experiment}"',
            random=Random(user),  # noqa: S311
        )  # fmt: skip
        begun = time.monotonic()
        store_result(folder, result_of([row], run_id=str(user)))
        times.append(1000 * (time.monotonic() - begun))
        if number % PUBLISH_EVERY == PUBLISH_EVERY - 1:
            publish_metrics(_LOCATIONS)
    return started, time.monotonic(), times


if __name__ == "__main__":
    main()
