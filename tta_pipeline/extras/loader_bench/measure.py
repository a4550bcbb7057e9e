"""Measures loaders in turn, and returns a row for each: medians of the repeats, with the range."""

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from tta_pipeline.errors import LoaderError
from tta_pipeline.extras.loader_bench.loaders import Loader
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
from tta_pipeline.loading.copied_shards import copy_shard_set
from tta_pipeline.loading.device import accelerator_kind
from tta_pipeline.loading.shards_at_url import open_location
from tta_pipeline.util.files import scratch_folder
from tta_pipeline.util.processes import Workers

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

    name: str
    loader: Loader
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
    time_to_first_batch_s: float
    cpu_s_per_image: float
    mb_per_s: float
    peak_memory_mib: float
    base_memory_mib: float


def compare(
    location: str,
    loaders: Mapping[str, Loader],
    settings: Settings,
    report: Callable[[str], None],
    *,
    is_staged: bool = False,
) -> tuple[LoaderRow, ...]:
    """Measure *loaders* in turn over the shard set at *location* and return a row for each, in their order.

    Args:
        location: Folder of shards and manifest, or a URL, whose shards are always staged.
        loaders: Loaders by their names.
        settings: How to measure.
        report: Called with a line after every read.
        is_staged: Whether the shards are copied to node-local disk first, which is timed separately.
    """
    with (
        nearby(location, report, is_staged=is_staged) as (folder, staging_mb_per_s),
        prepared(folder, loaders, num_processes=settings.num_processes) as data,
    ):
        rows = measure(data, loaders, settings, report)
    return tuple(replace(row, staging_mb_per_s=staging_mb_per_s) for row in rows)


@contextmanager
def nearby(location: str, report: Callable[[str], None], *, is_staged: bool) -> Iterator[tuple[Path, float | None]]:
    """Yield the folder to read from, and the MB/s at which the shards were copied there; those at a URL always are."""
    if not is_staged and "://" not in location:
        yield Path(location), None
        return
    with scratch_folder("loader-bench-stage") as folder:
        shard_set = open_location(location)
        started = time.perf_counter()
        copy_shard_set(shard_set, folder)
        mb_per_s = shard_set.manifest.shard_bytes / (time.perf_counter() - started) / 1e6
        report(f"staged {shard_set.manifest.shard_bytes / 1e6:,.1f} MB at {mb_per_s:,.0f} MB/s, verified")
        yield folder, mb_per_s


def require_device(device: str) -> None:
    """Refuse a kind of device that this machine lacks."""
    found = ("cpu", accelerator_kind())
    if device not in found:
        raise LoaderError(f"device is {device!r}; expected one of {', '.join(dict.fromkeys(found))}")


def measure(
    data: PreparedData, loaders: Mapping[str, Loader], settings: Settings, report: Callable[[str], None]
) -> tuple[LoaderRow, ...]:
    """Measure *loaders* as `compare` does, on prepared data."""
    require_device(settings.device)
    configs = [
        LoaderConfig(name=name, loader=loader, num_threads=count)
        for name, loader in loaders.items()
        for count in settings.num_threads
    ]
    measured: dict[LoaderConfig, list[Measurement]] = {config: [] for config in configs}
    turns = [config for _ in range(settings.repeats) for config in configs]
    for number, config in enumerate(turns, start=1):
        outcome = _measure_once(data, config, settings)
        measured[config].append(outcome)
        report(
            f"{number} of {len(turns)} passes: {config.name}, {config.num_threads} threads: "
            f"{outcome.images_per_s:,.0f} images/s"
        )
    return tuple(_best_row(data, name, measured, settings) for name in loaders)


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
        name=config.name,
        loader=config.loader,
        shard_folder=part,
        prepared_folder=data.prepared_folder(part, config.name),
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
    data: PreparedData, name: str, measured: Mapping[LoaderConfig, Sequence[Measurement]], settings: Settings
) -> LoaderRow:
    """Return the row of the configuration of loader *name* whose median speed is highest."""
    own = [config for config in measured if config.name == name]
    best = max(own, key=lambda config: statistics.median(one.images_per_s for one in measured[config]))
    repeats = [asdict(one) for one in measured[best]]
    manifest = data.shard_set.manifest
    return LoaderRow(
        loader=name,
        version=best.loader.version,
        manifest_sha256=manifest.sha256,
        output="uint8" if settings.normalization == "device" else best.loader.load().outputs[0],
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
        **_medians(repeats),
    )


def _medians(repeats: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    speeds = [repeat["images_per_s"] for repeat in repeats]
    medians = {name: statistics.median(repeat[name] for repeat in repeats) for name in repeats[0]}
    return {**medians, "images_per_s_min": min(speeds), "images_per_s_max": max(speeds)}
