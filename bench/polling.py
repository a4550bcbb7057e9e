"""A sweep of 75 cells with and without a reader that queries the database every 100 ms: `python -m bench.polling`.

Neither must wait for the other: the sweep takes the same time, the reader's slowest query takes no longer than opening
and querying, the number of rows that the reader sees never falls, and at the end no row is missing.
"""

import os
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.table import Table

from bench.figures import spread
from bench.projects import materialize, new_project
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import RecordError
from tta_pipeline.results.database.database import open_metrics
from tta_pipeline.results.database.publication import publish_metrics

BENCHMARK = """
title: 75 small cells
images: {kind: digits, num_test: 200, severity_table: imagenet_c}
image_size: 32
shards: {num_shards: 1}
models:
  cnn: {kind: trained, epochs: 1}
experiments:
  tent: {model: cnn, method: tent, preset: cifar}
"""
RANGE = "gaussian_noise|1...jpeg_compression|5"
NUM_CELLS = 75
INTERVAL_S = 0.1
REPEATS = int(os.environ.get("BENCH_REPEATS", "3"))
_CONFIG = '{"ops": {"polled__evaluation__tent": {"config": {"force": true}}}}'


@dataclass
class Reader:
    """Queries the database repeatedly while a block runs."""

    locations: Locations
    asked_s: list[float] = field(default_factory=list)
    num_rows: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="reader")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _ask(self) -> None:
        while not self._is_over.wait(INTERVAL_S):
            started = time.perf_counter()
            self.num_rows.append(count_rows(self.locations))
            self.asked_s.append(time.perf_counter() - started)


def main() -> None:
    """Sweep with and without the reader in turn, and print how they affect each other."""
    with tempfile.TemporaryDirectory(prefix="tta-polling-") as folder:
        locations = new_project(Path(folder), "polled", BENCHMARK)
        materialize(Path(folder), "*polled/evaluation/tent", RANGE)
        alone_s, polled_s, questions, losses = [], [], [], []
        for _ in range(REPEATS):
            alone_s.append(_sweep_s(Path(folder)))
            before = count_rows(locations)
            with Reader(locations) as reader:
                polled_s.append(_sweep_s(Path(folder)))
            publish_metrics(locations)
            questions += reader.asked_s
            fewer = sum(later < earlier for earlier, later in zip(reader.num_rows, reader.num_rows[1:], strict=False))
            losses.append(fewer + before + NUM_CELLS - count_rows(locations))
    ratio = statistics.median(b / a for a, b in zip(alone_s, polled_s, strict=True))
    table = Table(title=f"75 cells, {os.cpu_count()} cores, {len(questions)} questions")
    for name in ("what", "median [range]"):
        table.add_column(name)
    table.add_row("sweep alone, s", spread(alone_s, digits=1))
    table.add_row("sweep while asked every 100 ms, s", spread(polled_s, digits=1))
    table.add_row("ratio", f"{ratio:.2f}")
    table.add_row("open, ask, close, ms", spread([1000 * each for each in questions], digits=1))
    table.add_row("rows lost or seen to vanish", str(sum(losses)))
    Console().print(table)
    sys.exit(1 if any(losses) else 0)


def count_rows(locations: Locations) -> int:
    """Return the number of evaluations in the database; none before it exists."""
    try:
        with open_metrics(locations.metrics) as connection:
            (found,) = connection.execute("SELECT count(*) FROM evaluations WHERE experiment = 'tent'").fetchall()
    except RecordError:
        return 0
    return int(found[0])


def _sweep_s(folder: Path) -> float:
    started = time.perf_counter()
    materialize(folder, "polled/evaluation/tent", RANGE, config=_CONFIG)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
