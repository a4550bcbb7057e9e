"""Finds and reads the loose files from which shards were made, and compares each file with the manifest."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from tta_pipeline.data.images.listing import Listing
from tta_pipeline.domain.ordering import Indices
from tta_pipeline.errors import StreamError
from tta_pipeline.shards.member_names import make_member_name, sample_key
from tta_pipeline.shards.shard_set import ShardSet


def find_loose_files(shard_set: ShardSet, listing: Listing) -> tuple[Path, ...]:
    """Return the file in *listing* of each sample of *shard_set*, in stored order."""
    by_key = {sample_key(make_member_name(image.class_name, image.file_name)): image for image in listing.images}
    found = []
    for key, size_bytes in zip(shard_set.index.keys, shard_set.index.sizes.tolist(), strict=True):
        image = by_key.get(key)
        if image is None or image.offset is not None or image.size_bytes != size_bytes:
            what = "no such file" if image is None else f"{image.path} of {image.size_bytes} bytes"
            raise StreamError(
                f"{listing.root}, sample {key}: found {what}; expected the loose file of {size_bytes} bytes from "
                f"which {shard_set.folder} was made: rematerialize tar_shards, or set `loader: indexed`"
            )
        found.append(Path(image.path))
    return tuple(found)


class ListedFiles:
    """Reads the samples of a shard set from the files from which it was made, one file for each image."""

    def __init__(self, shard_set: ShardSet, paths: Sequence[Path]) -> None:
        self._shard_set = shard_set
        self._check = shard_set.sample_check()
        self._paths = paths

    def open(self, stack: ExitStack) -> None:
        """Do nothing: no file stays open."""

    def expect(self, indices: Indices) -> None:
        """Do nothing: the files' positions on the disk are unknown, so reading ahead is impossible."""

    def read_files(self, indices: Indices) -> Iterator[bytes]:
        """Yield the files of the samples at *indices*."""
        for index, expected in zip(indices.tolist(), self._check.expected(indices), strict=True):
            try:
                data = self._paths[index].read_bytes()
            except OSError as error:
                raise self.unreadable_error(index, f"a read error ({error.strerror})") from error
            if (found := self._check.digest(data)) != expected:
                raise self.unreadable_error(index, f"other bytes, of {self._check.name} {found.hex()}")
            yield data

    def require_unchanged(self) -> None:
        """Do nothing: each file was compared when it was read."""

    def unreadable_error(self, index: int, found: str) -> StreamError:
        """Return an error: *found* instead of the sample at *index*."""
        return StreamError(
            f"{self._paths[index]}: found {found}; expected the file from which sample "
            f"{self._shard_set.index.keys[index]} was made: make the shards again"
        )
