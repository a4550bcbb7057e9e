"""Archives of any kind: tar, tar.gz and zip."""

from contextlib import AbstractContextManager, suppress
from pathlib import Path

from tta_pipeline.data.formats.tar_format import BLOCK_BYTES, find_compression, is_tar
from tta_pipeline.data.images.archive_entry import Members
from tta_pipeline.data.images.tar_stream import opened_tar
from tta_pipeline.data.images.zip_members import STARTS, opened_zip
from tta_pipeline.util.progress import Reporter, quiet_reporter

SUFFIXES = (".tar", ".gz", ".tgz", ".zip")
"""Last suffixes of the names of archives."""


def opened_archive(
    path: Path, *, expected_md5: str | None = None, progress: Reporter = quiet_reporter
) -> AbstractContextManager[Members]:
    """Open an archive for one pass; if an md5 is expected, compare it.

    *progress* reports the MiB read.
    """
    opened = opened_zip if is_zip(path) else opened_tar
    return opened(path, expected_md5=expected_md5, progress=progress)


def is_zip(path: Path) -> bool:
    """Return whether *path* is a zip, by its first bytes, or by its name if it begins otherwise, but not as a tar."""
    start = b""
    with suppress(OSError):
        if path.is_file():
            with path.open("rb") as file:
                start = file.read(BLOCK_BYTES)
    if start[:4] in STARTS:
        return True
    return path.suffix.lower() == ".zip" and not is_tar(start) and not find_compression(start)
