"""The order of a stream: a function of manifest, order and seed, never of threads, shard sizes or machines.

Every order ranks samples by a keyed hash of their names. So a cell produces the same stream from 3 shards or 30, on any
machine; the hash of the stream proves it.
"""

from dataclasses import dataclass

import numpy as np

from tta_pipeline.domain import ordering
from tta_pipeline.domain.ordering import Indices
from tta_pipeline.shards.sample_index import SampleIndex, keys_sha256


@dataclass(frozen=True, kw_only=True)
class StreamOrder:
    """The samples of a stream, in order."""

    indices: Indices
    """Positions of the samples in the sample index, shape (N,)."""
    sha256: str
    """sha256 of the samples' keys, one per line, in stream order."""

    def __len__(self) -> int:
        return len(self.indices)


def stored_order(index: SampleIndex) -> StreamOrder:
    """Return the order of the samples in the shards, as permuted by sharding."""
    return order_of(index, np.arange(len(index)))


def shuffled_order(index: SampleIndex, *, seed: int) -> StreamOrder:
    """Return a permutation of all samples, determined by *seed*."""
    return order_of(index, ordering.permuted(index.keys, seed=seed))


def unknown_among(known: StreamOrder, index: SampleIndex, unknown: Indices, *, seed: int) -> StreamOrder:
    """Return *known* with the samples at *unknown*, shape (M,), at positions that are drawn with *seed*.

    The known samples keep their order, and the unknown ones are permuted. *index* contains both.
    """
    keys = index.keys
    permuted = unknown[ordering.permuted([keys[number] for number in unknown.tolist()], seed=seed)]
    is_unknown = np.zeros(len(known) + len(unknown), np.bool_)
    is_unknown[ordering.random_generator(seed).permutation(len(is_unknown))[: len(unknown)]] = True
    indices = np.empty(len(is_unknown), np.int64)
    indices[is_unknown], indices[~is_unknown] = permuted, known.indices
    return order_of(index, indices)


def order_of(index: SampleIndex, indices: Indices) -> StreamOrder:
    """Return the samples of *index* at *indices*, shape (N,), as the order of a stream."""
    keys = index.keys
    return StreamOrder(indices=indices, sha256=keys_sha256([keys[number] for number in indices.tolist()]))
