"""The database with a million evaluations: `python -m bench.metrics`.

A hundred experiments, mixed streams over ten corruptions at five severities, five seeds each, each timed forty times:
100,000 files of ten cells. The rows are copies of one real result, made with SQL, since measuring them would take
days. Their files are links to one empty file, so that they are listed like real ones. The timed operations are a
user's and a run's: open the database and query it, store a result and publish it.
"""

import hashlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import duckdb
from rich.console import Console
from rich.table import Table

from bench.figures import spread
from tta_pipeline.data.datasets.dataset_files import shipped_sets
from tta_pipeline.domain.locations import Locations
from tta_pipeline.report import queries
from tta_pipeline.results.database.changes import contents
from tta_pipeline.results.database.database import open_metrics
from tta_pipeline.results.database.publication import publish_metrics
from tta_pipeline.results.evaluation_parts import (
    LABEL_FREE,
    Batches,
    Calibration,
    CalibrationBins,
    CellInStream,
    CellLabels,
    ClassCounts,
    Cost,
    FirstSamples,
    LabelFreeScores,
    MachineUse,
    Predicted,
    Scores,
    Setup,
    ShiftFacts,
    Timing,
)
from tta_pipeline.results.evaluation_record import Evaluation
from tta_pipeline.results.plans import (
    Labels,
    Plan,
    PlannedSegment,
    PlannedStream,
    folder_of_key,
    write_plan,
)
from tta_pipeline.results.result_files import Result, name_of, store_result, utc_now

NUM_FILES = 100_000
NUM_EXPERIMENTS, NUM_SEEDS, NUM_TIMINGS = 100, 5, 40
CORRUPTIONS = shipped_sets()["imagenet_c"].names[:10]
SEVERITIES = (1, 2, 3, 4, 5)
NUM_ROWS = NUM_FILES * len(CORRUPTIONS)
REPEATS = 7
_NUM_BATCHES = 79
_NAMES_OF_ONE_FILE = 50_000  # ext4 allows 65,000
_BENCHMARK = "imagenet_c"

# File f belongs to experiment f % 100, severity f // 100 % 5 + 1 and seed f // 500 % 5; numbers that differ are spread
# by primes.
_MADE = """
CREATE TEMP TABLE template AS FROM evaluations;
DELETE FROM evaluations; DELETE FROM class_results; DELETE FROM batch_results;
CREATE TEMP TABLE first AS FROM results;
DELETE FROM results;
CREATE TEMP TABLE made AS
SELECT
    f, 'experiment_' || (f % 100) AS experiment, f // 100 % 5 + 1 AS severity, f // 500 % 5 AS seed,
    sha256('f' || f % 2500) AS fingerprint, sha256('c' || f) AS sha256,
    format('results/imagenet_c/{}/{}-{}.json', severity, fingerprint[:16], sha256[:8]) AS file
FROM range($num_files) AS rows(f);
INSERT INTO results BY NAME
SELECT
    made.file, NULL AS source, 'evaluation' AS kind, made.sha256, 0 AS size_bytes, made.fingerprint, NULL AS previous,
    strftime(TIMESTAMP '2026-01-01' + to_seconds(f), '%Y-%m-%dT%H:%M:%S+00:00') AS finished_at, first.device
FROM made, first ORDER BY f;
INSERT INTO evaluations BY NAME
SELECT
    template.* REPLACE (
        made.file AS file, format('{:08x}', f // 2500) AS run_id, made.experiment AS experiment,
        made.experiment AS made_as, made.seed AS seed, made.severity AS severity, made.severity::VARCHAR AS stream,
        made.fingerprint AS fingerprint, sha256('p' || f % 2500 || corruption) AS predictions_sha256,
        20 + f * 16807 % 99991 / 1e5 AS wall_s, num_samples / (20 + f * 16807 % 99991 / 1e5) AS images_per_s,
        random() AS brier, 3 * random() AS nll, FALSE AS counts
    )
FROM made, template ORDER BY f, corruption;
"""


def main() -> None:
    """Make the rows, query and publish, and print the times next to the requirements."""
    data = Path(os.environ.get("TTA_DATA_ROOT", "data")) / "bench"
    data.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=data) as folder:
        locations = Locations(root=Path(folder).absolute())
        _make(locations)
        table = Table(title=f"{NUM_ROWS:,} evaluations, {locations.metrics.stat().st_size / 1e6:,.0f} MB, "
                            f"{os.cpu_count()} cores, duckdb {duckdb.__version__}")  # fmt: skip
        for name in ("what", "ms, median [range]", "CPU ms", "asked"):
            table.add_column(name)
        runs = [f"{number:08x}" for number in (NUM_TIMINGS - 2, NUM_TIMINGS - 1)]
        table.add_row("open, leaderboard", *_time(lambda: _ask(locations, queries.ALL_LEADERBOARDS, [None])), "< 100")
        table.add_row("open, compare two runs", *_time(lambda: _ask(locations, queries.COMPARISON, runs)), "< 100")
        table.add_row("open, errors by corruption", *_time(lambda: _ask(locations, queries.BY_CORRUPTION, [None])), "")
        table.add_row("store a result and publish it", *_time(lambda: _publish_one(locations)), "< 500")
        table.add_row("publish without news", *_time(lambda: publish_metrics(locations)), "< 500")
    Console(width=120).print(table)
    with tempfile.TemporaryDirectory(dir=data) as folder:
        root = Path(folder).absolute()
        size_mb = _write_results(root, NUM_FILES) / 1e6
        table = Table(title=f"rebuild from {NUM_FILES:,} results of {_NUM_BATCHES} batches, {size_mb:,.0f} MB")
        for name in ("wall s", "CPU s", "peak MB", "asked"):
            table.add_column(name)
        table.add_row(*_measure_rebuild(root), "< 20 s, < 500 MB")
    Console(width=120).print(table)


_REBUILD = """
import resource, sys, time
from pathlib import Path
from tta_pipeline.domain.locations import Locations
from tta_pipeline.results.database.publication import publish_metrics
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
    command = [sys.executable, "-c", _REBUILD, str(root), str(NUM_FILES)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


def _write_results(root: Path, count: int) -> int:
    """Write *count* results of one cell as evaluations do, but without fsync; return their total size in bytes."""
    num_bytes, random = 0, Random(0)  # noqa: S311 - figures for a measurement
    names = shipped_sets()["imagenet_c"].names
    for number in range(count):
        cell, turn = number % 75, number // 75
        row = evaluation(
            experiment=f"experiment_{turn % 100}", corruption=names[cell // 5], severity=cell % 5 + 1, random=random,
            parts=f'{{"of":{number}}}',
        )  # fmt: skip
        result = result_of([row], run_id=f"{turn:08x}")
        data = result.encoded()
        path = Locations(root=root).results(_BENCHMARK) / result.key / name_of(result, data)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        num_bytes += len(data)
    return num_bytes


def _make(locations: Locations) -> None:
    random = Random(0)  # noqa: S311 - figures for a measurement
    rows = [
        evaluation(experiment="experiment_0", corruption=name, severity=1, stream="1", random=random)
        for name in CORRUPTIONS
    ]
    stored = store_result(locations.results(_BENCHMARK), result_of(rows, run_id="0"))
    publish_metrics(locations)
    stored.path.unlink()
    with duckdb.connect(locations.metrics) as connection:
        for statement in _MADE.split(";\n"):
            has_parameter = "$num_files" in statement
            connection.execute(statement, {"num_files": NUM_FILES} if has_parameter else None)
        files = [file for (file,) in connection.execute("SELECT file FROM results").fetchall()]
        connection.execute("DELETE FROM contents")  # otherwise the rows would count as damaged and be made again
        for name, found in contents(connection).items():
            connection.execute("INSERT INTO contents VALUES (?, ?, ?)", [name, *found])
    _make_names(locations, files)
    for number in range(NUM_EXPERIMENTS):
        write_plan(locations, _plan(number))
    assert publish_metrics(locations).num_added == 0
    ((num_counting,),) = _ask(locations, "SELECT count(*) FROM evaluations WHERE counts")
    assert num_counting == NUM_ROWS // NUM_TIMINGS


def _plan(number: int) -> Plan:
    """Return the plan of the experiment with this *number*: a stream for each severity and seed."""
    facts = replace(_SHIFT, counts_in_mean=True)
    streams = []
    for seed in range(NUM_SEEDS):
        for severity in SEVERITIES:
            fingerprint = _sha256(f"f{number + 100 * (severity - 1) + 500 * seed}".encode())
            cells = tuple(f"{name}|{severity}" for name in CORRUPTIONS)
            segment = PlannedSegment(fingerprint=fingerprint, cells=cells)
            streams.append(PlannedStream(key=str(severity), seed=seed, segments=(segment,)))
    labels = Labels(
        experiment=f"experiment_{number}", model="resnet50", dataset=_BENCHMARK, hyperparameters_origin="published",
        shifts=dict.fromkeys(CORRUPTIONS, facts),
    )  # fmt: skip
    return Plan(benchmark=_BENCHMARK, file_sha256="0" * 64, labels=labels, streams=tuple(streams))


def _sha256(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def _make_names(locations: Locations, files: Sequence[str]) -> None:
    first = locations.root / files[0]
    for number, file in enumerate(files):
        path = locations.root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        if number % _NAMES_OF_ONE_FILE:
            path.hardlink_to(first)
        else:
            path.touch()
            first = path


def _ask(locations: Locations, sql: str, parameters: list[str | None] | None = None) -> list[tuple[object, ...]]:
    with open_metrics(locations.metrics) as connection:
        rows: list[tuple[object, ...]] = connection.execute(sql, parameters).fetchall()
    return rows


def _publish_one(locations: Locations) -> None:
    """Store one more timing of a stream, and publish it, as a run does."""
    random = Random(0)  # noqa: S311 - figures for a measurement
    rows = [
        evaluation(experiment="experiment_7", corruption=name, severity=5, stream="5", random=random)
        for name in CORRUPTIONS
    ]
    store_result(locations.results(_BENCHMARK), result_of(rows, run_id="new"))
    assert publish_metrics(locations).num_added == 1


_VERSIONS = {"python": "3.11.7", "platform": "Linux", "host": "node17", "torch": "2.13", "tta_pipeline": "1.0"}


def result_of(rows: Sequence[Evaluation], *, run_id: str) -> Result:
    """Return the result of a segment with *rows*, measured now."""
    now = utc_now()
    return Result(
        kind="evaluation", benchmark=rows[0].cell.benchmark, key=folder_of_key(rows[0].cell.stream),
        fingerprint=rows[0].setup.fingerprint, run_id=run_id, started_at=now, finished_at=now, versions=_VERSIONS,
        evaluations=tuple(rows),
    )  # fmt: skip


def evaluation(
    *, experiment: str, corruption: str, severity: int, random: Random, stream: str = "", parts: str = "{}"
) -> Evaluation:
    """Return an evaluation of 5,000 images of 200 classes in batches of 64.

    Args:
        experiment: Name of the experiment.
        corruption: Name of the corruption.
        severity: Its severity.
        random: Source of the figures.
        stream: Key of the stream; empty: the cell is evaluated alone.
        parts: Parts of the fingerprint, as JSON.
    """
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
    return Evaluation(
        labels=CellLabels(
            experiment=experiment, model="resnet50", dataset=_BENCHMARK, hyperparameters_origin="published",
            tuning=None, shift=_SHIFT,
        ),
        cell=CellInStream(
            benchmark=_BENCHMARK, stream=stream or f"{corruption}|{severity}", position=0, visit=None,
            corruption=corruption, severity=severity, seed=0, subset="all", generated=False, manifest_sha256="2" * 64,
            stream_order="stored", order_hash="3" * 64,
        ),
        setup=Setup(
            architecture="torchvision resnet50", weights="IMAGENET1K_V2", weights_sha256="0" * 64, method="tent",
            protocol="reset_each_shift", config="{}", frozen_layers=None, num_adapted_parameters=None,
            fingerprint=_sha256(parts.encode()), fingerprint_parts=parts,
        ),
        scores=Scores(
            num_samples=5000, num_correct=sum(correct), error=1 - share, top5_error=1 - share, nll=2.0, brier=0.5,
            diverged=False, class_counts=ClassCounts(num_samples=tuple(by_class), num_correct=tuple(correct)),
        ),
        calibration=Calibration(ece=bins.ece, adaptive_ece=0.1, class_wise_ece=0.1, aurc=0.1, bins=bins),
        label_free=LabelFreeScores(
            mean_entropy=0.5, mean_confidence=0.5, predicted_class_entropy=0.5, source_agreement=None,
            neighbourhood_density=None, view_agreement=None,
        ),
        unknown=None,
        predicted=Predicted(
            predictions_sha256=f"{random.getrandbits(256):064x}", samples_sha256=None,
            first_samples=FirstSamples(
                positions=tuple(range(10)), predictions=tuple(range(10)), confidences=(0.5,) * 10
            ),
        ),
        cost=Cost(
            num_forwards=5000, num_backwards=5000, num_adapted_samples=5000, num_unadapted=0, num_updates=_NUM_BATCHES,
            num_resets=0, num_nonfinite_batches=0, peak_cuda_gib=4.0, peak_rss_gib=3.0,
        ),
        machine=MachineUse(
            device="NVIDIA H200", cpu_model="AMD EPYC 9654", num_cores=16, decode_threads=8, compute_threads=16,
            streams_per_device=None, batch_size=64, precision="bf16", compile="off", from_features=False,
            other_load=0.0,
        ),
        time=Timing(
            num_batches=_NUM_BATCHES, metadata_scan_s=0.1, pipeline_setup_s=0.1,
            time_to_first_batch_s=0.1, first_batch_compute_s=0.1, wall_s=wall_s, images_per_s=5000 / wall_s,
            data_wait_s=waited_s, device_idle_s=0.1, host_to_device_s=0.1, compute_s=computed_s, batches=batches,
        ),
    )  # fmt: skip


_SHIFT = ShiftFacts(shift_position=None, shift_family=None, shift_group=None, counts_in_mean=None)


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
