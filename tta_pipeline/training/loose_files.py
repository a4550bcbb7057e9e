"""The files that shards were made of, where they lie: one inode for each image."""

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from torchvision.datasets import ImageFolder

from tta_pipeline.errors import StreamError
from tta_pipeline.names import some
from tta_pipeline.shards.manifest import ShardSet, StoredEncoding
from tta_pipeline.shards.ordering import Indices


class LooseFiles:
    """Reads the samples of a shard set from class folders, as torchvision's `ImageFolder` finds them."""

    def __init__(self, shard_set: ShardSet, folder: Path) -> None:
        """Find the file of every sample.

        Raises:
            StreamError: the shards hold other bytes than files, or a sample has no file.
        """
        if shard_set.manifest.encoding != StoredEncoding():
            raise StreamError(
                f"{shard_set.folder} has images that were changed when they were stored, so the files in {folder} are "
                "others; expected shards with the files' bytes: make them without resize, center_crop, function and "
                "format: tensor, or choose the loader indexed"
            )
        self._shard_set = shard_set
        self._check = shard_set.sample_check()
        self._paths = _paths(shard_set, folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Do nothing: no file stays open."""

    def expect(self, indices: Indices) -> None:
        """Do nothing: nobody knows where the files lie on the disk."""

    def files(self, indices: Indices) -> Iterator[bytes]:
        """Yield the files of the samples at *indices*.

        Raises:
            StreamError: a file cannot be read, or is not that of the manifest.
        """
        for index, expected in zip(indices.tolist(), self._check.expected(indices), strict=True):
            try:
                data = self._paths[index].read_bytes()
            except OSError as error:
                raise self.unreadable(index, f"a read error ({error.strerror})") from error
            if (found := self._check.digest(data)) != expected:
                raise self.unreadable(index, f"other bytes, of {self._check.name} {found.hex()}")
            yield data

    def require_unchanged(self) -> None:
        """Do nothing: each file was compared when it was read."""

    def unreadable(self, index: int, found: str) -> StreamError:
        """Return the error that says that *found* is where the sample at *index* should be."""
        return StreamError(
            f"{self._paths[index]}: found {found}; expected the file from which sample "
            f"{self._shard_set.index.keys[index]} was made: make the shards again"
        )


def _paths(shard_set: ShardSet, folder: Path) -> list[Path]:
    try:
        found = ImageFolder(str(folder), is_valid_file=lambda _: True)
    except OSError as error:
        raise StreamError(f"{folder} cannot be read ({error}); expected folders of classes with images") from error
    path_of = {path.relative_to(folder).as_posix(): path for path in (Path(name) for name, _ in found.samples)}
    names = list(shard_set.index.table["source_name"].to_pylist())
    if missing := [name for name in names if name not in path_of]:
        raise StreamError(f"{folder} has no {some(missing)}; expected the files from which {shard_set.folder} was made")
    return [path_of[name] for name in names]
