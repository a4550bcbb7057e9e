"""One pass of one loader over one shard set: what a process that is started for it does."""

import os
import resource
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import torch
from torchvision.transforms.functional import normalize

from tta_pipeline.loader_bench.loaders import LOADERS
from tta_pipeline.shards.manifest import ShardSet
from tta_pipeline.streaming.baselines.baseline import MEAN, STD, Baseline
from tta_pipeline.streaming.device import as_floats
from tta_pipeline.streaming.order import StreamOrder, as_stored

Normalization = Literal["own", "host", "device"]
"""As each system does in its own examples; every one on the host; every one on the device, sent there as bytes."""


@dataclass(frozen=True, kw_only=True)
class Pass:
    """What is read, and how; plain values, to be told to a process."""

    loader: str
    shard_folder: Path
    prepared_folder: Path
    """What the loader made of the shard set."""
    batch_size: int
    image_size: int
    num_threads: int
    normalization: Normalization = "own"
    device: str = "cpu"


@dataclass(frozen=True, kw_only=True)
class PassTimes:
    """What one pass took."""

    num_samples: int
    wall_s: float
    """From the construction of the loader to the end of its iteration."""
    time_to_first_batch_s: float
    """From the construction of the loader; imports and the reading of the manifest are done before."""
    cpu_s: float
    """Of the process and of those that it started, user and system."""


def start(one: Pass) -> int:
    """Import what the pass needs, read the manifest, and return the number of this process."""
    # Whoever asks for more workers than cores knows it.
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    LOADERS[one.loader].load()
    _opened(one.shard_folder)
    return os.getpid()


def warm_up(one: Pass) -> int:
    """Make the pass without a clock, and return the number of samples."""
    return sum(_batch_lengths(one))


def timed(one: Pass) -> PassTimes:
    """Make the pass by the clock."""
    num_samples, first_s, used_s, started = 0, 0.0, _cpu_s(), time.perf_counter()
    for length in _batch_lengths(one):
        if not num_samples:
            first_s = time.perf_counter() - started
        num_samples += length
    if one.device != "cpu":
        torch.cuda.synchronize(one.device)
    wall_s = time.perf_counter() - started
    return PassTimes(num_samples=num_samples, wall_s=wall_s, time_to_first_batch_s=first_s, cpu_s=_cpu_s() - used_s)


def _batch_lengths(one: Pass) -> Iterator[int]:
    """Construct the loader and yield the length of each batch when it is ready for a model."""
    loader = _loader(one)
    for batch in loader:
        if one.normalization != "own":
            _normalized(batch.images.to(one.device, non_blocking=True))
        yield len(batch.labels)


def _loader(one: Pass) -> Baseline:
    loader = LOADERS[one.loader].load()
    shard_set, order = _opened(one.shard_folder)
    return loader(
        shard_set=shard_set,
        order=order,
        batch_size=one.batch_size,
        image_size=one.image_size,
        num_threads=one.num_threads,
        folder=one.prepared_folder,
        # Bytes are what goes to a device; who normalises sample by sample on the host goes on doing so.
        output="uint8" if one.normalization == "device" else loader.outputs[0],
    )


def _normalized(images: torch.Tensor) -> torch.Tensor:
    if images.dtype == torch.float32:
        return images
    normalized: torch.Tensor = normalize(as_floats(images), list(MEAN), list(STD), inplace=True)
    return normalized


@cache
def _opened(folder: Path) -> tuple[ShardSet, StreamOrder]:
    shard_set = ShardSet.open(folder)
    return shard_set, as_stored(shard_set.index)


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)
