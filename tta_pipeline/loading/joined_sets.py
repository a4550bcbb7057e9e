"""Read several shard sets as one, for streams that mix them."""

import resource
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tta_pipeline.domain.ordering import Indices
from tta_pipeline.loading.stored_pixels import Pixels
from tta_pipeline.shards.sample_index import SampleIndex
from tta_pipeline.shards.shard_set import ShardSet

UNKNOWN_LABEL = -1
"""Label of a sample that belongs to no class."""
_OTHER_FILES = 256


@dataclass(frozen=True, kw_only=True)
class JoinedSets:
    """The samples of several shard sets, one set after another."""

    sets: tuple[ShardSet, ...]
    num_unknown_sets: int = 0
    """Number of sets at the end whose samples belong to no class: in the index their label is `UNKNOWN_LABEL`."""

    @property
    def known_sets(self) -> tuple[ShardSet, ...]:
        """The sets whose samples belong to the classes."""
        return self.sets[: len(self.sets) - self.num_unknown_sets]

    @property
    def unknown_sets(self) -> tuple[ShardSet, ...]:
        """The sets whose samples belong to no class."""
        return self.sets[len(self.sets) - self.num_unknown_sets :]

    @cached_property
    def starts(self) -> Indices:
        """Position of the first sample of each set, followed by the number of all samples, shape (S + 1,)."""
        return np.cumsum([0, *(len(shard_set.index) for shard_set in self.sets)])

    @cached_property
    def index(self) -> SampleIndex:
        """The index of all samples; with several sets, each key begins with the sample's cell."""
        if len(self.sets) == 1:
            return self.sets[0].index
        known = (_prefix_keys(each, each.manifest.cell.path) for each in self.known_sets)
        return SampleIndex(table=pa.concat_tables([*known, *map(_as_unknown, self.unknown_sets)]))

    def set_numbers(self, indices: Indices) -> Indices:
        """Return the number of the set that each sample at *indices* belongs to, shape (B,)."""
        numbers: Indices = np.searchsorted(self.starts, indices, side="right") - 1
        return numbers


class JoinedPixels:
    """Reads the pixels of samples of several shard sets."""

    def __init__(self, joined: JoinedSets, image_size: int, *, open_pixels: Callable[[ShardSet, int], Pixels]) -> None:
        self._joined = joined
        self._pixels = [open_pixels(shard_set, image_size) for shard_set in joined.sets]

    def open(self, stack: ExitStack) -> None:
        """Open the shards of each set until *stack* closes."""
        _allow_open_files(sum(len(shard_set.manifest.shards) for shard_set in self._joined.sets))
        for pixels in self._pixels:
            pixels.open(stack)

    def expect(self, indices: Indices) -> None:
        """Read ahead in the shards of each set, in the order of *indices*."""
        numbers = self._joined.set_numbers(indices)
        for number in np.unique(numbers).tolist():
            self._pixels[number].expect(indices[numbers == number] - self._joined.starts[number])

    def fill(self, indices: Indices, out: npt.NDArray[np.uint8]) -> None:
        """Put the pixels of the samples at *indices*, shape (B,), into *out*, uint8 (B, H, W, 3)."""
        numbers = self._joined.set_numbers(indices)
        turns = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(indices)]
        for first, last in pairwise(turns):
            number = int(numbers[first])
            self._pixels[number].fill(indices[first:last] - self._joined.starts[number], out[first:last])

    def require_unchanged(self) -> None:
        """Check that the bytes that were read match the manifests."""
        for pixels in self._pixels:
            pixels.require_unchanged()


def _allow_open_files(count: int) -> None:
    """Raise this process's limit of open files, if necessary and allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count + _OTHER_FILES and soft != resource.RLIM_INFINITY:
        most = count + _OTHER_FILES if hard == resource.RLIM_INFINITY else min(count + _OTHER_FILES, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _prefix_keys(shard_set: ShardSet, prefix: str) -> pa.Table:
    table = shard_set.index.table
    keys = pa.array([f"{prefix}/{key}" for key in shard_set.index.keys], table.schema.field("key").type)
    return table.set_column(table.schema.get_field_index("key"), table.schema.field("key"), keys)


def _as_unknown(shard_set: ShardSet) -> pa.Table:
    """Return the index of *shard_set* without its labels; its keys begin with its benchmark and cell."""
    manifest = shard_set.manifest
    table = _prefix_keys(shard_set, f"unknown/{manifest.benchmark}/{manifest.cell.path}")
    labels = pa.array(np.full(len(table), UNKNOWN_LABEL, np.int32))
    return table.set_column(table.schema.get_field_index("label"), table.schema.field("label"), labels)
