"""75 cells by one process and by two: `python -m bench.workers [TURNS]`, by default 2.

Each process has one core's worth of threads. Shards and model are made before; start, plan and report are timed.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

NAME = "workers"
_BENCHMARK = """
title: 75 cells
images: {kind: digits, seed: 0, num_test: 500, severity_table: imagenet_c}
image_size: 32
shards: {samples_per_shard: 100}
models:
  cnn: {kind: trained, epochs: 2, width: 48}
experiments:
  tent: {model: cnn, method: tent, preset: cifar, batch_size: 50}
"""


def main(num_turns: int = 2) -> None:
    """Evaluate the cells in turns with one process and with two, and print times and their ratio."""
    with tempfile.TemporaryDirectory(prefix="tta-workers-") as folder:
        made = Path(folder) / "made"
        (made / "benchmarks").mkdir(parents=True)
        (made / "benchmarks" / f"{NAME}.yaml").write_text(_BENCHMARK)
        run(made, "--part", "prepare")
        walls_s: dict[int, list[float]] = {1: [], 2: []}
        for _ in range(num_turns):
            for num_processes, walls in walls_s.items():
                root = Path(shutil.copytree(made, Path(folder) / "turn"))
                walls.append(run(root, "--processes", str(num_processes)))
                shutil.rmtree(root)
                sys.stderr.write(f"{num_processes} processes: {walls[-1]:.0f} s\n")
    table = Table("processes", "s", title="75 cells, one core for each process")
    for num_processes, walls in walls_s.items():
        table.add_row(str(num_processes), ", ".join(f"{wall_s:.0f}" for wall_s in walls))
    ratios = [two_s / one_s for one_s, two_s in zip(walls_s[1], walls_s[2], strict=True)]
    table.add_row("2 / 1", f"{statistics.median(ratios):.3f} [{min(ratios):.3f}-{max(ratios):.3f}]")
    Console(width=100).print(table)


def run(root: Path, *options: str) -> float:
    """Run `tta-pipeline run` with *options* in the data root *root*, and return its seconds."""
    environment = {**os.environ, "TTA_DATA_ROOT": str(root), "DAGSTER_HOME": str(root / "home"), "OMP_NUM_THREADS": "1"}
    began = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "tta_pipeline", "run", NAME, "--device", "cpu", *options],
        env=environment, check=True, capture_output=True,
    )  # fmt: skip
    return time.monotonic() - began


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
