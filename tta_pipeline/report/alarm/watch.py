"""Watch the cells of a benchmark: compare the kept confidences on each with those on clean images."""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tta_pipeline.benchmarks.alarm_settings import Alarm
from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.places import Place
from tta_pipeline.benchmarks.watch_settings import STREAM
from tta_pipeline.benchmarks.watched_stream import stream_benchmark
from tta_pipeline.errors import RecordError
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.report.alarm.martingale import Numbers, alarm_at, conformal_ranks, log_wealth
from tta_pipeline.report.significance.judged_cells import read_predictions
from tta_pipeline.results.alarm_record import ALARM_VERSION, WatchedBenchmark, WatchedCell
from tta_pipeline.results.evaluation_record import Evaluation
from tta_pipeline.shards.ordering import permuted
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.util.locations import Locations
from tta_pipeline.util.partitions import CLEAN, Cell

_ARRIVED = Cell(corruption=STREAM, severity=0)
_MOST_POINTS = 200
"""Numbers of a cell's wealth that a record keeps, for the curve."""


@dataclass(frozen=True, kw_only=True)
class _Confidences:
    """Confidences of samples in stream order, (N,)."""

    keys: npt.NDArray[np.str_]
    confidences: Numbers
    samples_sha256: str


def watch_benchmark(
    benchmark: Benchmark, locations: Locations, *, tell: Callable[[str], None]
) -> WatchedBenchmark | None:
    """Return the alarm over each cell with a current result, and over the clean images that are not calibration.

    If the benchmark watches a folder, what arrived there is one further stream, day by day.

    None: the clean images have no current result, so there is nothing to compare with.

    Args:
        benchmark: A benchmark whose file has a section `alarm`.
        locations: Paths of shards, records and kept predictions.
        tell: Called with a line for each cell.

    Raises:
        RecordError: predictions were not kept or are damaged, or there are too few clean images.
        ManifestError: shards cannot be read.
    """
    settings, name = benchmark.alarm, benchmark.watched_experiment
    assert settings is not None, "a benchmark with an alarm"
    results = ExperimentResults(benchmark=benchmark, experiment_name=name, locations=locations)
    rows = results.first_rows()
    if CLEAN not in rows:
        return None
    clean = _read(results, *rows[CLEAN])
    is_calibration = _draw_calibration(clean, settings, name)
    cells = []
    for key, (place, row) in rows.items():
        read = clean if key == CLEAN else _read(results, place, row)
        left_out = np.isin(read.keys, clean.keys[is_calibration])
        cells.append(_watch_cell(clean.confidences[is_calibration], read, left_out, place.cell, settings))
        tell(f"{key.key}: {say_alarm(cells[-1])}")
    if arrived := _read_arrivals(benchmark, locations, name):
        nothing = np.zeros(len(arrived.keys), np.bool_)
        cells.append(_watch_cell(clean.confidences[is_calibration], arrived, nothing, _ARRIVED, settings))
        tell(f"images that arrived: {say_alarm(cells[-1])}")
    return WatchedBenchmark(
        benchmark=benchmark.file,
        shift_set=benchmark.shift_set.name,
        experiment=name,
        score="confidence",
        level=settings.level,
        num_calibration=settings.num_calibration,
        calibration_seed=settings.seed,
        calibration_sha256=clean.samples_sha256,
        alarm_version=ALARM_VERSION,
        cells=tuple(cells),
    )


def say_alarm(cell: WatchedCell) -> str:
    """Return in words when the alarm was raised over *cell*."""
    if cell.alarm_at is None:
        return f"no alarm in {cell.num_samples:,} images"
    return f"alarm after {cell.alarm_at:,} of {cell.num_samples:,} images"


def _read(results: ExperimentResults, place: Place, row: Evaluation) -> _Confidences:
    """Return the kept confidences of *row*, the result of *place*."""
    shard_set = ShardSet.open(results.folder(place.cell), results.expected_shard_set(place.cell))
    kept = read_predictions(results, place, row, shard_set)
    return _Confidences(
        keys=np.array(shard_set.index.keys)[kept.positions],
        confidences=kept.confidences.astype(np.float64),
        samples_sha256=str(row.samples_sha256),
    )


def _read_arrivals(benchmark: Benchmark, locations: Locations, name: str) -> _Confidences | None:
    """Return the confidences on all images that arrived, in the order of the days; None if there are none."""
    if benchmark.watch is None or name not in benchmark.watch.experiments:
        return None
    results = ExperimentResults(
        benchmark=stream_benchmark(benchmark, locations), experiment_name=name, locations=locations
    )
    days = [_read(results, *found) for found in results.first_rows().values()]
    if not days:
        return None
    return _Confidences(
        keys=np.concatenate([each.keys for each in days]),
        confidences=np.concatenate([each.confidences for each in days]),
        samples_sha256=hashlib.sha256("".join(each.samples_sha256 for each in days).encode()).hexdigest(),
    )


def _draw_calibration(clean: _Confidences, settings: Alarm, name: str) -> npt.NDArray[np.bool_]:
    """Return which of the evaluated clean images are the calibration; at least as many are left to be watched.

    Raises:
        RecordError: there are too few.
    """
    if 2 * settings.num_calibration > len(clean.keys):
        raise RecordError(
            f"{name} evaluated {len(clean.keys):,} clean images; expected at least twice alarm.num_calibration, "
            f"{settings.num_calibration:,}: half are compared with, and half are watched: set a lower number"
        )
    is_calibration = np.zeros(len(clean.keys), np.bool_)
    is_calibration[permuted(clean.keys.tolist(), seed=settings.seed)[: settings.num_calibration]] = True
    return is_calibration


def _watch_cell(
    calibration: Numbers, read: _Confidences, left_out: npt.NDArray[np.bool_], cell: Cell, settings: Alarm
) -> WatchedCell:
    wealth = log_wealth(conformal_ranks(calibration, read.confidences[~left_out], seed=settings.seed))
    shown = np.unique(np.geomspace(1, len(wealth), _MOST_POINTS).round().astype(np.int64))
    return WatchedCell(
        corruption=cell.corruption,
        severity=cell.severity,
        num_samples=len(wealth),
        num_left_out=int(left_out.sum()),
        alarm_at=alarm_at(wealth, level=settings.level),
        max_log10_wealth=float(wealth.max()) / math.log(10),
        wealth_images=tuple(shown.tolist()),
        log10_wealth=tuple((wealth[shown - 1] / math.log(10)).round(3).tolist()),
        samples_sha256=read.samples_sha256,
    )
