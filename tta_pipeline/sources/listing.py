"""What a source says of one cell: its images, where their bytes are, and what was passed over."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tta_pipeline.errors import SourceError
from tta_pipeline.partitions import Cell


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceImage:
    """One image of a source."""

    class_name: str
    file_name: str
    path: Path
    size_bytes: int
    modified_ns: int

    @property
    def name(self) -> str:
        """The name within the cell, `<class>/<file>`."""
        return f"{self.class_name}/{self.file_name}"

    def read(self) -> bytes:
        """Return the image file's bytes.

        Raises:
            SourceError: the file is gone, unreadable, or of another size than when it was listed.
        """
        try:
            data = self.path.read_bytes()
        except OSError as error:
            raise SourceError(
                f"{self.path} cannot be read ({error.strerror}); expected an image of {self.size_bytes} bytes"
            ) from error
        if len(data) != self.size_bytes:
            raise SourceError(
                f"{self.path} has {len(data)} bytes and had {self.size_bytes} when it was listed; "
                "the source changes while it is converted: run again when it is complete"
            )
        return data


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """The images of one cell, sorted by name."""

    cell: Cell
    root: Path
    images: tuple[SourceImage, ...]
    num_hidden: int = 0
    """Hidden files, AppleDouble files among them."""
    strays: tuple[Path, ...] = ()
    """Files that are no image by their suffix, or lie outside any class folder."""

    @property
    def version(self) -> str:
        """A digest of every image's name, size and time of change: cheap, and another one when the files change."""
        digest = hashlib.sha256()
        for image in self.images:
            digest.update(f"{image.name}\0{image.size_bytes}\0{image.modified_ns}\n".encode("utf-8", "surrogateescape"))
        return digest.hexdigest()


class Source(Protocol):
    """Images of a benchmark, by cell."""

    def class_names(self) -> tuple[str, ...]:
        """Return the sorted names of all class folders of the whole source."""
        ...

    def listing(self, cell: Cell) -> Listing:
        """Return the images of *cell*."""
        ...


def image_at(class_name: str, entry: os.DirEntry[str]) -> SourceImage:
    """Describe the file that *entry* names, or the one it links to."""
    status = entry.stat()
    return SourceImage(
        class_name=class_name,
        file_name=entry.name,
        path=Path(entry.path),
        size_bytes=status.st_size,
        modified_ns=status.st_mtime_ns,
    )
