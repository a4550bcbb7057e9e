"""Tar members, written and read byte by byte: the same members always give the same bytes.

Format: POSIX.1-1988 ustar with mode 0644, no owner and time 0; names over 100 bytes get a PAX header (POSIX.1-2001).
Both are read by `tar`, Python's tarfile and webdataset.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tta_pipeline.errors import ManifestError

BLOCK_BYTES = 512
_RECORD_BYTES = 20 * BLOCK_BYTES
_OWNER = b"0000644\0" + 2 * b"0000000\0"
_TIME = b"00000000000\0"
_BLANK_CHECKSUM = 8 * b" "
_MAGIC = 100 * b"\0" + b"ustar\0" + b"00" + 64 * b"\0" + 2 * b"0000000\0" + 167 * b"\0"
_CONSTANT_SUM = sum(_OWNER + _TIME + _BLANK_CHECKSUM + _MAGIC)
_FILE_TYPES = (b"0", b"\0", b"7")
_PAX, _PAX_GLOBAL, _GNU_LONG_NAME, _FOLDER = b"x", b"g", b"L", b"5"


def member_header(name: str, size_bytes: int) -> bytes:
    """Return the header of a regular file of *size_bytes* called *name*."""
    encoded = name.encode("utf-8", "surrogateescape")
    if len(encoded) <= 100:
        return _header(encoded, size_bytes, b"0")
    path = _pax_field(b"path", encoded)
    return (
        _header(b"././@PaxHeader", len(path), _PAX)
        + path
        + padding(len(path))
        + _header(encoded[:100], size_bytes, b"0")
    )


def padding(size_bytes: int) -> bytes:
    """Return the zeros between the end of a member of *size_bytes* and the next header."""
    return bytes(-size_bytes % BLOCK_BYTES)


def archive_end(size_bytes: int) -> bytes:
    """Return what ends an archive whose members take *size_bytes*: two empty blocks, filled up to a whole record."""
    return bytes(2 * BLOCK_BYTES + -(size_bytes + 2 * BLOCK_BYTES) % _RECORD_BYTES)


def _header(name: bytes, size_bytes: int, kind: bytes) -> bytes:
    size = b"%011o\0" % size_bytes
    checksum = _CONSTANT_SUM + sum(name) + sum(size) + kind[0]
    return b"".join((name.ljust(100, b"\0"), _OWNER, size, _TIME, b"%06o\0 " % checksum, kind, _MAGIC))


def _pax_field(keyword: bytes, value: bytes) -> bytes:
    # The length counts itself, so it is grown until it is right.
    length = len(keyword) + len(value) + 3
    while len(b"%d" % length) + len(keyword) + len(value) + 3 != length:
        length += 1
    return b"%d %s=%s\n" % (length, keyword, value)


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One regular file of an archive; *data* lies at *offset*."""

    name: str
    offset: int
    data: bytes


class TarReader:
    """Reads a whole archive once, front to back, and accepts nothing that plain readers pass over in silence."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._size_bytes = os.fstat(file.fileno()).st_size
        self._offset = 0

    def members(self) -> Iterator[tuple[Member, bytes]]:
        """Yield every member with all bytes from the end of the one before to its own end; last, no bytes are left.

        Raises:
            ManifestError: a header is damaged, a member is cut, is no regular file or has an unsafe name, or the
                archive has no end mark.
        """
        while True:
            start, (name, size_bytes, raw) = self._offset, self._next_header()
            if name is None:
                return
            offset = self._offset
            body = self._read(size_bytes + -size_bytes % BLOCK_BYTES, f"the data of {name} at byte {offset}")
            self._refuse_unsafe(name, start)
            yield Member(name=name, offset=offset, data=body[:size_bytes]), raw + body

    def rest(self) -> bytes:
        """Return the bytes after the last member.

        Raises:
            ManifestError: something other than zeros follows the end mark.
        """
        self._file.seek(self._end_offset)
        rest = self._file.read()
        if rest.strip(b"\0"):
            raise self._error(f"bytes after the end mark at byte {self._end_offset}", "zeros")
        return rest

    def _next_header(self) -> tuple[str | None, int, bytes]:
        """Return name, size and raw bytes of the next member's headers; no name at the end of the archive."""
        raw, long_name = b"", None
        while True:
            start = self._offset
            block = self._read(BLOCK_BYTES, f"a header at byte {start}")
            if not block.strip(b"\0"):
                self._end_offset = start
                return None, 0, b""
            size_bytes, kind = self._checked(block, start)
            raw += block
            if kind == _FOLDER and not size_bytes:
                long_name = None  # says nothing that the names of its files do not say
                continue
            if kind in _FILE_TYPES:
                return long_name or _short_name(block), size_bytes, raw
            if kind not in (_PAX, _PAX_GLOBAL, _GNU_LONG_NAME):
                raise self._error(f"a member of type {kind!r} at byte {start}", "regular files only")
            extension = self._read(size_bytes + -size_bytes % BLOCK_BYTES, f"a long name at byte {start}")
            raw += extension
            if kind != _PAX_GLOBAL:
                long_name = _long_name(extension[:size_bytes], kind) or long_name

    def _checked(self, block: bytes, start: int) -> tuple[int, bytes]:
        try:
            expected = int(block[148:156].strip(b" \0") or b"0", 8)
            size_bytes = int(block[124:136].strip(b" \0") or b"0", 8)
        except ValueError:
            raise self._error(f"a damaged header at byte {start}", "octal numbers") from None
        if sum(block) - sum(block[148:156]) + 8 * 32 != expected:
            raise self._error(f"a damaged header at byte {start}", f"a checksum of {expected}")
        return size_bytes, block[156:157]

    def _read(self, size_bytes: int, what: str) -> bytes:
        data = self._file.read(size_bytes)
        self._offset += len(data)
        if len(data) != size_bytes:
            raise self._error(
                f"the end of the file ({self._size_bytes} bytes) inside {what}", f"{size_bytes} bytes there"
            )
        return data

    def _refuse_unsafe(self, name: str, start: int) -> None:
        if name.startswith("/") or ".." in name.split("/") or "\0" in name:
            raise self._error(f"a member called {name!r} at byte {start}", "a relative name without '..'")

    def _error(self, found: str, expected: str) -> ManifestError:
        return ManifestError(f"{self._path}: found {found}; expected {expected}: write the shards of this cell again")


def _short_name(block: bytes) -> str:
    name, prefix = block[:100].split(b"\0")[0], block[345:500].split(b"\0")[0]
    return (prefix + b"/" + name if prefix else name).decode("utf-8", "surrogateescape")


def _long_name(data: bytes, kind: bytes) -> str | None:
    if kind == _GNU_LONG_NAME:
        return data.rstrip(b"\0").decode("utf-8", "surrogateescape")
    while data:
        length = int(data.split(b" ", 1)[0])
        keyword, _, value = data[:length].split(b" ", 1)[1].partition(b"=")
        if keyword == b"path":
            return value[:-1].decode("utf-8", "surrogateescape")
        data = data[length:]
    return None
