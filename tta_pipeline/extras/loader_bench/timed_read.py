"""One timed read of a whole shard set by one loader, in a separate process."""

import os
import resource
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from tta_pipeline.errors import StreamError
from tta_pipeline.extras.loader_bench.baseline import MEAN, STD, Baseline
from tta_pipeline.extras.loader_bench.loaders import Loader
from tta_pipeline.loading.device import as_floats, synchronize
from tta_pipeline.loading.reader import Batch
from tta_pipeline.loading.stream_order import StreamOrder, stored_order
from tta_pipeline.shards.shard_set import ShardSet

Normalization = Literal["own", "host", "device"]
"""Where images are normalised: `own`, as in each system's examples; `host`; or `device`, to which bytes are sent."""


@dataclass(frozen=True, kw_only=True)
class TimedRead:
    """A read to time, as plain values that can be sent to a process."""

    name: str
    """Name of the loader."""
    loader: Loader
    shard_folder: Path
    prepared_folder: Path
    """Folder with the form that the loader made of the shard set."""
    batch_size: int
    image_size: int
    num_threads: int
    normalization: Normalization = "own"
    device: str = "cpu"


@dataclass(frozen=True, kw_only=True)
class ReadTimes:
    """Times of one read."""

    num_samples: int
    wall_s: float
    """Seconds from the construction of the loader to the end of its iteration."""
    time_to_first_batch_s: float
    """Seconds from the construction of the loader; imports and reading of the manifest are excluded."""
    cpu_s: float
    """CPU seconds, user and system, of the process and its children."""


def prepare_read(read: TimedRead) -> int:
    """Import the loader, open the manifest, and return the id of this process."""
    # A user who sets more workers than cores does so on purpose.
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    read.loader.load()
    _open_shard_set(read.shard_folder)
    return os.getpid()


def warm_up(read: TimedRead) -> None:
    """Read the whole shard set without timing."""
    indices = np.concatenate([batch.indices for batch in _batches(read)])
    expected = _open_shard_set(read.shard_folder)[0].manifest.num_samples
    times = np.bincount(indices, minlength=expected)
    if len(indices) != expected or (times != 1).any():
        raise StreamError(
            f"{read.shard_folder}: {read.name} with {read.num_threads} threads delivered {len(indices)} samples, "
            f"{np.count_nonzero(times)} of them distinct; expected each of the manifest's {expected} exactly once: "
            "verify the shard set, and if it is intact, leave this loader out"
        )


def time_read(read: TimedRead) -> ReadTimes:
    """Read the whole shard set and measure the time."""
    num_samples, first_s, used_s, started = 0, 0.0, _cpu_s(), time.perf_counter()
    for batch in _batches(read):
        if not num_samples:
            first_s = time.perf_counter() - started
        num_samples += len(batch.indices)
    if read.device != "cpu":
        synchronize(torch.device(read.device))
    wall_s = time.perf_counter() - started
    return ReadTimes(num_samples=num_samples, wall_s=wall_s, time_to_first_batch_s=first_s, cpu_s=_cpu_s() - used_s)


def _batches(read: TimedRead) -> Iterator[Batch]:
    """Construct the loader and yield each batch when it is ready for a model."""
    loader = _make_loader(read)
    for batch in loader:
        if read.normalization != "own":
            _normalize(batch.images.to(read.device, non_blocking=True))
        yield batch


def _make_loader(read: TimedRead) -> Baseline:
    loader = read.loader.load()
    shard_set, order = _open_shard_set(read.shard_folder)
    return loader(
        shard_set=shard_set,
        order=order,
        batch_size=read.batch_size,
        image_size=read.image_size,
        num_threads=read.num_threads,
        folder=read.prepared_folder,
        # Bytes go to a device; a loader that normalises each sample on the host keeps doing so.
        output="uint8" if read.normalization == "device" else loader.outputs[0],
    )


def _normalize(images: torch.Tensor) -> torch.Tensor:
    if images.dtype == torch.float32:
        return images
    mean, std = (torch.tensor(values, device=images.device)[:, None, None] for values in (MEAN, STD))
    return as_floats(images).sub_(mean).div_(std)


@cache
def _open_shard_set(folder: Path) -> tuple[ShardSet, StreamOrder]:
    shard_set = ShardSet.open(folder)
    return shard_set, stored_order(shard_set.index)


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)
