"""The members of a tar or tar.gz, read once from front to back."""

import gzip
import hashlib
import io
import os
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from tta_pipeline.data.formats.tar_format import (
    BLOCK_BYTES,
    EXTENSION_KINDS,
    FILE_KINDS,
    FOLDER,
    HARD_LINK,
    MAX_EXTENSION_BYTES,
    SYMBOLIC_LINK,
    Header,
    find_compression,
    parse_extension,
    read_header,
)
from tta_pipeline.data.images.archive_entry import Entry, Members, require_inside, require_md5, resolve_link
from tta_pipeline.errors import ImagesError
from tta_pipeline.util.progress import Reporter, quiet_reporter

_READ_BYTES = 8 * 2**20
_CHUNK_BYTES = 2**20
_MAX_MEMBER_BYTES = 2**50
_MAX_END_BYTES = 2**20  # tar pads to 10 KiB; an unfinished download into a preallocated file can end with many zeros
D = TypeVar("D")
T = TypeVar("T")
_UNREADABLE = (OSError, EOFError, zlib.error)


@contextmanager
def opened_tar(
    path: Path, *, expected_md5: str | None = None, progress: Reporter = quiet_reporter
) -> Iterator["TarStream"]:
    """Open an archive for one pass; if an md5 is expected, read to the end of the file and compare it.

    *progress* reports the MiB read.
    """
    with _raw(path, progress) as (raw, start), ThreadPoolExecutor(1) as thread:
        compression = find_compression(start)
        if compression not in ("", "gzip"):
            raise ImagesError(f"{path} is compressed with {compression}; expected tar or tar.gz: repack it")
        hashed = _HashingFile(raw, thread) if expected_md5 else raw
        file: Any = io.BufferedReader(hashed, _READ_BYTES)
        if compression:
            # A separate buffer: gzip's own is 8 KiB before Python 3.12.
            file = io.BufferedReader(gzip.GzipFile(fileobj=file), _CHUNK_BYTES)
        stream = TarStream(file, str(path), begins_at=None if compression else 0)
        yield stream
        if isinstance(hashed, _HashingFile):
            stream.drain()
            require_md5(hashed.hexdigest(), str(expected_md5), where=path)


class TarStream:
    """The files and links of one tar, in order; only requested data is held in memory.

    The stream is also the file from which the latest member is read, so a tar inside a tar is a stream on a stream.

    Args:
        file: File that is open at the archive's first byte.
        where: Name of the archive in errors.
        begins_at: The byte of the file on disk at which this tar begins; None if that file is compressed.
    """

    def __init__(self, file: BinaryIO | Members, where: str, *, begins_at: int | None) -> None:
        self._file = file
        self._where = where
        self._begins_at = begins_at
        self._seek = file.seek if isinstance(file, io.IOBase) and file.seekable() else None
        self._offset = 0
        self._left = self._padding = 0  # of the latest member

    def __iter__(self) -> Iterator[Entry]:
        """Yield every file and link, but no folders.

        Raises:
            ImagesError: a header is damaged, a member is truncated, is a device or has a name that leads outside the
                archive, or the end mark is missing.
        """
        fields = dict[str, str]()
        while (header := self._next_header()) is not None:
            if header.kind in EXTENSION_KINDS:
                fields |= self._extension(header)
                continue
            if "size" in fields and header.kind in FILE_KINDS:
                self._begin(int(fields["size"]))
            entry = self._entry(header, fields)
            if entry is not None:
                yield entry
            fields = {}
        self._require_end(fields)

    def read(self, size_bytes: int = -1) -> bytes:
        """Return up to *size_bytes* of the latest member's remaining bytes; all of them if *size_bytes* is negative."""
        if size_bytes < 0 or size_bytes > self._left:
            size_bytes = self._left
        data = self._take(size_bytes)
        if len(data) != size_bytes:
            raise self.damage_error("the end of the file", f"{size_bytes - len(data)} more bytes of a member's data")
        self._left -= size_bytes
        return data

    def drain(self) -> None:
        """Read to the end of the file and discard the data."""
        while self._take(_CHUNK_BYTES):
            pass

    def damage_error(self, found: str, expected: str) -> ImagesError:
        """Return an error that reports what was *found* at the current position."""
        return ImagesError(
            f"{self._where}: at byte {self._offset} found {found}; expected {expected}: download it again"
        )

    def _take(self, size_bytes: int) -> bytes:
        try:
            data = self._file.read(size_bytes)
        except _UNREADABLE as error:
            raise self._unreadable(error) from error
        self._offset += len(data)
        return data

    def _next_header(self) -> Header | None:
        if self._left:
            self._skip(self._left)
        # The zeros after a member are read with the next header: one read instead of two.
        block = self._take(self._padding + BLOCK_BYTES)
        if self._padding:
            block = block[self._padding :]
        if len(block) != BLOCK_BYTES:
            raise self.damage_error("the end of the file", "a whole header or an end mark of two empty blocks")
        try:
            header = read_header(block)
        except ValueError as error:
            self._offset -= BLOCK_BYTES
            if not self._offset and (compression := find_compression(block)):
                raise ImagesError(
                    f"{self._where} is compressed with {compression}; expected a plain tar here: decompress it"
                ) from None
            raise self.damage_error(str(error), "an undamaged archive") from None
        self._begin(header.size_bytes if header else 0)
        return header

    def _begin(self, size_bytes: int) -> None:
        if not 0 <= size_bytes <= _MAX_MEMBER_BYTES:
            raise self.damage_error(f"a member of {size_bytes} bytes", f"0 to {_MAX_MEMBER_BYTES}")
        self._left, self._padding = size_bytes, -size_bytes % BLOCK_BYTES

    def _skip(self, size_bytes: int) -> None:
        """Skip *size_bytes*; in a truncated file, reading the next header then fails."""
        self._left = 0
        if self._seek is None:
            while size_bytes and (data := self._take(min(_CHUNK_BYTES, size_bytes))):
                size_bytes -= len(data)
            return
        try:
            self._seek(size_bytes, os.SEEK_CUR)
        except _UNREADABLE as error:
            raise self._unreadable(error) from error
        self._offset += size_bytes

    def _unreadable(self, error: Exception) -> ImagesError:
        return self.damage_error(f"data that cannot be read ({error})", "a whole tar or tar.gz")

    def _parse(self, read: Callable[[D], T], data: D) -> T:
        try:
            return read(data)
        except ValueError as error:
            raise self.damage_error(str(error), "an undamaged archive") from None

    def _extension(self, header: Header) -> dict[str, str]:
        if header.size_bytes > MAX_EXTENSION_BYTES:
            raise self.damage_error(f"a long name of {header.size_bytes} bytes", f"{MAX_EXTENSION_BYTES} at most")
        return dict(self._parse(partial(parse_extension, header.kind), self.read()))

    def _require_end(self, fields: dict[str, str]) -> None:
        """Refuse anything but zeros after the first empty block, because that block could be a damaged header."""
        if fields:
            raise self.damage_error("an end mark after a long name", "the member of that name")
        rest = self._take(_MAX_END_BYTES)
        if rest.count(0) != len(rest):
            self._offset -= len(rest) + BLOCK_BYTES  # where the first empty block is
            raise self.damage_error("data after an empty block", "only zeros after the end mark")
        if len(rest) < BLOCK_BYTES:
            raise self.damage_error("the end of the file inside the end mark", "two empty blocks")
        if self._take(1):
            raise self.damage_error(f"more than {_MAX_END_BYTES} bytes after the end mark", "a finished download")

    def _entry(self, header: Header, fields: dict[str, str]) -> Entry | None:
        full_name = fields.get("path", header.name)
        name = require_inside(full_name, where=self._where)
        if header.kind == FOLDER or full_name.endswith("/"):  # before POSIX only the name marked a folder
            return None
        if header.kind in FILE_KINDS:
            return Entry(name, "", self._left, None if self._begins_at is None else self._begins_at + self._offset)
        if header.kind not in (HARD_LINK, SYMBOLIC_LINK):
            raise ImagesError(
                f"{self._where}: {name} has the type {header.kind!r}; expected only files, links and folders: remove "
                "it from the archive"
            )
        target = fields.get("linkpath", header.link)
        is_symbolic = header.kind == SYMBOLIC_LINK
        return Entry(name, resolve_link(name, target, is_symbolic=is_symbolic, where=self._where), 0)


@contextmanager
def _raw(path: Path, progress: Reporter) -> Iterator[tuple[io.FileIO, bytes]]:
    """Yield the file, open at its first byte, and its first bytes."""
    try:
        raw = _CountingFile(path, progress)
        start = os.pread(raw.fileno(), BLOCK_BYTES, 0)
    except OSError as error:
        raise ImagesError(
            f"{path} cannot be read ({error.strerror}); expected a tar or tar.gz archive: check the path and your "
            "permissions"
        ) from error
    with raw:
        yield raw, start


class _CountingFile(io.FileIO):
    """A file that counts the MiB read from it."""

    def __init__(self, path: Path, progress: Reporter) -> None:
        super().__init__(path)
        self._progress = progress(path.name, path.stat().st_size // 2**20, unit="MiB")
        self._counted = 0

    def readinto(self, buffer: Any) -> int | None:
        count = super().readinto(buffer)
        position = self.tell() // 2**20
        self._progress.advance(position - self._counted)
        self._counted = position
        return count


class _HashingFile(io.RawIOBase):
    """A file that hashes its bytes in the order of reading; a thread hashes each block while the caller uses it."""

    def __init__(self, raw: io.FileIO, thread: ThreadPoolExecutor) -> None:
        self._digest = hashlib.md5(usedforsecurity=False)
        self._raw = raw
        self._thread = thread
        self._hashing = thread.submit(self._digest.update, b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)
        count = int(self._raw.readinto(view) or 0)
        block = bytes(view[:count])  # the buffer is refilled while this is hashed
        self._hashing.result()
        self._hashing = self._thread.submit(self._digest.update, block)
        return count

    def hexdigest(self) -> str:
        """Return the md5 of the bytes read so far."""
        self._hashing.result()
        return self._digest.hexdigest()
