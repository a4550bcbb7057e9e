"""The database with a million evaluations: `python -m bench.metrics`.

A hundred experiments on 75 cells, five seeds each, evaluated again and again. The rows are made by SQL, since a million
records would take a million inodes; their names are there, as links to a few files, so that they are found as real
ones are. What is timed is what a person and a run do: open the database and ask, record a cell and publish it.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
from rich.console import Console
from rich.table import Table

from tta_pipeline.locations import Locations
from tta_pipeline.metrics.database import open_metrics, publish_metrics
from tta_pipeline.metrics.records import publish_record
from tta_pipeline.reports import queries

NUM_ROWS = 1_000_000
NUM_EXPERIMENTS, NUM_CELLS, NUM_SEEDS = 100, 75, 5
REPEATS = 7
_NAMES_OF_ONE_FILE = 50_000  # ext4 allows 65,000

# Run r evaluates the 75 cells of experiment r % 100 with seed r // 100 % 5; numbers that differ are spread by primes.
_ROWS = """
CREATE TEMP TABLE made AS
SELECT
    i, i // 75 AS r, r // 100 + 1 AS sequence, i + 37500 >= $num_rows AS is_latest,
    format('{:08x}', (r * 2654435761) % 4294967296) AS run_id, 'imagenet_c' AS benchmark,
    'experiment_' || (r % 100) AS experiment, r // 100 % 5 AS seed, common[i // 5 % 15 + 1] AS corruption,
    i % 5 + 1 AS severity, corruption || '|' || severity AS stream,
    'imagenet_c/results/evaluations/' || experiment || '/' || corruption || '-' || severity AS folder,
    20000 + i * 48271 % 10007 AS num_correct, (num_correct + 50000) // 2 AS num_correct_top5,
    20 + i * 16807 % 99991 / 1e5 AS wall_s
FROM range($num_rows) AS rows(i),
     (SELECT list(corruption ORDER BY corruption) AS common FROM corruptions WHERE is_common);
INSERT INTO ingested SELECT folder, sequence FROM made ORDER BY i;
INSERT INTO evaluations BY NAME
SELECT
    * EXCLUDE (i, r, folder), 'resnet50' AS model, 'IMAGENET1K_V2' AS weights, sha256('w') AS weights_sha256,
    [0.485, 0.456, 0.406] AS mean, [0.229, 0.224, 0.225] AS std, 'tent' AS method, 'reset_each_shift' AS protocol,
    FALSE AS generated, sha256('f' || i % 37500) AS fingerprint, 2 AS metrics_version, 50000 AS num_samples,
    1 - num_correct / 50000 AS error, 1 - num_correct_top5 / 50000 AS top5_error, 3 * random() AS nll,
    random() AS brier, random() AS ece, random() AS max_calibration_error, random() AS rms_calibration_error,
    list_transform(range(15), lambda b: (i * 7919 + b * 104729) % 6666) AS bin_counts,
    list_transform(range(15), lambda b: 6666 * random()) AS bin_confidence_sums,
    list_transform(range(15), lambda b: (i * 7907 + b * 104711) % 3333) AS bin_correct_counts,
    sha256('o' || i % 75) AS order_hash, sha256('p' || i) AS predictions_sha256,
    sha256('m' || i % 75) AS manifest_sha256,
    'NVIDIA H200' AS device, 64 AS batch_size, 'bf16' AS precision, 'off' AS compile, 782 AS num_batches,
    0 AS staging_s, random() AS metadata_scan_s, random() AS pipeline_setup_s, random() AS time_to_first_batch_s,
    random() AS first_batch_compute_s, 50000 / wall_s AS images_per_s, random() AS data_wait_s,
    random() AS host_to_device_s, 19 + random() AS compute_s, 4 + random() AS peak_cuda_gib,
    3 + random() AS peak_rss_gib, 50000 AS num_forwards, 50000 AS num_backwards, 782 AS num_updates, 0 AS num_resets,
    0 AS num_nonfinite_batches, FALSE AS diverged, TIMESTAMPTZ '2026-01-01' + to_seconds(i) AS started_at,
    '{"python": "3.11"}' AS versions, '{"hyperparameters": {"lr": 0.00025}}' AS config
FROM made ORDER BY i;
"""


def main() -> None:
    """Make the rows, ask and publish, and print the times beside what is asked."""
    data = Path(os.environ.get("TTA_DATA_ROOT", "data")) / "bench"
    data.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=data) as folder:
        locations = Locations(root=Path(folder).absolute())
        _make(locations)
        runs = _two_runs(locations)
        table = Table(title=f"{NUM_ROWS:,} evaluations, {locations.metrics.stat().st_size / 1e6:,.0f} MB, "
                            f"{os.cpu_count()} cores, duckdb {duckdb.__version__}")  # fmt: skip
        for name in ("what", "ms, median [range]", "asked"):
            table.add_column(name)
        table.add_row("open, leaderboard", _spread(lambda: _ask(locations, queries.ALL_LEADERBOARDS)), "< 100")
        table.add_row("open, compare two runs", _spread(lambda: _ask(locations, queries.COMPARISON, runs)), "< 100")
        table.add_row("open, errors by corruption", _spread(lambda: _ask(locations, queries.BY_CORRUPTION)), "")
        table.add_row("record a cell and publish it", _spread(lambda: _publish_one(locations)), "< 2,000")
    Console(width=120).print(table)


def _make(locations: Locations) -> None:
    publish_metrics(locations)
    with duckdb.connect(locations.metrics) as connection:
        for statement in _ROWS.split(";\n"):
            has_parameter = "$num_rows" in statement
            connection.execute(statement, {"num_rows": NUM_ROWS} if has_parameter else None)
        records = connection.execute("SELECT folder, max(sequence) FROM ingested GROUP BY folder").fetchall()
    first = None
    num_names = 0
    for folder, newest in records:
        (locations.root / folder).mkdir(parents=True)
        for sequence in range(1, newest + 1):
            path = locations.root / folder / f"{sequence:06d}.json"
            if first is None or num_names % _NAMES_OF_ONE_FILE == 0:
                path.touch()
                first = path
            else:
                os.link(first, path)
            num_names += 1


def _two_runs(locations: Locations) -> list[str]:
    """Return two late runs of one experiment and seed."""
    rows = _ask(
        locations,
        "SELECT run_id FROM evaluations WHERE experiment = 'experiment_7' AND seed = 3 AND stream = 'fog|5' "
        "ORDER BY sequence DESC LIMIT 2",
    )
    return [run_id for (run_id,) in rows]


def _ask(locations: Locations, sql: str, parameters: list[str] | None = None) -> list[tuple[object, ...]]:
    with open_metrics(locations.metrics) as connection:
        rows: list[tuple[object, ...]] = connection.execute(sql, parameters).fetchall()
    return rows


def _publish_one(locations: Locations) -> None:
    """Record one more evaluation of a cell, and publish it."""
    publish_record(
        locations.results("imagenet_c"), kind="evaluations", name="experiment_7/fog-5", run_id="new",
        started_at="2026-02-01T00:00:00+00:00", facts=_FACTS,
    )  # fmt: skip
    assert publish_metrics(locations).num_added == 1


_BATCH = {"num_samples": 64, "data_wait_s": 0.0, "host_to_device_s": 0.0, "compute_s": 0.02}
_FACTS = {
    "benchmark": "imagenet_c", "experiment": "experiment_7", "model": "resnet50", "weights": "IMAGENET1K_V2",
    "weights_sha256": "0" * 64, "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225], "method": "tent",
    "protocol": "reset_each_shift", "subset": "all", "stream": "fog|5", "position": 0, "corruption": "fog",
    "severity": 5, "generated": False, "seed": 3, "fingerprint": "0" * 64, "metrics_version": 2,
    "num_samples": 50000, "num_correct": 30000, "num_correct_top5": 40000, "error": 0.4, "top5_error": 0.2,
    "nll": 2.0, "brier": 0.6, "ece": 0.1, "max_calibration_error": 0.2, "rms_calibration_error": 0.1,
    "calibration": {"counts": [1] * 15, "confidence_sums": [0.5] * 15, "correct_counts": [1] * 15},
    "class_counts": {"num_samples": [50] * 1000, "num_correct": [30] * 1000}, "order_hash": "0" * 64,
    "predictions_sha256": "0" * 64, "manifest_sha256": "0" * 64, "device": "NVIDIA H200", "batch_size": 64,
    "precision": "bf16", "compile": "off", "num_batches": 782, "staging_s": 0.0, "metadata_scan_s": 0.1,
    "pipeline_setup_s": 0.1, "time_to_first_batch_s": 0.1, "first_batch_compute_s": 0.1, "wall_s": 20.0,
    "images_per_s": 2500.0, "data_wait_s": 0.1, "host_to_device_s": 0.1, "compute_s": 19.0, "peak_cuda_gib": 4.0,
    "peak_rss_gib": 3.0, "num_forwards": 50000, "num_backwards": 50000, "num_updates": 782, "num_resets": 0,
    "num_nonfinite_batches": 0, "diverged": False, "config": "{}", "batches": [_BATCH] * 782,
}  # fmt: skip


def _spread(work: Callable[[], object]) -> str:
    times_ms = []
    for repeat in range(REPEATS + 1):
        started = time.perf_counter()
        work()
        if repeat:  # the first warms up
            times_ms.append(1000 * (time.perf_counter() - started))
    return f"{statistics.median(times_ms):,.0f} [{min(times_ms):,.0f}-{max(times_ms):,.0f}]"


if __name__ == "__main__":
    main()
