"""Tar members, written and read byte by byte: the same members always produce the same bytes.

Format: POSIX.1-1988 ustar with mode 0644, no owner and time 0. Names over 100 bytes get a PAX header (POSIX.1-2001).
`tar`, Python's tarfile and webdataset read both.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

from tta_pipeline.data.formats.tar_format import (
    BLOCK_BYTES,
    EXTENSION_KINDS,
    FILE_KINDS,
    FOLDER,
    MAX_EXTENSION_BYTES,
    PAX,
    Header,
    padded_size,
    parse_extension,
    read_header,
)
from tta_pipeline.errors import ManifestError

_RECORD_BYTES = 20 * BLOCK_BYTES
_CHUNK_BYTES = 2**20
_MAX_MEMBER_BYTES = 2**30  # a member is held in memory; the pixels of the largest image take 805 MB
_OWNER = b"0000644\0" + 2 * b"0000000\0"
_TIME = b"00000000000\0"
_BLANK_CHECKSUM = 8 * b" "
_MAGIC = 100 * b"\0" + b"ustar\0" + b"00" + 64 * b"\0" + 2 * b"0000000\0" + 167 * b"\0"
_CONSTANT_SUM = sum(_OWNER + _TIME + _BLANK_CHECKSUM + _MAGIC)
T = TypeVar("T")


def member_header(name: str, size_bytes: int) -> bytes:
    """Return the header of a regular file of *size_bytes* called *name*."""
    encoded = name.encode("utf-8", "surrogateescape")
    if len(encoded) <= 100:
        return _header(encoded, size_bytes, b"0")
    path = _pax_field(b"path", encoded)
    return (
        _header(b"././@PaxHeader", len(path), PAX)
        + path
        + padding(len(path))
        + _header(encoded[:100], size_bytes, b"0")
    )


def padding(size_bytes: int) -> bytes:
    """Return the zeros between the end of a member of *size_bytes* and the next header."""
    return bytes(-size_bytes % BLOCK_BYTES)


def archive_end(size_bytes: int) -> bytes:
    """Return the end of an archive whose members take *size_bytes*: two empty blocks, padded to a whole record."""
    return bytes(2 * BLOCK_BYTES + -(size_bytes + 2 * BLOCK_BYTES) % _RECORD_BYTES)


def _header(name: bytes, size_bytes: int, kind: bytes) -> bytes:
    size = b"%011o\0" % size_bytes
    checksum = _CONSTANT_SUM + sum(name) + sum(size) + kind[0]
    return b"".join((name.ljust(100, b"\0"), _OWNER, size, _TIME, b"%06o\0 " % checksum, kind, _MAGIC))


def _pax_field(keyword: bytes, value: bytes) -> bytes:
    # The length includes itself, so it grows until it is right.
    length = len(keyword) + len(value) + 3
    while len(b"%d" % length) + len(keyword) + len(value) + 3 != length:
        length += 1
    return b"%d %s=%s\n" % (length, keyword, value)


class Member(NamedTuple):
    """One regular file of an archive; *data* begins at *offset*."""

    name: str
    offset: int
    data: bytes


class TarReader:
    """Reads a whole archive once, front to back, and accepts nothing that plain readers silently skip."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._size_bytes = os.fstat(file.fileno()).st_size
        self._digest = hashlib.sha256()
        self._buffer = b""
        self._buffer_offset = 0
        self._offset = 0

    def members(self) -> Iterator[Member]:
        """Yield every member, then make sure that only zeros follow.

        Raises:
            ManifestError: a header is damaged, a member is truncated, is not a regular file or has an unsafe name, or
                the archive has no end mark or has data after it.
        """
        while True:
            start, (name, size_bytes) = self._offset, self._next_header()
            if name is None:
                self._require_end(start)
                return
            offset = self._offset
            if size_bytes > _MAX_MEMBER_BYTES:
                raise self._error(
                    f"the member {name} of {size_bytes} bytes at byte {offset}", f"at most {_MAX_MEMBER_BYTES} bytes"
                )
            body = self._read(padded_size(size_bytes), f"the data of {name} at byte {offset}")
            self._refuse_unsafe(name, start)
            yield Member(name, offset, body[:size_bytes])

    @property
    def size_bytes(self) -> int:
        """The size of the file."""
        return self._size_bytes

    @property
    def sha256(self) -> str:
        """The hash of the file, once all members have been read."""
        return self._digest.hexdigest()

    def _require_end(self, end: int) -> None:
        # What was read before may end right after the first block of the end mark.
        rest = self._buffer[self._offset - self._buffer_offset :] or self._next_chunk(_CHUNK_BYTES)
        while rest:
            if rest.strip(b"\0"):
                raise self._error(f"data after the end mark at byte {end}", "only zeros")
            rest = self._next_chunk(_CHUNK_BYTES)

    def _next_header(self) -> tuple[str | None, int]:
        """Return name and size of the next member; the name is None at the end of the archive."""
        fields = dict[str, str]()
        while True:
            start = self._offset
            block = self._read(BLOCK_BYTES, f"a header at byte {start}")
            header = self._parse(start, read_header, block)
            if header is None:
                if fields:
                    raise self._error(f"an end mark after a long name at byte {start}", "the member of that name")
                return None, 0
            if header.kind in FILE_KINDS:
                return fields.get("path", header.name), int(fields.get("size", header.size_bytes))
            if header.kind == FOLDER:
                fields = {}  # a folder adds nothing to the names of its files
            elif header.kind in EXTENSION_KINDS:
                fields |= self._extension(start, header)
            else:
                raise self._error(f"a member of type {header.kind!r} at byte {start}", "only regular files")

    def _extension(self, start: int, header: Header) -> Mapping[str, str]:
        if header.size_bytes > MAX_EXTENSION_BYTES:
            raise self._error(
                f"a long name of {header.size_bytes} bytes at byte {start}", f"at most {MAX_EXTENSION_BYTES} bytes"
            )
        data = self._read(padded_size(header.size_bytes), f"a long name at byte {start}")
        return self._parse(start, partial(parse_extension, header.kind), data[: header.size_bytes])

    def _parse(self, start: int, read: Callable[[bytes], T], data: bytes) -> T:
        try:
            return read(data)
        except ValueError as error:
            found, _, expected = str(error).partition("; expected ")
            raise self._error(f"at byte {start}: {found}", expected or "an intact archive") from None

    def _read(self, size_bytes: int, what: str) -> bytes:
        position = self._offset - self._buffer_offset
        if size_bytes > self._size_bytes - self._offset:  # `read` would allocate all of the requested size
            raise self._cut(size_bytes, what)
        if position + size_bytes > len(self._buffer):
            chunk = self._next_chunk(max(_CHUNK_BYTES, size_bytes))
            self._buffer, self._buffer_offset, position = self._buffer[position:] + chunk, self._offset, 0
        data = self._buffer[position : position + size_bytes]
        self._offset += len(data)
        if len(data) != size_bytes:
            raise self._cut(size_bytes, what)
        return data

    def _cut(self, size_bytes: int, what: str) -> ManifestError:
        return self._error(f"the end of the file ({self._size_bytes} bytes) inside {what}", f"{size_bytes} bytes there")

    def _next_chunk(self, size_bytes: int) -> bytes:
        chunk = self._file.read(size_bytes)
        self._digest.update(chunk)
        return chunk

    def _refuse_unsafe(self, name: str, start: int) -> None:
        if name.startswith("/") or ".." in name.split("/") or "\0" in name:
            raise self._error(f"the member name {name!r} at byte {start}", "a relative path without '..'")

    def _error(self, found: str, expected: str) -> ManifestError:
        return ManifestError(f"{self._path}: found {found}; expected {expected}: make or fetch this shard again")
