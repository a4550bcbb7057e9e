"""The members of a tar or tar.gz, read once from front to back."""

import gzip
import hashlib
import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

from tta_pipeline.errors import SourceError
from tta_pipeline.tar_format import (
    BLOCK_BYTES,
    EXTENSION_KINDS,
    FILE_KINDS,
    FOLDER,
    HARD_LINK,
    SYMBOLIC_LINK,
    Header,
    extension,
    padded,
    read_header,
)

_BLOCK_BYTES = 8 * 2**20
T = TypeVar("T")
_GZIP = b"\x1f\x8b"
_REFUSED = {b"\xfd7zXZ\x00": "xz", b"BZh": "bzip2", b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip"}


class Entry(NamedTuple):
    """One file of an archive, or a link to one."""

    name: str
    data: bytes
    """Empty for a link."""
    link: str
    """Name, within the archive, of what a link leads to; empty for a file."""


@contextmanager
def opened(path: Path, *, expected_md5: str | None = None) -> Iterator[BinaryIO]:
    """Open an archive for one reading; at the end, having read whatever is left, compare its md5 if one is expected.

    Raises:
        SourceError: it cannot be read, is compressed by something other than gzip, or has another md5.
    """
    try:
        with path.open("rb", buffering=0) as raw:
            start = raw.read(8)
            raw.seek(0)
            _refuse_compression(path, start)
            hashed = _Hashed(raw) if expected_md5 else raw
            buffered = io.BufferedReader(hashed, _BLOCK_BYTES)
            yield gzip.GzipFile(fileobj=buffered) if start.startswith(_GZIP) else buffered  # type: ignore[misc]
            if isinstance(hashed, _Hashed):
                while buffered.read(_BLOCK_BYTES):
                    pass
                _compare_md5(path, hashed.digest.hexdigest(), str(expected_md5))
    except (OSError, EOFError, zlib.error) as error:
        raise SourceError(
            f"{path} cannot be read ({error}); expected a whole tar or tar.gz: download it again"
        ) from error


def entries(file: BinaryIO, where: str) -> Iterator[Entry]:
    """Yield every file and link of the tar in *file*, and nothing for folders.

    Args:
        file: Open at the archive's first byte.
        where: What an error calls the archive.

    Raises:
        SourceError: a header is damaged, a member is cut, leads outside or is a device, or there is no end mark.
    """
    offset, fields = 0, dict[str, str]()
    while True:
        header = _header(file, where, offset)
        if header is None:
            return
        size_bytes = int(fields.get("size", header.size_bytes))
        data = file.read(padded(size_bytes))
        if len(data) != padded(size_bytes):
            raise _damaged(where, offset, f"{header.name} with {len(data)} of {size_bytes} bytes")
        offset += BLOCK_BYTES + len(data)
        if header.kind in EXTENSION_KINDS:
            fields |= _understood(where, offset, partial(extension, header.kind), data[:size_bytes])
            continue
        if header.kind != FOLDER:
            yield _entry(header, fields, data[:size_bytes], where)
        fields = {}


def _header(file: BinaryIO, where: str, offset: int) -> Header | None:
    block = file.read(BLOCK_BYTES)
    if len(block) != BLOCK_BYTES:
        raise _damaged(where, offset, "the end of the file")
    return _understood(where, offset, read_header, block)


def _understood(where: str, offset: int, read: Callable[[bytes], T], data: bytes) -> T:
    try:
        return read(data)
    except ValueError as error:
        raise _damaged(where, offset, str(error)) from None


def _entry(header: Header, fields: dict[str, str], data: bytes, where: str) -> Entry:
    name = _inside(fields.get("path", header.name), where)
    if header.kind in FILE_KINDS:
        return Entry(name, data, "")
    target = fields.get("linkpath", header.link)
    if header.kind == HARD_LINK:
        return Entry(name, b"", _inside(target, where))
    if header.kind == SYMBOLIC_LINK:
        return Entry(name, b"", _inside(f"{name.rpartition('/')[0]}/{target}" if target[:1] != "/" else target, where))
    raise SourceError(f"{where}: {name} is of type {header.kind!r}; expected files, links and folders: take it out")


def _inside(name: str, where: str) -> str:
    """Return *name* without `.` parts and with `..` resolved, which must not lead outside the archive."""
    parts: list[str] = []
    for part in name.split("/"):
        if part == ".." and parts:
            parts.pop()
        elif part == "..":
            raise SourceError(f"{where}: {name!r} leads outside the archive; expected names inside it: take it out")
        elif part not in ("", "."):
            parts.append(part)
    if name.startswith("/") and parts:
        raise SourceError(f"{where}: {name!r} is an absolute name; expected names inside the archive: take it out")
    return "/".join(parts)


def _damaged(where: str, offset: int, found: str) -> SourceError:
    return SourceError(f"{where}: at byte {offset} found {found}; expected an undamaged archive with an end mark: "
                       "download it again")  # fmt: skip


def _refuse_compression(path: Path, start: bytes) -> None:
    for magic, name in _REFUSED.items():
        if start.startswith(magic):
            raise SourceError(f"{path} is compressed by {name}; expected tar or tar.gz: convert it")


def _compare_md5(path: Path, found: str, expected: str) -> None:
    if found != expected:
        raise SourceError(f"{path} has md5 {found}; expected {expected}: download it again")


class _Hashed(io.RawIOBase):
    """A file whose bytes are hashed in the order in which they are read."""

    def __init__(self, raw: io.FileIO) -> None:
        self.digest = hashlib.md5(usedforsecurity=False)
        self._raw = raw

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)
        count = self._raw.readinto(view) or 0
        self.digest.update(view[:count])
        return int(count)
