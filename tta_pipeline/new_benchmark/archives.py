"""Inspects tar archives without unpacking them: the first members, and headers all over a large archive."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tta_pipeline.errors import SourceError
from tta_pipeline.new_benchmark.found import Survey, left_out, not_found, to_be_corrupted, unknown_corruptions
from tta_pipeline.partitions import CORRUPTIONS, SEVERITIES, Cell
from tta_pipeline.sources.folder_tree import IMAGE_SUFFIXES, WRAPPERS
from tta_pipeline.sources.tar_stream import Entry, TarStream, opened
from tta_pipeline.tar_format import BLOCK_BYTES, FILE_KINDS, read_header

MAX_MEMBERS = 60_000
"""Number of members read in each archive: more than a cell of ImageNet-C has, so that all its classes are seen."""
MAX_S = 10.0
_NUM_PLACES = 256
_PLACE_BYTES = 2**18  # longer than most images, so that there is a header
_MAX_IMAGE_BYTES = 32 * 2**20


@dataclass
class Seen:
    """What the names in archives show."""

    cells: set[tuple[str, int]] = field(default_factory=set)
    classes: set[str] = field(default_factory=set)
    """Classes of the images in a cell."""
    loose_classes: set[str] = field(default_factory=set)
    """Classes of the images in no cell."""
    foreign: set[str] = field(default_factory=set)
    """Names in the place of a corruption that are not one."""
    arrays: set[str] = field(default_factory=set)
    image_size: tuple[int, int] | None = None
    remarks: list[str] = field(default_factory=list)

    def look_at_name(self, name: str) -> None:
        """Add what the *name* of a member shows."""
        folder, _, file_name = name.rpartition("/")
        parts = [part for part in folder.split("/") if part and part not in (".", *WRAPPERS)]
        if file_name.startswith(".") or any(part.startswith(".") for part in parts):
            return
        if file_name.endswith(".npy"):
            self.arrays.add(file_name)
        if not file_name.lower().endswith(IMAGE_SUFFIXES) or not parts:
            return
        for end in range(len(parts), 1, -1):
            corruption, severity = parts[end - 2 : end]
            if severity in map(str, SEVERITIES):
                self._add(corruption, int(severity), parts[end:])
                return
        self.loose_classes.add(parts[-1])

    def look_at_image(self, entry: Entry, stream: TarStream) -> None:
        """Read the size of an image, unless one is known."""
        from tta_pipeline.images import read_image_header

        if self.image_size is not None or entry.link or entry.size_bytes > _MAX_IMAGE_BYTES:
            return
        if entry.name.lower().endswith((*IMAGE_SUFFIXES, ".npy")):
            try:
                header = read_image_header(stream.read())
            except ValueError:  # the next one will do; sharding names what is damaged
                return
            self.image_size = (header.height, header.width)

    def _add(self, corruption: str, severity: int, below: list[str]) -> None:
        if corruption not in CORRUPTIONS:
            self.foreign.add(corruption)
            return
        self.cells.add((corruption, severity))
        self.classes.update(below[-1:])


def look_at_archive(path: Path, seen: Seen, *, max_members: int = MAX_MEMBERS) -> None:
    """Add to *seen* what the first members of *path* show and, if there are more, headers at places all over it.

    Raises:
        SourceError: it is not a tar or tar.gz, or is damaged where it was read.
    """
    until = time.monotonic() + MAX_S
    with opened(path) as stream:
        for number, entry in enumerate(stream):
            if number == max_members or time.monotonic() > until:
                seen.remarks.append(
                    f"Only the first {number:,} files of {path.name} were read{_and_places(path, seen)}: there may be "
                    "more cells and classes."
                )
                return
            seen.look_at_name(entry.name)
            if entry.name.rpartition("/")[0]:
                seen.look_at_image(entry, stream)


def survey_archives(paths: Sequence[Path]) -> Survey:
    """Return what the archives at *paths* hold.

    Raises:
        SourceError: they hold nothing that a benchmark can be made of, or one cannot be read.
    """
    seen = Seen()
    for path in paths:
        look_at_archive(path, seen)
    cells = tuple(Cell(corruption=corruption, severity=severity) for corruption, severity in seen.cells)
    if not cells and seen.arrays:
        raise SourceError(
            f"{paths[0]} holds array files such as {min(seen.arrays)}; expected images: unpack it, which makes about "
            "20 files, and name the folder"
        )
    if not cells and seen.foreign:
        raise unknown_corruptions(paths[0], sorted(seen.foreign))
    if not cells and seen.loose_classes and len(paths) == 1:
        return to_be_corrupted(paths[0], len(seen.loose_classes), seen.image_size)
    if not cells:
        others = " and the others" if len(paths) > 1 else ""
        raise SourceError(
            f"0 images of a cell in {paths[0]}{others}; expected <corruption>/<severity>/<class>/<image>: name the "
            "archives that have them"
        )
    return Survey(
        kind="archive",
        paths=tuple(paths),
        corruptions=tuple(name for name in CORRUPTIONS if any(cell.corruption == name for cell in cells)),
        severities=tuple(sorted({cell.severity for cell in cells})),
        num_classes=len(seen.classes),
        image_size=seen.image_size,
        remarks=(*left_out(sorted(seen.foreign)), *not_found(cells), *seen.remarks),
    )


def _and_places(path: Path, seen: Seen) -> str:
    """Read headers at places all over an uncompressed tar, and return words that say so."""
    size_bytes = path.stat().st_size
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if os.pread(descriptor, 2, 0) == b"\x1f\x8b":
            return ""
        for number in range(_NUM_PLACES):
            start = size_bytes * number // _NUM_PLACES // BLOCK_BYTES * BLOCK_BYTES
            _look_at_headers(os.pread(descriptor, _PLACE_BYTES, start), seen)
    except OSError as error:
        raise SourceError(f"{path} cannot be read ({error.strerror}); expected a tar or tar.gz archive") from error
    finally:
        os.close(descriptor)
    return f", and {_NUM_PLACES} places all over it"


def _look_at_headers(data: bytes, seen: Seen) -> None:
    for start in range(0, len(data) - BLOCK_BYTES + 1, BLOCK_BYTES):
        block = data[start : start + BLOCK_BYTES]
        if block[257:262] != b"ustar":
            continue
        try:
            header = read_header(block)
        except ValueError:  # pixels that look like a header
            continue
        if header is not None and header.kind in FILE_KINDS:
            seen.look_at_name(header.name)
