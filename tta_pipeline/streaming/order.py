"""The order of a stream: a function of manifest, order and seed, never of threads, shard sizes or machines."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tta_pipeline.shards.manifest import SampleIndex, keys_sha256


@dataclass(frozen=True, kw_only=True)
class StreamOrder:
    """Which samples a stream delivers, in which order."""

    name: str
    indices: npt.NDArray[np.int64]
    """Positions in the sample index, shape (N,)."""
    sha256: str
    """Of the samples' keys, one a line, in stream order."""


def as_stored(index: SampleIndex) -> StreamOrder:
    """Return the order in which the samples lie in the shards, which sharding has permuted."""
    return StreamOrder(name="as_stored", indices=np.arange(len(index)), sha256=keys_sha256(index.keys))
