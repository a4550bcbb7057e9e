"""The samples of an epoch, their order, and their division into batches."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from tta_pipeline.benchmarks.training_input import TrainingInputSettings
from tta_pipeline.domain.ordering import Indices
from tta_pipeline.shards.sample_index import SampleIndex


def order_by_key(index: SampleIndex) -> Indices:
    """Return the positions of the samples sorted by key, shape (N,): an order that is independent of the shards."""
    keys = index.keys
    return np.array(sorted(range(len(keys)), key=keys.__getitem__), np.int64)


def epoch_order(
    index: SampleIndex, ranked: Indices, settings: TrainingInputSettings, *, seed: int, epoch: int
) -> Indices:
    """Return the positions of an epoch's samples, in the order of the epoch, shape (M,).

    Args:
        index: The samples.
        ranked: Their positions sorted by key, see `order_by_key`.
        settings: Settings that select the order.
        seed: Seed of the training.
        epoch: Number of the epoch.
    """
    rng = np.random.default_rng(np.random.SeedSequence([seed, epoch]))
    if settings.shuffle == "exact":
        return ranked[rng.permutation(len(ranked))]
    if settings.shuffle == "stored":
        return np.arange(len(index))
    members = _samples_by_shard(index)
    if settings.shuffle == "buffer":
        read = np.concatenate([members[number] for number in rng.permutation(len(members)).tolist()])
    else:
        read = np.concatenate(list(_draw_shards(members, num_epoch_samples(index, settings), rng)))
    return _shuffle_through_buffer(read, settings.buffer_samples, rng)[: num_epoch_samples(index, settings)]


def num_epoch_samples(index: SampleIndex, settings: TrainingInputSettings) -> int:
    """Return the number of samples in an epoch."""
    return settings.epoch_samples or len(index)


def cut_into_batches(order: Indices, batch_size: int) -> list[Indices]:
    """Cut *order* into as few batches of at most *batch_size* as possible; their sizes differ by at most one."""
    return np.array_split(order, math.ceil(len(order) / batch_size))


def _samples_by_shard(index: SampleIndex) -> Sequence[Indices]:
    """Return the samples of each shard in stored order, without empty shards."""
    edges = np.flatnonzero(np.diff(index.shards)) + 1
    return np.split(np.arange(len(index)), edges)


def _draw_shards(members: Sequence[Indices], count: int, rng: np.random.Generator) -> Iterator[Indices]:
    """Yield the samples of shards drawn with replacement, until there are *count*."""
    while count > 0:
        drawn = members[int(rng.integers(len(members)))]
        yield drawn
        count -= len(drawn)


def _shuffle_through_buffer(read: Indices, buffer_samples: int, rng: np.random.Generator) -> Indices:
    """Return *read* as shuffled by a buffer: whenever a sample enters the full buffer, a random one leaves it."""
    size = min(buffer_samples, len(read))
    buffer, left = read[:size].tolist(), np.empty_like(read)
    places = rng.integers(size, size=len(read) - size).tolist()
    for number, (place, entering) in enumerate(zip(places, read[size:].tolist(), strict=True)):
        left[number], buffer[place] = buffer[place], entering
    left[len(read) - size :] = rng.permutation(np.array(buffer, np.int64))
    return left
