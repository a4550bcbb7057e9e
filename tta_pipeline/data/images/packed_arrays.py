"""Places of array files: on disk, or inside an uncompressed tar, which is read without unpacking."""

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from tta_pipeline.data.images.archives import opened_archive
from tta_pipeline.errors import ImagesError
from tta_pipeline.util.progress import Reporter, quiet_reporter

_MAX_FIRST_MEMBERS = 8
"""Members before the first visible file: macOS puts a hidden one before each file and folder."""


class ArrayPlace(NamedTuple):
    """Place of an array file: a file on disk, or a member of a tar."""

    path: Path
    member: str = ""
    """Name of the file inside an archive; empty: the whole file is the array."""
    begins_at: int = 0
    member_bytes: int = 0

    @property
    def size_bytes(self) -> int:
        """Size of the array file in bytes.

        Raises:
            OSError: the file cannot be read.
        """
        return self.member_bytes if self.member else self.path.stat().st_size

    def __str__(self) -> str:
        return f"{self.path}, {self.member}" if self.member else str(self.path)


def find_packed_arrays(
    archive: Path, *, expected_md5: str | None = None, progress: Reporter = quiet_reporter
) -> Mapping[str, ArrayPlace]:
    """Return the places of the array files in *archive*, by name without folders.

    Only headers are read, unless an md5 is expected: then the whole archive is read.
    """
    found: dict[str, ArrayPlace] = {}
    with opened_archive(archive, expected_md5=expected_md5, progress=progress) as stream:
        for entry in stream:
            name = entry.name.rpartition("/")[2]
            if not name.endswith(".npy") or name.startswith("."):
                continue
            if entry.offset is None:
                raise ImagesError(
                    f"{archive} is a zip or a compressed tar, or {entry.name} is a link; expected array files in a "
                    "plain tar, as published, since they are read without unpacking: unpack it, and name the folder "
                    "instead"
                )
            if name in found:
                raise ImagesError(
                    f"{archive} contains both {found[name].member} and {entry.name}; expected unique file names: "
                    "unpack the right one, and name its folder"
                )
            found[name] = ArrayPlace(archive, entry.name, entry.offset, entry.size_bytes)
    return found


def first_is_array(archive: Path) -> bool:
    """Return whether the first visible file in *archive* is an array file; at most 8 members are read."""
    with opened_archive(archive) as stream:
        names = (entry.name.rpartition("/")[2] for entry in islice(stream, _MAX_FIRST_MEMBERS))
        return next((name for name in names if not name.startswith(".")), "").endswith(".npy")
