"""The listing of a cell's images in a source: names, places of the bytes, and skipped files."""

import contextlib
import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

from tta_pipeline.domain.cells import Cell
from tta_pipeline.errors import ImagesError
from tta_pipeline.util.garbage_collection import gc_paused

MAX_FILE_BYTES = 2**30
"""Most bytes of an image file: the largest allowed image takes 0.6 GB as three float32 channels."""
_MAX_AHEAD_BYTES = 8 * 2**30
"""Most bytes to read ahead: an ImageNet-C cell has 1 GiB and ILSVRC's validation set 6.3 GiB; its training set would
evict itself from memory."""
_GAP_BYTES = 2**14
_AHEAD_STEP_BYTES = 2**17
"""Bytes per read-ahead request: Linux's default read-ahead size, beyond which it ignores the rest of a request."""


class ListedImage(NamedTuple):
    """One image of a source: a file, or a slice of one. A plain tuple, because there are millions."""

    class_name: str
    file_name: str
    path: str
    size_bytes: int
    modified_ns: int | None
    """Modification time of *path*; None for a slice of our own temporary file, which still grows."""
    offset: int | None = None
    """Position of the image's first byte in *path*; None if the whole file is the image."""
    sha256: bytes | None = None
    """sha256 of the image's bytes, if known, as for a shard set."""

    @property
    def name(self) -> str:
        """The name within the cell, `<class>/<file>`."""
        return f"{self.class_name}/{self.file_name}"

    def read(self) -> bytes:
        """Return the image's bytes."""
        with ImageReader() as reader:
            return reader.read(self)


class ImageReader:
    """Reads images; a file with many images stays open until an image of another file is read."""

    def __init__(self) -> None:
        self._path = ""
        self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def read(self, image: ListedImage) -> bytes:
        """Return the bytes of *image*."""
        if image.size_bytes > MAX_FILE_BYTES:
            raise ImagesError(
                f"{image.path} ({image.name}) has {image.size_bytes:,} bytes, too many for an image; expected at most "
                f"{MAX_FILE_BYTES:,}: remove it"
            )
        try:
            if image.path != self._path:
                self._close()
                self._descriptor = os.open(image.path, os.O_RDONLY)
                self._path = image.path
            # Read one byte more than a whole file should have, to detect that it has grown.
            whole = image.offset is None
            data = os.pread(self._descriptor, image.size_bytes + whole, image.offset or 0)
            is_watched = image.modified_ns is not None
            has_changed = is_watched and os.fstat(self._descriptor).st_mtime_ns != image.modified_ns
        except OSError as error:
            raise ImagesError(
                f"{image.path} ({image.name}) cannot be read ({error.strerror}); expected an image of "
                f"{image.size_bytes} bytes: restore the file, and rerun"
            ) from error
        if len(data) != image.size_bytes or has_changed:
            found = "more" if len(data) > image.size_bytes else str(len(data))
            raise ImagesError(
                f"{image.path} changed during the conversion: {image.name} was listed with {image.size_bytes} bytes, "
                f"but now {found}; expected files that do not change: rerun when the copy is complete"
            )
        if image.sha256 is not None and (digest := hashlib.sha256(data).digest()) != image.sha256:
            raise ImagesError(
                f"{image.path}: {image.name}, at byte {image.offset}, has sha256 {digest.hex()}; expected "
                f"{image.sha256.hex()}, as in the manifest: run `tta-pipeline shards verify`, then rebuild the shard "
                "set"
            )
        return data

    def _close(self) -> None:
        if self._path:
            os.close(self._descriptor)
            self._path = ""


def read_ahead(images: Sequence[ListedImage]) -> None:
    """Ask the kernel to read the slices of one file front to back, because they are read in another order later.

    This is a hint that helps disks with slow random access.
    """
    paths = {image.path for image in images if image.offset is not None}
    if len(paths) != 1 or sum(image.size_bytes for image in images) > _MAX_AHEAD_BYTES:
        return
    with contextlib.suppress(OSError), Path(paths.pop()).open("rb", buffering=0) as file:
        for start, end in _runs(images):
            for offset in range(start, end, _AHEAD_STEP_BYTES):
                size_bytes = min(_AHEAD_STEP_BYTES, end - offset)
                os.posix_fadvise(file.fileno(), offset, size_bytes, os.POSIX_FADV_WILLNEED)


def _runs(images: Sequence[ListedImage]) -> Iterator[tuple[int, int]]:
    """Yield, in order, the begin and end of each run of slices with only small gaps, such as headers, between them."""
    start = end = 0
    for offset, size_bytes in sorted((image.offset or 0, image.size_bytes) for image in images):
        if offset > end + _GAP_BYTES:
            yield start, end
            start = offset
        end = max(end, offset + size_bytes)
    yield start, end


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The images of one cell, sorted by name."""

    cell: Cell
    root: Path
    images: Sequence[ListedImage]
    num_hidden: int = 0
    """Number of hidden files, including AppleDouble files."""
    strays: tuple[Path, ...] = ()
    """Files without the suffix of an image, or outside any class folder."""

    @gc_paused()
    def in_memory(self) -> "Listing":
        """Return the listing with every image in memory, for callers that iterate over it more than once."""
        return replace(self, images=tuple(self.images))

    def __reduce__(self) -> tuple[Any, ...]:
        # There may be millions of named tuples; sending them to another process takes five times as long as tuples.
        flat = [tuple(image) for image in self.images] if isinstance(self.images, tuple) else self.images
        return _listing, (self.cell, self.root, flat, self.num_hidden, self.strays)

    @cached_property
    def version(self) -> str:
        """A digest of every image's name, size and modification time: cheap, and changes with the files."""
        lines = [f"{name}/{file}\0{size}\0{time}" for name, file, _, size, time, *_ in self.images]
        return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def _listing(cell: Cell, root: Path, flat: Sequence[Any], num_hidden: int, strays: tuple[Path, ...]) -> Listing:
    images = tuple(ListedImage._make(image) for image in flat) if isinstance(flat, list) else flat
    return Listing(cell=cell, root=root, images=images, num_hidden=num_hidden, strays=strays)


class Observed(Protocol):
    """A source of images or shards: its classes, and a version to detect changes."""

    def class_names(self) -> tuple[str, ...]:
        """Return the names of all class folders of the whole source, in label order."""
        ...

    def version(self, cell: Cell) -> str:
        """Return a digest that is cheap and changes with the images of *cell*."""
        ...


class Source(Observed, Protocol):
    """Images of a benchmark, by cell."""

    def together(self, cell: Cell, among: Sequence[Cell]) -> tuple[Cell, ...]:
        """Return the cells of *among* that are best prepared with *cell*, such as all in the same archive."""
        ...

    def prepared(self, cells: Sequence[Cell]) -> AbstractContextManager[None]:
        """Make the listings of *cells* available; a source whose cells share an archive reads them in one pass."""
        ...

    def listing(self, cell: Cell) -> Listing:
        """Return the images of *cell*."""
        ...


@dataclass(frozen=True, kw_only=True)
class ImagesAround:
    """The cells of *source*, whose listings a class that inherits changes or checks."""

    source: Source

    def version(self, cell: Cell) -> str:
        """Return the version of *cell*."""
        return self.source.version(cell)

    def together(self, cell: Cell, among: Sequence[Cell]) -> tuple[Cell, ...]:
        """Return the cells of *among* that are best prepared with *cell*."""
        return self.source.together(cell, among)

    def prepared(self, cells: Sequence[Cell]) -> AbstractContextManager[None]:
        """Prepare *cells*."""
        return self.source.prepared(cells)
