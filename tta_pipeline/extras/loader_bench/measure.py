"""Measures loaders in turn, and returns a row for each: medians of the repeats, with the range."""

import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tta_pipeline.errors import LoaderError, PipelineError, WorkerError
from tta_pipeline.extras.loader_bench.loaders import LOADERS, describe_error
from tta_pipeline.extras.loader_bench.prepared_data import PreparedData, prepared
from tta_pipeline.extras.loader_bench.process_memory import watched
from tta_pipeline.extras.loader_bench.timed_read import (
    Normalization,
    ReadTimes,
    TimedRead,
    prepare_read,
    time_read,
    warm_up,
)
from tta_pipeline.loading.device import accelerator_kind
from tta_pipeline.loading.staging import Stage
from tta_pipeline.util.files import scratch_folder
from tta_pipeline.util.processes import Workers
from tta_pipeline.util.short_lists import abbreviate_list

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How loaders are measured."""

    batch_size: int = 64
    num_threads: tuple[int, ...] = (len(os.sched_getaffinity(0)),)
    """Numbers of threads or worker processes to try; the fastest becomes the loader's row. 0: the consumer decodes."""
    num_processes: int = 1
    """Number of processes that each read a part of the shard set."""
    repeats: int = 3
    normalization: Normalization = "own"
    device: str = "cpu"
    """Device on which images are normalised, if normalisation is on the device."""


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """A loader with a number of threads."""

    loader: str
    num_threads: int


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One repeat of one configuration; over several processes, the longest time and the sum of the samples."""

    images_per_s: float
    time_to_first_batch_s: float
    cpu_s_per_image: float
    mb_per_s: float
    """Speed of reading in image files' bytes, 10^6 bytes per second."""
    peak_memory_mib: float
    """Anonymous and shared memory of the processes and their workers, sampled during the warm-up."""
    base_memory_mib: float
    """The same memory after all imports, before the loader is constructed."""


@dataclass(frozen=True, kw_only=True)
class LoaderRow:
    """A loader at its best number of threads: medians of the repeats."""

    loader: str
    version: str
    """Version of the loader's package."""
    manifest_sha256: str
    output: str
    """Content of the loader's batches: uint8, or float32 normalised in the loader."""
    num_threads: int
    num_processes: int
    batch_size: int
    normalization: str
    device: str
    format: str
    image_size: int
    num_samples: int
    payload_bytes: int
    staging_mb_per_s: float | None
    """Speed of the verified copy of the shards to node-local disk before reading; None if they were read in place."""
    repeats: int
    images_per_s: float
    images_per_s_min: float
    images_per_s_max: float
    images_per_s_of_repeats: tuple[float, ...]
    time_to_first_batch_s: float
    time_to_first_batch_s_min: float
    time_to_first_batch_s_max: float
    cpu_s_per_image: float
    mb_per_s: float
    peak_memory_mib: float
    base_memory_mib: float


class LoaderResults(NamedTuple):
    """Rows of the measured loaders, and reasons for the others."""

    rows: tuple[LoaderRow, ...]
    not_measured: Mapping[str, str]
    """Reason why a loader was not measured, by its name."""


def compare(
    location: str,
    loaders: Sequence[str],
    settings: Settings,
    report: Callable[[str], None],
    *,
    is_staged: bool = False,
) -> LoaderResults:
    """Measure *loaders* in turn over the shard set at *location* and return a row for each, in their order.

    A loader that itself fails, for example because it is only partly installed, is left out; the others are measured.

    Args:
        location: Folder of shards and manifest, or a URL, whose shards are always staged.
        loaders: Names of installed loaders.
        settings: How to measure.
        report: Called with a line after every read.
        is_staged: Whether the shards are copied to node-local disk first, which is timed separately.

    Raises:
        ManifestError: the shards disagree with the manifest.
        LoaderError: none of *loaders* can read this shard set here, or the device does not exist.
        StreamError: a loader delivered other samples than the manifest names.
    """
    with (
        _nearby(location, report, is_staged=is_staged or "://" in location) as (folder, staging_mb_per_s),
        prepared(folder, loaders, num_processes=settings.num_processes) as data,
    ):
        found = measure(data, loaders, settings, report)
    rows = tuple(replace(row, staging_mb_per_s=staging_mb_per_s) for row in found.rows)
    return LoaderResults(rows, found.not_measured)


@contextmanager
def _nearby(location: str, report: Callable[[str], None], *, is_staged: bool) -> Iterator[tuple[Path, float | None]]:
    """Yield the folder to read from, and the MB/s at which the shards were copied there."""
    if not is_staged:
        yield Path(location), None
        return
    with scratch_folder("loader-bench-stage") as root:
        # The stage is empty, so only the copying is timed; the disk's free space is the limit.
        stage = Stage(root=root, limit_bytes=shutil.disk_usage(root).free, tell=report)
        started = time.perf_counter()
        with stage.shard_set(location) as shard_set:
            mb_per_s = shard_set.manifest.shard_bytes / (time.perf_counter() - started) / 1e6
            report(f"staged {shard_set.manifest.shard_bytes / 1e6:,.1f} MB at {mb_per_s:,.0f} MB/s, verified")
            yield shard_set.folder, mb_per_s


def measure(
    data: PreparedData, loaders: Sequence[str], settings: Settings, report: Callable[[str], None]
) -> LoaderResults:
    """Measure *loaders* as `compare` does, on prepared data.

    Raises:
        LoaderError: the device does not exist, or no loader could be measured.
        StreamError: a loader delivered other samples than the manifest names.
    """
    found = ("cpu", accelerator_kind())
    if settings.device not in found:
        raise LoaderError(f"device is {settings.device!r}; expected one of {', '.join(dict.fromkeys(found))}")
    not_measured = {name: data.not_measured[name] for name in loaders if name in data.not_measured}
    configs = [
        LoaderConfig(loader=name, num_threads=count)
        for name in loaders
        if name not in not_measured
        for count in settings.num_threads
    ]
    measured: dict[LoaderConfig, list[Measurement]] = {config: [] for config in configs}
    turns = [config for _ in range(settings.repeats) for config in configs]
    for number, config in enumerate(turns, start=1):
        if config.loader in not_measured:
            continue
        outcome = _try_to_measure(data, config, settings)
        if isinstance(outcome, str):
            not_measured[config.loader] = said = outcome
        else:
            measured[config].append(outcome)
            said = f"{outcome.images_per_s:,.0f} images/s"
        report(f"{number} of {len(turns)} passes: {config.loader}, {config.num_threads} threads: {said}")
    rows = tuple(_best_row(data, name, measured, settings) for name in loaders if name not in not_measured)
    if not rows:
        raise LoaderError(abbreviate_list(list(not_measured.values()), "; "))
    return LoaderResults(rows, not_measured)


def _try_to_measure(data: PreparedData, config: LoaderConfig, settings: Settings) -> Measurement | str:
    """Measure once; if the loader itself fails, or its process ends, return the reason instead."""
    try:
        return _measure_once(data, config, settings)
    except WorkerError as error:
        return f"loader {config.loader!r}: {error}"
    except PipelineError:
        raise
    except Exception as error:  # noqa: BLE001 - another library can raise anything
        return f"loader {config.loader!r} raised {describe_error(error)}; expected every sample: leave it out"


def _measure_once(data: PreparedData, config: LoaderConfig, settings: Settings) -> Measurement:
    """Warm up and time one configuration in new processes, one for each part of the data."""
    reads = [_timed_read(data, index, config, settings) for index in range(len(data.part_folders))]
    with ExitStack() as stack:
        readers = [stack.enter_context(Workers(1)) for _ in reads]

        def by_all(work: Callable[[TimedRead], Result]) -> list[Result]:
            futures = [reader.submit(work, one) for reader, one in zip(readers, reads, strict=True)]
            return [future.result() for future in futures]

        with watched(by_all(prepare_read)) as memory:
            by_all(warm_up)
        times = by_all(time_read)
    return _sum_parts(data, times, peak_mib=memory.peak_mib, base_mib=memory.base_mib)


def _timed_read(data: PreparedData, index: int, config: LoaderConfig, settings: Settings) -> TimedRead:
    part = data.part_folders[index]
    return TimedRead(
        loader=config.loader,
        shard_folder=part,
        prepared_folder=data.prepared_folder(part, config.loader),
        batch_size=settings.batch_size,
        image_size=data.image_size,
        num_threads=config.num_threads,
        normalization=settings.normalization,
        device=settings.device if settings.normalization == "device" else "cpu",
    )


def _sum_parts(data: PreparedData, times: Sequence[ReadTimes], *, peak_mib: float, base_mib: float) -> Measurement:
    num_samples, wall_s = sum(one.num_samples for one in times), max(one.wall_s for one in times)
    return Measurement(
        images_per_s=num_samples / wall_s,
        time_to_first_batch_s=max(one.time_to_first_batch_s for one in times),
        cpu_s_per_image=sum(one.cpu_s for one in times) / num_samples,
        mb_per_s=data.shard_set.manifest.payload_bytes / wall_s / 1e6,
        peak_memory_mib=peak_mib,
        base_memory_mib=base_mib,
    )


def _best_row(
    data: PreparedData, loader: str, measured: Mapping[LoaderConfig, Sequence[Measurement]], settings: Settings
) -> LoaderRow:
    """Return the row of the configuration of *loader* whose median speed is highest."""
    own = [config for config in measured if config.loader == loader]
    best = max(own, key=lambda config: statistics.median(one.images_per_s for one in measured[config]))
    repeats = [asdict(one) for one in measured[best]]
    manifest = data.shard_set.manifest
    return LoaderRow(
        loader=loader,
        version=LOADERS[loader].version or "not installed",
        manifest_sha256=manifest.sha256,
        output="uint8" if settings.normalization == "device" else LOADERS[loader].load().outputs[0],
        num_threads=best.num_threads,
        num_processes=len(data.part_folders),
        batch_size=settings.batch_size,
        normalization=settings.normalization,
        device=settings.device,
        format=manifest.encoding.format,
        image_size=data.image_size,
        num_samples=manifest.num_samples,
        payload_bytes=manifest.payload_bytes,
        staging_mb_per_s=None,
        repeats=len(repeats),
        images_per_s_of_repeats=tuple(repeat["images_per_s"] for repeat in repeats),
        **_medians(repeats),
    )


def _medians(repeats: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    medians = {name: statistics.median(repeat[name] for repeat in repeats) for name in repeats[0]}
    ranges = {
        f"{name}_{what}": pick(repeat[name] for repeat in repeats)
        for name in ("images_per_s", "time_to_first_batch_s")
        for what, pick in (("min", min), ("max", max))
    }
    return medians | ranges
