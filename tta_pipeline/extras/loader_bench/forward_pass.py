"""Forward passes over a whole shard set by each reader, in this process or in `torchrun`'s processes."""

import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from tta_pipeline.domain.ordering import Indices
from tta_pipeline.errors import StreamError
from tta_pipeline.evaluation.device.devices import select_device_of_rank
from tta_pipeline.evaluation.device.memory import peak_memory_gib, reset_peak_memory
from tta_pipeline.extras.loader_bench.baseline import Baseline
from tta_pipeline.extras.loader_bench.loaders import Loader
from tta_pipeline.extras.loader_bench.measure import Settings, nearby, require_device
from tta_pipeline.extras.loader_bench.prepared_data import require_square_images
from tta_pipeline.extras.loader_bench.process_memory import watched
from tta_pipeline.loading.device import as_floats, move_to_device, synchronize
from tta_pipeline.loading.stream_order import StreamOrder, stored_order
from tta_pipeline.models.load_by_name import load_model
from tta_pipeline.models.try_network import require_outputs
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.util.files import scratch_folder

Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True)
class _Ranks:
    """This process's place among the `torchrun` processes that read together."""

    rank: int = 0
    num_ranks: int = 1
    local_rank: int = 0
    """Number of this process on its machine."""

    def gather(self, own: Answer) -> list[Answer]:
        """Return the values of all processes by rank; each process waits for all others."""
        answers: list[Any] = [own] * self.num_ranks
        if self.num_ranks > 1:
            dist.all_gather_object(answers, own)
        return answers


@contextmanager
def _joined_ranks() -> Iterator[_Ranks]:
    """Join the other processes of `torchrun`, if it started this one, and yield this process's rank."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield _Ranks()
        return
    dist.init_process_group("gloo")  # only figures are exchanged
    try:
        yield _Ranks(rank=dist.get_rank(), num_ranks=dist.get_world_size(), local_rank=int(os.environ["LOCAL_RANK"]))
    finally:
        dist.destroy_process_group()


@dataclass(frozen=True, kw_only=True)
class ForwardRow:
    """A reader at its best number of threads: medians of the repeats; of several processes, the slowest."""

    loader: str
    version: str
    """Version of the reader's package."""
    model: str
    manifest_sha256: str
    stored_order: str
    """Order of the samples in the shards."""
    shuffle: str
    """How the reader shuffles them."""
    num_threads: int
    """Threads or worker processes of each process."""
    num_ranks: int
    """Number of processes that each read their share."""
    batch_size: int
    device: str
    image_size: int
    num_samples: int
    repeats: int
    images_per_s: float
    images_per_s_min: float
    images_per_s_max: float
    wall_s: float
    """Seconds from the construction of the reader until the device has the last outputs."""
    time_to_first_batch_s: float
    """Seconds from the construction of the reader until it delivers a batch."""
    first_batch_compute_s: float
    """Seconds from passing that batch to the device until the outputs are ready."""
    peak_memory_mib: float
    """Most anonymous and shared memory of the processes and their workers together, during the warm-up."""
    peak_cuda_gib: float | None
    """Most memory that torch allocated on a device; None on a CPU."""


@dataclass(frozen=True, kw_only=True)
class _Reader:
    """A reader with a number of threads, over this process's share of the samples."""

    name: str
    loader: Loader
    num_threads: int
    shard_set: ShardSet
    order: StreamOrder
    folder: Path
    """Folder with the form that the reader needs."""

    def open(self, *, batch_size: int, image_size: int) -> Baseline:
        """Construct the reader; it delivers bytes, which the model normalises on its device."""
        return self.loader.load()(
            shard_set=self.shard_set,
            order=self.order,
            folder=self.folder,
            batch_size=batch_size,
            image_size=image_size,
            num_threads=self.num_threads,
            output="uint8",
        )


@dataclass(frozen=True, kw_only=True)
class _Pass:
    """Figures of one pass, as in `ForwardRow`."""

    num_samples: int
    wall_s: float
    time_to_first_batch_s: float
    first_batch_compute_s: float
    peak_cuda_gib: float | None

    @property
    def images_per_s(self) -> float:
        return self.num_samples / self.wall_s


def compare_forward(
    location: str,
    model: str,
    loaders: Mapping[str, Loader],
    settings: Settings,
    report: Callable[[str], None],
    *,
    is_staged: bool = False,
) -> tuple[ForwardRow, ...]:
    """Time forward passes of *model* over the shard set at *location* by each of *loaders*, and return their rows.

    After an untimed pass of each reader, the readers take turns. In processes of `torchrun`, each reads its
    share, and all return the same rows.

    Args:
        location: Folder of shards and manifest, or a URL, whose shards are always staged.
        model: Name of a model as in `load_model`; its weights are random, except a benchmark's trained source model's.
        loaders: Readers by their names.
        settings: How to measure; each reader delivers bytes, which the model normalises on its device.
        report: Called with a line after every timed pass.
        is_staged: Whether the shards are copied to node-local disk first.
    """
    require_device(settings.device)
    with (
        _joined_ranks() as ranks,
        nearby(location, report, is_staged=is_staged) as (folder, _),
        scratch_folder("loader-bench-forms") as temporary,
    ):
        device = torch.device("cpu") if settings.device == "cpu" else select_device_of_rank(ranks.local_rank)
        shard_set = ShardSet.open(folder)
        size = require_square_images(shard_set)
        network = _load_network(model, num_classes=len(shard_set.manifest.classes), image_size=size).to(device)
        readers = tuple(_prepare_readers(shard_set, loaders, settings.num_threads, ranks, temporary))

        def read(reader: _Reader) -> tuple[_Pass, Indices]:
            ranks.gather(None)  # all processes start together
            construct = partial(reader.open, batch_size=settings.batch_size, image_size=size)
            return _time_pass(construct, network, device)

        peaks_mib = [_warm_up(reader, read, shard_set, ranks) for reader in readers]
        passes = _take_turns(readers, read, settings.repeats, report, ranks)
    common = {
        "model": model,
        "manifest_sha256": shard_set.manifest.sha256,
        "stored_order": f"{shard_set.manifest.order.name}, seed {shard_set.manifest.order.seed}",
        "num_ranks": ranks.num_ranks,
        "batch_size": settings.batch_size,
        "device": settings.device,
        "image_size": size,
    }
    rows = [_row(*each, common) for each in zip(readers, passes, peaks_mib, strict=True)]
    return tuple(max((row for row in rows if row.loader == name), key=lambda row: row.images_per_s) for name in loaders)


def _load_network(model: str, *, num_classes: int, image_size: int) -> nn.Module:
    has_weights = Path(model).suffix == ".safetensors"
    network = load_model(model, num_classes=num_classes, weights="pretrained" if has_weights else None)
    require_outputs(network, num_classes=num_classes, image_size=image_size, called=f"the model {model}")
    return network


def _prepare_readers(
    shard_set: ShardSet, loaders: Mapping[str, Loader], num_threads: Sequence[int], ranks: _Ranks, temporary: Path
) -> Iterator[_Reader]:
    for name, loader in loaders.items():
        kind, folder = loader.load(), temporary / name
        share = kind.share(shard_set, ranks.rank, ranks.num_ranks)
        folder.mkdir()
        kind.prepare(share, folder)
        for count in num_threads:
            yield _Reader(
                name=name,
                loader=loader,
                num_threads=count,
                shard_set=share,
                order=stored_order(share.index),
                folder=folder,
            )


def _warm_up(
    reader: _Reader, read: Callable[[_Reader], tuple[_Pass, Indices]], shard_set: ShardSet, ranks: _Ranks
) -> float:
    """Read once, and return the peak memory of all processes in MiB."""
    with watched([os.getpid()]) as memory:
        _, indices = read(reader)
    keys = reader.shard_set.index.keys
    delivered = [key for own in ranks.gather([keys[index] for index in indices.tolist()]) for key in own]
    if Counter(delivered) != Counter(shard_set.index.keys):
        raise StreamError(
            f"{shard_set.folder}: {reader.name} with {reader.num_threads} threads delivered {len(delivered)} samples, "
            f"{len(set(delivered))} of them distinct; expected each of the manifest's {len(shard_set.index)} exactly "
            "once: verify the shard set, and if it is intact, leave this loader out"
        )
    return sum(ranks.gather(memory.peak_mib))


def _take_turns(
    readers: Sequence[_Reader],
    read: Callable[[_Reader], tuple[_Pass, Indices]],
    repeats: int,
    report: Callable[[str], None],
    ranks: _Ranks,
) -> list[list[_Pass]]:
    """Return the timed passes of each reader."""
    passes: list[list[_Pass]] = [[] for _ in readers]
    turns = [turn for _ in range(repeats) for turn in zip(readers, passes, strict=True)]
    for number, (reader, own) in enumerate(turns, start=1):
        own.append(_slowest(ranks.gather(read(reader)[0])))
        report(
            f"{number} of {len(turns)} passes: {reader.name}, {reader.num_threads} threads: "
            f"{own[-1].images_per_s:,.0f} images/s"
        )
    return passes


def _time_pass(construct: Callable[[], Baseline], network: nn.Module, device: torch.device) -> tuple[_Pass, Indices]:
    """Apply *network* to every batch of a new reader; return the figures, and the samples in their order."""
    indices: list[Indices] = []
    first_batch_s = first_compute_s = 0.0
    reset_peak_memory(device)
    started = time.perf_counter()
    loader = construct()
    constructed_s = time.perf_counter() - started
    with torch.inference_mode():
        for batch in move_to_device(loader, device):
            given = time.perf_counter()
            network(as_floats(batch.images))
            if not indices:
                synchronize(device)
                first_batch_s = constructed_s + batch.data_wait_s
                first_compute_s = time.perf_counter() - given
            indices.append(batch.indices)
        synchronize(device)
    wall_s = time.perf_counter() - started
    samples = np.concatenate(indices)
    figures = _Pass(
        num_samples=len(samples),
        wall_s=wall_s,
        time_to_first_batch_s=first_batch_s,
        first_batch_compute_s=first_compute_s,
        peak_cuda_gib=peak_memory_gib(device),
    )
    return figures, samples


def _slowest(parts: Sequence[_Pass]) -> _Pass:
    """Return the figures of processes together: all samples, and the longest times."""
    return _Pass(
        num_samples=sum(part.num_samples for part in parts),
        wall_s=max(part.wall_s for part in parts),
        time_to_first_batch_s=max(part.time_to_first_batch_s for part in parts),
        first_batch_compute_s=max(part.first_batch_compute_s for part in parts),
        peak_cuda_gib=max((part.peak_cuda_gib for part in parts if part.peak_cuda_gib is not None), default=None),
    )


def _row(reader: _Reader, passes: Sequence[_Pass], peak_memory_mib: float, common: Mapping[str, Any]) -> ForwardRow:
    speeds = [each.images_per_s for each in passes]
    return ForwardRow(
        **common,
        loader=reader.name,
        version=reader.loader.version,
        shuffle=reader.loader.load().shuffle,
        num_threads=reader.num_threads,
        num_samples=passes[0].num_samples,
        repeats=len(passes),
        images_per_s=statistics.median(speeds),
        images_per_s_min=min(speeds),
        images_per_s_max=max(speeds),
        wall_s=statistics.median(each.wall_s for each in passes),
        time_to_first_batch_s=statistics.median(each.time_to_first_batch_s for each in passes),
        first_batch_compute_s=statistics.median(each.first_batch_compute_s for each in passes),
        peak_memory_mib=peak_memory_mib,
        peak_cuda_gib=_slowest(passes).peak_cuda_gib,
    )
