"""The database with a million evaluations: `python -m bench.metrics`.

A hundred experiments on 75 cells, five seeds each, evaluated repeatedly. The rows are made with SQL, since a million
records would take a million inodes. Their names exist as links to a few files, so that they are found like real
records. The timed operations are those of a user and of a run: open the database and query it, record a cell and
publish it.
"""

import hashlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import duckdb
from rich.console import Console
from rich.table import Table

from bench.figures import spread
from tta_pipeline.data.shifts.shift_set_files import shipped_sets
from tta_pipeline.domain.locations import Locations
from tta_pipeline.report import queries
from tta_pipeline.results.database.database import open_metrics, publish_metrics
from tta_pipeline.results.database.record_listing import list_records
from tta_pipeline.results.evaluation_record import (
    LABEL_FREE,
    METRICS_VERSION,
    Batches,
    CalibrationBins,
    ClassCounts,
    Evaluation,
    FirstSamples,
)
from tta_pipeline.results.records import RECORD_VERSION, encode_record, publish_record, record_file_name

NUM_ROWS = 1_000_000
NUM_EXPERIMENTS, NUM_CELLS, NUM_SEEDS = 100, 75, 5
REPEATS = 7
NUM_RECORDS = 100_000
"""Number of real records, from which a database is rebuilt."""
_NUM_BATCHES = 79
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
    20 + i * 16807 % 99991 / 1e5 AS wall_s, i * 7919 % 50001 AS in_first_bin, i * 7907 % 20000 AS correct_in_first
FROM range($num_rows) AS rows(i),
     (SELECT list(shift ORDER BY position) AS common FROM published_shifts WHERE shift_set = 'imagenet_c' AND in_mean);
INSERT INTO evaluations BY NAME
SELECT
    * EXCLUDE (i, r, in_first_bin, correct_in_first), 'resnet50' AS model,
    'torchvision resnet50' AS architecture, 'IMAGENET1K_V2' AS weights, sha256('w') AS weights_sha256,
    [0.485, 0.456, 0.406] AS mean, [0.229, 0.224, 0.225] AS std, 'tent' AS method, 'reset_each_shift' AS protocol,
    'all' AS subset, 0 AS position, FALSE AS generated, sha256('f' || i % 37500) AS fingerprint,
    '{}' AS fingerprint_parts, '{}' AS config,
    'imagenet_c' AS shift_set, 50000 AS num_images, 200 AS num_classes_found, 16 AS num_shards,
    100000000 AS payload_bytes, 100000000 AS shard_bytes, 'permuted, seed 0' AS stored_order,
    'stored' AS stream_order, 1000 AS num_predicted_classes, FALSE AS from_features, 0.1 AS starved_s,
    2 AS metrics_version, 50000 AS num_samples, 1 - num_correct / 50000 AS error,
    1 - num_correct_top5 / 50000 AS top5_error, 3 * random() AS nll, random() AS brier, random() AS ece,
    random() AS max_calibration_error, random() AS rms_calibration_error, random() AS adaptive_ece,
    random() AS class_wise_ece, random() AS aurc, random() AS predicted_class_entropy,
    list_concat([in_first_bin], list_transform(range(13), lambda b: 0), [50000 - in_first_bin]) AS bin_counts,
    list_transform(range(15), lambda b: 3333 * random()) AS bin_confidence_sums,
    list_concat([correct_in_first], list_transform(range(13), lambda b: 0), [num_correct - correct_in_first])
        AS bin_correct_counts,
    sha256('o' || i % 75) AS order_hash, sha256('p' || i) AS predictions_sha256,
    sha256('m' || i % 75) AS manifest_sha256, 'NVIDIA H200' AS device, 'NVIDIA H200' AS gpu_name,
    'AMD EPYC 9654' AS cpu_model, 16 AS num_cores, 8 AS decode_threads, 16 AS compute_threads,
    'device NVIDIA H200, cpu_model AMD EPYC 9654, num_cores 16' AS conditions, 64 AS batch_size,
    'bf16' AS precision, 'off' AS compile, TRUE AS pinned_memory, random() AS load_average, 782 AS num_batches,
    0 AS staging_s, random() AS metadata_scan_s, random() AS pipeline_setup_s, random() AS time_to_first_batch_s,
    random() AS first_batch_compute_s, 50000 / wall_s AS images_per_s, random() AS data_wait_s,
    random() AS host_to_device_s, 19 + random() AS compute_s, 4 + random() AS peak_cuda_gib,
    3 + random() AS peak_rss_gib, 50000 AS num_forwards, 50000 AS num_backwards, 50000 AS num_adapted_samples,
    0 AS num_unadapted, 782 AS num_updates, 0 AS num_resets, 0 AS num_nonfinite_batches, FALSE AS diverged,
    TIMESTAMPTZ '2026-01-01' + to_seconds(i) AS started_at, '{"python": "3.11"}' AS versions
FROM made ORDER BY i;
"""


def main() -> None:
    """Make the rows, query and publish, and print the times next to the requirements."""
    data = Path(os.environ.get("TTA_DATA_ROOT", "data")) / "bench"
    data.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=data) as folder:
        locations = Locations(root=Path(folder).absolute())
        _make(locations)
        runs = _two_runs(locations)
        table = Table(title=f"{NUM_ROWS:,} evaluations, {locations.metrics.stat().st_size / 1e6:,.0f} MB, "
                            f"{os.cpu_count()} cores, duckdb {duckdb.__version__}")  # fmt: skip
        for name in ("what", "ms, median [range]", "CPU ms", "asked"):
            table.add_column(name)
        table.add_row("open, leaderboard", *_time(lambda: _ask(locations, queries.ALL_LEADERBOARDS, [None])), "< 100")
        table.add_row("open, compare two runs", *_time(lambda: _ask(locations, queries.COMPARISON, runs)), "< 100")
        table.add_row("open, errors by corruption", *_time(lambda: _ask(locations, queries.BY_CORRUPTION, [None])), "")
        table.add_row("record a cell and publish it", *_time(lambda: _publish_one(locations)), "< 2,000")
        own = locations.results("imagenet_c") / "evaluations" / "experiment_7"
        table.add_row("the same by a run, own folder", *_time(lambda: _publish_one(locations, within=own)), "< 500")
        table.add_row("publish without news", *_time(lambda: publish_metrics(locations)), "< 2,000")
    Console(width=120).print(table)
    with tempfile.TemporaryDirectory(dir=data) as folder:
        root = Path(folder).absolute()
        size_mb = _write_records(root, NUM_RECORDS) / 1e6
        table = Table(title=f"rebuild from {NUM_RECORDS:,} records of {_NUM_BATCHES} batches, {size_mb:,.0f} MB")
        for name in ("wall s", "CPU s", "peak MB", "asked"):
            table.add_column(name)
        table.add_row(*_measure_rebuild(root), "< 20 s, < 500 MB")
    Console(width=120).print(table)


_REBUILD = """
import resource, sys, time
from pathlib import Path
from tta_pipeline.domain.locations import Locations
from tta_pipeline.results.database.database import publish_metrics
started = time.perf_counter()
done = publish_metrics(Locations(root=Path(sys.argv[1])), rebuild=True)
wall_s, usage = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF)
assert not done.set_aside and done.num_added == int(sys.argv[2]), done
(peak,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
# Not ru_maxrss, which begins with the memory of the process that started this one.
print(f"{wall_s:.1f}", f"{usage.ru_utime + usage.ru_stime:.1f}", f"{int(peak.split()[1]) / 1e3:.0f}")
"""


def _measure_rebuild(root: Path) -> list[str]:
    """Return seconds, CPU seconds and peak memory of a rebuild in a separate process."""
    command = [sys.executable, "-c", _REBUILD, str(root), str(NUM_RECORDS)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


def _write_records(root: Path, count: int) -> int:
    """Write *count* records as evaluations do, but without fsync; return their total size in bytes."""
    num_bytes, random = 0, Random(0)  # noqa: S311 - figures for a measurement
    for number in range(count):
        cell, turn = number % 75, number // 75
        corruption, severity = shipped_sets()["imagenet_c"].names[cell // 5], cell % 5 + 1
        experiment, sequence = f"experiment_{turn % 100}", turn // 100 + 1
        facts = evaluation_facts(experiment=experiment, corruption=corruption, severity=severity, random=random)
        content = {
            "version": RECORD_VERSION, "kind": "evaluations", "run_id": f"{turn:08x}",
            "started_at": "2026-02-01T00:00:00+00:00", "versions": _VERSIONS, "facts": facts, "sequence": sequence,
        }  # fmt: skip
        folder = root / "imagenet_c" / "results" / "evaluations" / experiment / f"{corruption}-{severity}"
        folder.mkdir(parents=True, exist_ok=True)
        data = encode_record(content)
        (folder / record_file_name(sequence)).write_bytes(data)
        num_bytes += len(data)
    return num_bytes


def _make(locations: Locations) -> None:
    publish_metrics(locations)
    with duckdb.connect(locations.metrics) as connection:
        for statement in _ROWS.split(";\n"):
            has_parameter = "$num_rows" in statement
            connection.execute(statement, {"num_rows": NUM_ROWS} if has_parameter else None)
        records = connection.execute("SELECT folder, max(sequence) FROM evaluations GROUP BY folder").fetchall()
    _make_names(locations, records)
    with duckdb.connect(locations.metrics) as connection:
        connection.register("listed", list_records(locations.root).table())
        connection.execute("INSERT INTO ingested BY NAME SELECT *, 'made' AS sha256 FROM listed")
        (num_rows,) = connection.execute("SELECT count(*) FROM ingested").fetchone() or (0,)
        assert num_rows == NUM_ROWS


def _make_names(locations: Locations, records: Sequence[tuple[str, int]]) -> None:
    first = None
    num_names = 0
    for folder, newest in records:
        (locations.root / folder).mkdir(parents=True)
        for sequence in range(1, newest + 1):
            path = locations.root / folder / record_file_name(sequence)
            if first is None or num_names % _NAMES_OF_ONE_FILE == 0:
                path.touch()
                first = path
            else:
                os.link(first, path)
            num_names += 1
    time.sleep(2.5)  # younger files are read again at the next publication


def _two_runs(locations: Locations) -> list[str]:
    """Return two late runs of one experiment and seed."""
    rows = _ask(
        locations,
        "SELECT run_id FROM evaluations WHERE experiment = 'experiment_7' AND seed = 3 AND stream = 'fog|5' "
        "ORDER BY sequence DESC LIMIT 2",
    )
    return [run_id for (run_id,) in rows]


def _ask(locations: Locations, sql: str, parameters: list[str | None] | None = None) -> list[tuple[object, ...]]:
    with open_metrics(locations.metrics) as connection:
        rows: list[tuple[object, ...]] = connection.execute(sql, parameters).fetchall()
    return rows


def _publish_one(locations: Locations, within: Path | None = None) -> None:
    """Record one more evaluation of a cell, and publish it, as a run does with its folder of records *within*."""
    publish_record(
        locations.results("imagenet_c"), kind="evaluations", name="experiment_7/fog-5", run_id="new",
        started_at="2026-02-01T00:00:00+00:00",
        facts=evaluation_facts(experiment="experiment_7", corruption="fog", severity=5, random=Random(0)),  # noqa: S311
    )  # fmt: skip
    assert publish_metrics(locations, within=within).num_added == 1


_VERSIONS = {"python": "3.11.7", "platform": "Linux", "host": "node17", "torch": "2.13", "tta_pipeline": "1.0"}


def evaluation_facts(*, experiment: str, corruption: str, severity: int, random: Random) -> dict[str, Any]:
    """Return the facts of an evaluation of 5,000 images of 200 classes in batches of 64."""
    by_class = [25] * 200
    correct = [random.randrange(26) for _ in by_class]
    counts = [5000 // 15] * 14 + [5000 - 5000 // 15 * 14]
    share = sum(correct) / 5000
    correct_of_bins = [int(count * share) for count in counts]
    correct_of_bins[-1] += sum(correct) - sum(correct_of_bins)
    bins = CalibrationBins(
        counts=tuple(counts),
        confidence_sums=tuple(random.random() * count for count in counts),
        correct_counts=tuple(correct_of_bins),
    )
    batches = Batches(
        num_samples=(64,) * (_NUM_BATCHES - 1) + (5000 - 64 * (_NUM_BATCHES - 1),),
        data_wait_s=tuple(round(random.random(), 9) for _ in range(_NUM_BATCHES)),
        host_to_device_s=tuple(round(random.random(), 9) for _ in range(_NUM_BATCHES)),
        compute_s=tuple(round(random.random(), 9) for _ in range(_NUM_BATCHES)),
        num_correct=(*tuple((sum(correct) + number) // (_NUM_BATCHES - 1) for number in range(_NUM_BATCHES - 1)), 0),
        num_unadapted=None,
        num_resets=None,
        num_unknown=None,
        source_agreement=None,
        **{name: tuple(round(random.random(), 4) for _ in range(_NUM_BATCHES)) for name in LABEL_FREE[:3]},
    )
    waited_s, computed_s = sum(batches.data_wait_s), sum(batches.compute_s)
    wall_s = waited_s + computed_s
    return asdict(
        Evaluation(
            benchmark="imagenet_c", shift_set="imagenet_c", from_features=False,
            experiment=experiment, stream=f"{corruption}|{severity}", position=0,
            corruption=corruption, severity=severity, seed=0, subset="all", subset_sha256=None, model="resnet50",
            architecture="torchvision resnet50", weights="IMAGENET1K_V2", weights_sha256="0" * 64,
            mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), method="tent", protocol="reset_each_shift",
            generated=False, config="{}", hyperparameters_origin="published", code_sha256="0" * 64,
            fingerprint=hashlib.sha256(b"{}").hexdigest(), fingerprint_parts="{}",
            copied_from=None, manifest_sha256="2" * 64, num_images=5000, num_classes_found=200, num_shards=16,
            payload_bytes=10**8, shard_bytes=10**8, stored_order="permuted, seed 0", stream_order="stored",
            order_hash="3" * 64, metrics_version=METRICS_VERSION, num_samples=5000, num_correct=sum(correct),
            num_correct_top5=sum(correct), error=1 - sum(correct) / 5000, top5_error=1 - sum(correct) / 5000, nll=2.0,
            brier=0.5, ece=bins.ece, max_calibration_error=bins.max_error, rms_calibration_error=bins.rms_error,
            calibration=bins,
            class_counts=ClassCounts(num_samples=tuple(by_class), num_correct=tuple(correct)),
            num_predicted_classes=200, mean_entropy=0.5, mean_confidence=0.5, predicted_class_entropy=0.5,
            **_ABSENT, adaptive_ece=0.1, class_wise_ece=0.1, aurc=0.1,
            diverged=False, predictions_sha256=f"{random.getrandbits(256):064x}",
            samples_sha256=None,
            first_samples=FirstSamples(
                positions=tuple(range(10)), predictions=tuple(range(10)), confidences=(0.5,) * 10
            ),
            num_forwards=5000, num_backwards=5000, num_adapted_samples=5000, num_unadapted=0,
            num_updates=_NUM_BATCHES, num_resets=0, num_nonfinite_batches=0, device="NVIDIA H200",
            gpu_name="NVIDIA H200", cpu_model="AMD EPYC 9654", num_cores=16, decode_threads=8, compute_threads=16,
            batch_size=64, precision="bf16", compile="off", pinned_memory=True, load_average=1.0,
            num_batches=_NUM_BATCHES, staging_s=0.0, metadata_scan_s=0.1, pipeline_setup_s=0.1,
            time_to_first_batch_s=0.1, first_batch_compute_s=0.1, wall_s=wall_s, images_per_s=5000 / wall_s,
            data_wait_s=waited_s, starved_s=0.1, host_to_device_s=0.1, compute_s=computed_s,
            peak_cuda_gib=4.0, peak_rss_gib=3.0,
            batches=batches,
        )
    )  # fmt: skip


_ABSENT: dict[str, Any] = dict.fromkeys((
    "visit", "shift_position", "shift_family", "shift_group", "in_mean", "tuning",
    "frozen_layers", "num_adapted_parameters", "source_agreement", "probed", "num_unknown", "auroc",
    "fpr95", "aupr", "known_threshold", "unknown_rejected", "h_score", "streams_per_device",
))  # fmt: skip
"""Fields that do not apply to such an evaluation."""


def _time(work: Callable[[], object]) -> tuple[str, str]:
    """Return the time of *work* in milliseconds, median and range, and the median of its CPU time."""
    times_ms, cpu_ms = [], []
    for repeat in range(REPEATS + 1):
        started, started_cpu = time.perf_counter(), time.process_time()
        work()
        if repeat:  # the first warms up
            times_ms.append(1000 * (time.perf_counter() - started))
            cpu_ms.append(1000 * (time.process_time() - started_cpu))
    return spread(times_ms), f"{statistics.median(cpu_ms):,.0f}"


if __name__ == "__main__":
    main()
