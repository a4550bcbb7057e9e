"""Events per second that a run history accepts, in SQLite or Postgres: `python -m bench.history [DAGSTER_HOME]`.

Without an argument, it measures a new history in SQLite. With an argument, it writes into the history of that folder's
`dagster.yaml`, which must be a database for this purpose only. Each of 1, 4 or 8 processes reports materializations one
after the other, as a run does for each of its cells. An event counts when the storage has accepted it.
"""

import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from multiprocessing.synchronize import Barrier
from pathlib import Path

import dagster as dg
from rich.console import Console
from rich.table import Table

NUM_PROCESSES = (1, 4, 8)
NUM_EVENTS = int(os.environ.get("BENCH_EVENTS", "200"))
REPEATS = int(os.environ.get("BENCH_REPEATS", "3"))


def main() -> None:
    """Measure each number of processes, and print the events per second and the time of an event."""
    with tempfile.TemporaryDirectory(prefix="tta-history-") as folder:
        home = Path(sys.argv[1] if len(sys.argv) > 1 else folder).absolute()
        with dg.DagsterInstance.from_config(str(home)) as instance:
            storage = type(instance.event_log_storage).__name__
        title = f"{storage}, {len(os.sched_getaffinity(0))} cores, median and range of {REPEATS} repeats"
        table = Table("processes", "events/s", "one event, median, ms", "slowest, ms", title=title)
        for number in NUM_PROCESSES:
            rates, latencies_s = zip(*(_measure(home, number) for _ in range(REPEATS)), strict=True)
            all_s = [each for repeat in latencies_s for each in repeat]
            table.add_row(
                str(number),
                f"{statistics.median(rates):,.0f} ({min(rates):,.0f}-{max(rates):,.0f})",
                f"{1000 * statistics.median(all_s):,.1f}",
                f"{1000 * max(all_s):,.0f}",
            )
        Console(width=100).print(table)


def _measure(home: Path, num_processes: int) -> tuple[float, list[float]]:
    """Return the events per second of all processes together, and the seconds of each event."""
    spawning = multiprocessing.get_context("spawn")
    ready = spawning.Barrier(num_processes)
    with spawning.Pool(num_processes, _begin, (home, ready)) as pool:
        found = pool.map(_report, range(num_processes), chunksize=1)
    begun, ended = min(times[0] for times in found), max(times[-1] for times in found)
    latencies_s = [after - before for times in found for before, after in pairwise(times)]
    return num_processes * NUM_EVENTS / (ended - begun), latencies_s


def _begin(home: Path, ready: Barrier) -> None:
    global _HOME, _READY  # a process of a pool can only inherit a barrier
    _HOME, _READY = home, ready


def _report(number: int) -> list[float]:
    """Report materializations, and return the times before the first and after each of them."""
    with dg.DagsterInstance.from_config(str(_HOME)) as instance:
        key = dg.AssetKey(["bench", str(number)])
        instance.report_runless_asset_event(dg.AssetMaterialization(key, partition="fog|1"))  # opens connections
        _READY.wait()  # each process has one task, since it waits here until all have begun
        times = [time.perf_counter()]
        for event in range(NUM_EVENTS):
            instance.report_runless_asset_event(dg.AssetMaterialization(key, partition=f"fog|{event % 5}"))
            times.append(time.perf_counter())
    return times


if __name__ == "__main__":
    main()
