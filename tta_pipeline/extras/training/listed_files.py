"""Reads the loose files from which shards were made, and compares each with the manifest."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from tta_pipeline.errors import StreamError
from tta_pipeline.loading.loose_files import LooseFiles
from tta_pipeline.shards.ordering import Indices
from tta_pipeline.shards.shard_set import ShardSet


class ListedFiles:
    """Reads the samples of a shard set from the files from which it was made, one file for each image."""

    def __init__(self, shard_set: ShardSet, loose: LooseFiles) -> None:
        self._shard_set = shard_set
        self._check = shard_set.sample_check()
        self._paths = [image.path for image in loose.images]

    def open(self, stack: ExitStack) -> None:
        """Do nothing: no file stays open."""

    def expect(self, indices: Indices) -> None:
        """Do nothing: the positions of the files on the disk are unknown, so nothing can be read ahead."""

    def read_files(self, indices: Indices) -> Iterator[bytes]:
        """Yield the files of the samples at *indices*.

        Raises:
            StreamError: a file cannot be read, or differs from the manifest.
        """
        for index, expected in zip(indices.tolist(), self._check.expected(indices), strict=True):
            try:
                data = Path(self._paths[index]).read_bytes()
            except OSError as error:
                raise self.unreadable_error(index, f"a read error ({error.strerror})") from error
            if (found := self._check.digest(data)) != expected:
                raise self.unreadable_error(index, f"other bytes, of {self._check.name} {found.hex()}")
            yield data

    def require_unchanged(self) -> None:
        """Do nothing: each file was compared when it was read."""

    def unreadable_error(self, index: int, found: str) -> StreamError:
        """Return an error: *found* is in place of the sample at *index*."""
        return StreamError(
            f"{self._paths[index]}: found {found}; expected the file from which sample "
            f"{self._shard_set.index.keys[index]} was made: make the shards again"
        )
