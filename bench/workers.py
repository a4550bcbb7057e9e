"""75 cells on one worker and on two: `python -m bench.workers [TURNS]`, by default 2.

The pieces are those of `submit`, and a worker is the process that a cluster's job runs, bound to its own core. The
overhead of a scheduler is not included. Shards and model are made before, and the report is not timed.
"""

import os
import queue
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.load_files import load_all_benchmarks
from tta_pipeline.domain.locations import Locations
from tta_pipeline.evaluation.work.pieces import STAGES, Piece
from tta_pipeline.evaluation.work.planner import Planner
from tta_pipeline.evaluation.work.unfinished import FingerprintComparison
from tta_pipeline.extras.cluster.submission import Submission

NAME = "workers"
_BENCHMARK = """
title: 75 cells
source: {kind: digits, seed: 0, num_test: 500, severity_table: imagenet_c}
image_size: 32
shards: {samples_per_shard: 100}
models:
  cnn: {kind: trained, epochs: 2, width: 48}
experiments:
  tent: {model: cnn, method: tent, preset: cifar, batch_size: 50}
"""


def main(num_turns: int = 2) -> None:
    """Evaluate the cells in turns with one worker and with two, and print times and their ratio."""
    with tempfile.TemporaryDirectory(prefix="tta-workers-") as folder:
        made = Locations(root=Path(folder) / "made")
        made.benchmark_files.mkdir(parents=True)
        (made.benchmark_files / f"{NAME}.yaml").write_text(_BENCHMARK)
        evaluations = prepare(made)
        walls_s: dict[int, list[float]] = {1: [], 2: []}
        for _ in range(num_turns):
            for num_workers, walls in walls_s.items():
                locations = Locations(root=Path(folder) / f"turn-{num_workers}")
                shutil.copytree(made.root, locations.root)
                walls.append(work(locations, evaluations, num_workers))
                assert not _plan_unfinished(locations), "every cell is finished when the workers have ended"
                shutil.rmtree(locations.root)
                sys.stderr.write(f"{num_workers} workers: {walls[-1]:.0f} s\n")
    table = Table("workers", "s", title=f"75 cells, {len(evaluations)} pieces, one core for each worker")
    for num_workers, walls in walls_s.items():
        table.add_row(str(num_workers), ", ".join(f"{wall_s:.0f}" for wall_s in walls))
    ratios = [two_s / one_s for one_s, two_s in zip(walls_s[1], walls_s[2], strict=True)]
    table.add_row("2 / 1", f"{statistics.median(ratios):.3f} [{min(ratios):.3f}-{max(ratios):.3f}]")
    Console(width=100).print(table)


def prepare(locations: Locations) -> tuple[Piece, ...]:
    """Make shards and model, and return the pieces of the stage `evaluations`."""
    pieces = _plan_unfinished(locations)
    for stage in STAGES[: STAGES.index("evaluations")]:
        work(locations, [piece for piece in pieces if piece.stage == stage], 2)
    return tuple(piece for piece in _plan_unfinished(locations) if piece.stage == "evaluations")


def work(locations: Locations, pieces: Sequence[Piece], num_workers: int) -> float:
    """Give the pieces to *num_workers* workers, the longest first, and return the seconds until the last ends."""
    submission = Submission.create(
        locations, benchmark=NAME, engine="none", pieces=pieces, compute={"device": "cpu", "decode_threads": 1}
    )
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(len(pieces)):
        waiting.put(number)
    cores = sorted(os.sched_getaffinity(0))[:num_workers]
    threads = [threading.Thread(target=_worker, args=(locations, submission, waiting, core)) for core in cores]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall_s = time.monotonic() - began
    assert all(submission.read_outcome(number) == "done" for number in range(len(pieces))), "every piece succeeds"
    return wall_s


def _worker(locations: Locations, submission: Submission, waiting: "queue.SimpleQueue[int]", core: int) -> None:
    environment = {**os.environ, "TTA_DATA_ROOT": str(locations.root), "OMP_NUM_THREADS": "1"}
    while True:
        try:
            number = str(waiting.get_nowait())
        except queue.Empty:
            return
        command = [sys.executable, "-m", "tta_pipeline.cli.piece", str(submission.folder), submission.key, number]
        submission.log_path(0).parent.mkdir(exist_ok=True)
        with submission.log_path(int(number)).open("wb") as log:
            subprocess.run(
                ["taskset", "--cpu-list", str(core), *command], env=environment, stdout=log, stderr=log, check=True
            )


def _plan_unfinished(locations: Locations) -> tuple[Piece, ...]:
    benchmark: Benchmark = load_all_benchmarks(locations).benchmark(NAME)
    planner = Planner(
        benchmark=benchmark, locations=locations, experiments=tuple(benchmark.experiments),
        unfinished_keys=FingerprintComparison(device="cpu").unfinished_keys,
    )  # fmt: skip
    return planner.plan_pieces(planner.find_unfinished(), by="corruption", num_devices=2)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
