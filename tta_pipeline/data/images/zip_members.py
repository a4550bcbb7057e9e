"""The members of a zip, read once in the order of the file."""

import hashlib
import io
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from tta_pipeline.data.images.archive_entry import Entry, require_inside, require_md5, resolve_link
from tta_pipeline.errors import ImagesError
from tta_pipeline.util.progress import Progress, Reporter, quiet_reporter

STARTS = (b"PK\x03\x04", b"PK\x05\x06")
"""First bytes of a zip, and of one without members."""
_CHUNK_BYTES = 2**20
_MAX_READ_BYTES = 2**28  # the central directory is read at once: 1.3 million names of ILSVRC2012 take 0.15 GB
_MAX_LINK_BYTES = 4096
_LOCAL_HEADER_BYTES = 30
_ENCRYPTED, _IS_UTF8 = 0x1, 0x800
_DAMAGES = (
    zipfile.BadZipFile, OSError, EOFError, zlib.error, struct.error, ValueError, RuntimeError, OverflowError,
)  # fmt: skip
"""What zipfile raises on damaged bytes; a name that is not UTF-8 is a ValueError."""


@contextmanager
def opened_zip(
    path: Path, *, expected_md5: str | None = None, progress: Reporter = quiet_reporter
) -> Iterator["ZipMembers"]:
    """Open a zip for one pass; if an md5 is expected, compare it before.

    *progress* reports the MiB passed.
    """
    with _opened(path) as file:
        if expected_md5:
            require_md5(_md5_of(file), expected_md5, where=path)
        try:
            opened = zipfile.ZipFile(file)
        except _DAMAGES as error:
            raise _damage(path, f"no intact central directory ({error})") from error
        with opened:
            yield ZipMembers(opened, path, progress(path.name, path.stat().st_size // 2**20, unit="MiB"))


class ZipMembers:
    """The files and links of one zip; the sum (CRC) of each member that is read whole is compared.

    Raises:
        ImagesError: a name appears twice, is absolute or leads outside the archive; members overlap, as in a bomb; a
            member is encrypted, compressed with anything but deflate, or of a special kind.
    """

    def __init__(self, opened: zipfile.ZipFile, path: Path, steps: Progress) -> None:
        self._opened = opened
        self._path = path
        self._steps = steps
        self._members = sorted(opened.infolist(), key=lambda member: member.header_offset)
        for member in self._members:
            member.filename = _plain_name(path, member)
        self._latest: zipfile.ZipInfo | None = None
        self._file: IO[bytes] | None = None
        _require_apart(path, self._members, end=opened.start_dir)
        _require_unique(path, self._members)

    def __iter__(self) -> Iterator[Entry]:
        """Yield every file and link, but no folders."""
        passed = 0
        for member in self._members:
            self._close()
            self._latest = member
            entry = self._entry(member)
            self._steps.advance(member.header_offset // 2**20 - passed)
            passed = member.header_offset // 2**20
            if entry is not None:
                yield entry
        self._close()

    def read(self, size_bytes: int = -1) -> bytes:
        """Return up to *size_bytes* of the latest member's remaining bytes; all of them if *size_bytes* is negative."""
        assert self._latest is not None
        try:
            if self._file is None:
                self._file = self._opened.open(self._latest)
            data = self._file.read(self._latest.file_size if size_bytes < 0 else size_bytes)
        except _DAMAGES as error:
            raise _damage(self._path, f"{self._latest.filename!r} with data that cannot be read ({error})") from error
        if size_bytes < 0 and self._file.tell() != self._latest.file_size:
            found = f"{self._latest.filename!r} with fewer bytes than the {self._latest.file_size} of its entry"
            raise _damage(self._path, found)
        return data

    def _entry(self, member: zipfile.ZipInfo) -> Entry | None:
        name = require_inside(member.filename, where=str(self._path))
        if member.flag_bits & _ENCRYPTED:
            raise ImagesError(f"{self._path}: {name} is encrypted; expected a zip without a password: unpack it")
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ImagesError(
                f"{self._path}: {name} is compressed with method {member.compress_type}; expected deflate or no "
                "compression: unpack it, or repack it"
            )
        kind = stat.S_IFMT(member.external_attr >> 16)
        if member.is_dir() or kind == stat.S_IFDIR:
            return None
        if kind == stat.S_IFLNK:
            return Entry(name, self._read_target(name, member), 0)
        if kind not in (0, stat.S_IFREG):
            raise ImagesError(
                f"{self._path}: {name} is a special file; expected only files, links and folders: remove it from the "
                "archive"
            )
        return Entry(name, "", member.file_size)

    def _read_target(self, name: str, member: zipfile.ZipInfo) -> str:
        if member.file_size > _MAX_LINK_BYTES:
            raise _damage(self._path, f"{name!r}, a link of {member.file_size} bytes")
        target = os.fsdecode(self.read())
        return resolve_link(name, target, is_symbolic=True, where=str(self._path))

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class _BoundedFile(io.FileIO):
    """A file that limits each read to the size of a plausible central directory."""

    def read(self, size_bytes: int | None = -1, /) -> bytes:
        """Return *size_bytes* of the file, or the rest of it, cut at the limit."""
        if size_bytes is None or size_bytes < 0:
            size_bytes = _MAX_READ_BYTES
        if size_bytes > _MAX_READ_BYTES:
            raise ValueError(f"{size_bytes} bytes to read at once; expected at most {_MAX_READ_BYTES}")
        return super().read(size_bytes) or b""


def _opened(path: Path) -> _BoundedFile:
    try:
        return _BoundedFile(path)
    except OSError as error:
        raise ImagesError(
            f"{path} cannot be read ({error.strerror}); expected a zip archive: check the path and your permissions"
        ) from error


def _md5_of(file: _BoundedFile) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    while data := file.read(_CHUNK_BYTES):
        digest.update(data)
    return digest.hexdigest()


def _plain_name(path: Path, member: zipfile.ZipInfo) -> str:
    """Return the name of *member* with slashes and in the encoding that its writer used, even without the UTF-8 flag.

    Windows' own programs wrote backslashes, and others UTF-8 without its flag; any other name without the flag is in
    code page 437.
    """
    if "\0" in member.orig_filename:  # zipfile cuts the name there
        raise _damage(path, f"the name {member.orig_filename!r}")
    name = member.filename  # from Python 3.12 on, the Unicode name in the extra fields if there is one
    if name == member.orig_filename and not member.flag_bits & _IS_UTF8 and not name.isascii():
        with suppress(UnicodeDecodeError):
            name = name.encode("cp437").decode()
    return name.replace("\\", "/")


def _require_apart(path: Path, members: Sequence[zipfile.ZipInfo], *, end: int) -> None:
    """Refuse members that share bytes: from a few of them a bomb makes any number of files."""
    nexts = [member.header_offset for member in members[1:]]
    for member, limit in zip(members, [*nexts, end], strict=False):
        if member.header_offset < 0 or member.header_offset + _LOCAL_HEADER_BYTES + member.compress_size > limit:
            raise _damage(path, f"{member.filename!r} with bytes of the next member or of the central directory")


def _require_unique(path: Path, members: Sequence[zipfile.ZipInfo]) -> None:
    seen = set[str]()
    for member in members:
        if member.filename in seen:
            raise ImagesError(
                f"{path}: {member.filename} occurs twice; expected unique names: remove one of the two files"
            )
        seen.add(member.filename)


def _damage(path: Path, found: str) -> ImagesError:
    return ImagesError(f"{path}: found {found}; expected an undamaged zip: download it again")
