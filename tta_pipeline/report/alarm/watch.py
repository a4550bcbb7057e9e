"""Watch the cells of a benchmark: compare the kept confidences on each with those on clean images."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tta_pipeline.benchmarks.alarm_settings import Alarm
from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.places import Place
from tta_pipeline.errors import RecordError
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.loading.stream_order import shuffled_order
from tta_pipeline.report.alarm.martingale import Numbers, alarm_at, conformal_ranks, log_wealth
from tta_pipeline.report.significance.judged_cells import read_predictions
from tta_pipeline.results.alarm_record import ALARM_VERSION, WatchedBenchmark, WatchedCell
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.util.locations import Locations
from tta_pipeline.util.partitions import CLEAN

_MOST_POINTS = 200
"""Numbers of a cell's wealth that a record keeps, for the curve."""


@dataclass(frozen=True, kw_only=True)
class _Confidences:
    """Confidences of a cell's samples in stream order."""

    keys: npt.NDArray[np.str_]
    confidences: Numbers
    positions: npt.NDArray[np.int64]
    predictions_sha256: str
    shard_set: ShardSet


def watch_benchmark(
    benchmark: Benchmark, locations: Locations, *, tell: Callable[[str], None]
) -> WatchedBenchmark | None:
    """Return the alarm over each evaluated cell of *benchmark*, and over the clean images that are not calibration.

    None: the clean images were not evaluated yet, so there is nothing to compare with.

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
    recorded = results.recorded_keys()
    if CLEAN not in recorded:
        return None
    clean = _read(results, results.places(CLEAN)[0])
    is_calibration = _draw_calibration(clean, settings, name)
    cells = []
    for key in results.keys:
        if key in recorded:
            place = results.places(key)[0]
            read = clean if key == CLEAN else _read(results, place)
            left_out = np.isin(read.keys, clean.keys[is_calibration])
            cells.append(_watch_cell(clean.confidences[is_calibration], read, left_out, place, settings))
            tell(f"{key.key}: {say_alarm(cells[-1])}")
    return WatchedBenchmark(
        benchmark=benchmark.file,
        shift_set=benchmark.shift_set.name,
        experiment=name,
        score="confidence",
        level=settings.level,
        num_calibration=settings.num_calibration,
        calibration_seed=settings.seed,
        calibration_sha256=clean.predictions_sha256,
        alarm_version=ALARM_VERSION,
        cells=tuple(cells),
    )


def say_alarm(cell: WatchedCell) -> str:
    """Return in words when the alarm was raised over *cell*."""
    if cell.alarm_at is None:
        return f"no alarm in {cell.num_samples:,} images"
    return f"alarm after {cell.alarm_at:,} of {cell.num_samples:,} images"


def _read(results: ExperimentResults, place: Place) -> _Confidences:
    """Return the kept confidences of *place*."""
    row = results.row(place)
    shard_set = ShardSet.open(results.folder(place.cell), results.expected_shard_set(place.cell))
    kept = read_predictions(results, place, row, shard_set)
    return _Confidences(
        keys=np.array(shard_set.index.keys)[kept.positions],
        confidences=kept.confidences.astype(np.float64),
        positions=kept.positions,
        predictions_sha256=kept.sha256,
        shard_set=shard_set,
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
    drawn_order = shuffled_order(clean.shard_set.index, seed=settings.seed).indices
    evaluated = drawn_order[np.isin(drawn_order, clean.positions)]
    return np.isin(clean.positions, evaluated[: settings.num_calibration])


def _watch_cell(
    calibration: Numbers, read: _Confidences, left_out: npt.NDArray[np.bool_], place: Place, settings: Alarm
) -> WatchedCell:
    wealth = log_wealth(conformal_ranks(calibration, read.confidences[~left_out], seed=settings.seed))
    shown = np.unique(np.geomspace(1, len(wealth), _MOST_POINTS).round().astype(np.int64))
    return WatchedCell(
        corruption=place.cell.corruption,
        severity=place.cell.severity,
        num_samples=len(wealth),
        num_left_out=int(left_out.sum()),
        alarm_at=alarm_at(wealth, level=settings.level),
        max_log10_wealth=float(wealth.max()) / math.log(10),
        wealth_images=tuple(shown.tolist()),
        log10_wealth=tuple((wealth[shown - 1] / math.log(10)).round(3).tolist()),
        predictions_sha256=read.predictions_sha256,
    )
