"""Downloads of the published archives of a shift set, resumed after a dropped connection and checked by md5.

<folder>/
  noise.tar                   a whole archive, whose md5 was compared
  noise.tar.unfinished        the bytes received so far, locked by the downloading process; a later start resumes here
  noise.tar.unfinished.json   URL and tag of the file on the server
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import urlsplit

from tta_pipeline.data.server_requests import (
    NoAnswerError,
    WebAnswer,
    ask_patiently,
    open_web_answer,
    run_and_wait,
    size_without_range,
)
from tta_pipeline.data.shifts.shift_set import PublishedArchive, ShiftSet
from tta_pipeline.errors import SourceError
from tta_pipeline.util.files import advice, fsync_path, write_atomically
from tta_pipeline.util.nearest_names import name_choices
from tta_pipeline.util.progress import Progress, Reporter, Step

_UNFINISHED = ".unfinished"
_PAUSES_S = (0.0, 1.0, 3.0, 10.0, 30.0)
"""Pause before each attempt; after an attempt that brought new bytes, the count starts again."""
_CHUNK_BYTES = 2**20
_MB = 10**6


@dataclass(frozen=True, kw_only=True)
class DownloadedArchive:
    """A whole archive."""

    path: Path
    size_bytes: int
    md5: str
    is_checked: bool
    """Whether the publisher gives an md5, so that it was compared."""
    num_received_bytes: int
    """Bytes received from the server this time; 0 if the archive was there already."""


def select_archives(
    shift_set: ShiftSet, *, archives: tuple[str, ...] = (), shifts: tuple[str, ...] = ()
) -> Mapping[str, PublishedArchive]:
    """Return the archives of *shift_set* named in *archives* or with any of *shifts*; all if both are empty."""
    known = shift_set.archives
    if not known:
        raise SourceError(
            f"the shift set {shift_set.name} names no archive; expected an archive to download: see "
            f"{shift_set.homepage or 'the page of its publisher'}"
        )
    if unsafe := [name for name in known if "/" in name or name.startswith(".")]:
        raise SourceError(f"found the archive {unsafe[0]!r}; expected the name of a file: correct the shift set")
    if unknown := [name for name in archives if name not in known]:
        choices = name_choices(unknown, known, listed_in="docs/data-sets.md")
        raise SourceError(f"found no archive {', '.join(unknown)}; expected some of {choices}")
    if unknown := [name for name in shifts if name not in shift_set.names]:
        choices = name_choices(unknown, shift_set.names, listed_in="the shift set's field names")
        raise SourceError(f"found no shift {', '.join(unknown)}; expected some of {choices}")
    if not archives and not shifts:
        return known
    return {
        name: archive
        for name, archive in known.items()
        if name in archives or (shifts and (not archive.shifts or set(shifts) & set(archive.shifts)))
    }


def download(
    archives: Mapping[str, PublishedArchive], folder: Path, progress: Reporter, *, homepage: str
) -> Iterator[Step[DownloadedArchive]]:
    """Yield each of *archives* as soon as it is whole in *folder*; an intact archive is not downloaded again."""
    lacking = {name: archive for name, archive in archives.items() if not (folder / name).exists()}
    _require_addresses(lacking, folder, homepage)
    _require_room(lacking, folder)
    for number, (name, archive) in enumerate(archives.items(), start=1):
        path = folder / name
        done = _download_one(archive, path, progress) if name in lacking else _check_existing(archive, path, progress)
        yield Step(number=number, total=len(archives), done=done)


def _require_addresses(archives: Mapping[str, PublishedArchive], folder: Path, homepage: str) -> None:
    if unknown := [name for name, archive in archives.items() if archive.url is None]:
        raise SourceError(
            f"no URL is known for {', '.join(unknown)}; expected them in {folder}: get them from "
            f"{homepage or 'the page of the publisher'} and put them there, or choose others with --archive"
        )
    for name, archive in archives.items():
        if urlsplit(archive.url or "").scheme not in ("http", "https"):
            raise SourceError(f"{name} has the url {archive.url}; expected one of http or https: correct the shift set")


def _require_room(archives: Mapping[str, PublishedArchive], folder: Path) -> None:
    """Refuse downloads that do not fit on the disk; archives of unknown size are checked once the server tells it."""
    needed_bytes = sum(
        max((each.size_bytes or 0) - _received_bytes(folder / name), 0) for name, each in archives.items()
    )
    _require_free(needed_bytes, folder, f"{len(archives)} archives")


def _require_free(needed_bytes: int, folder: Path, what: str) -> None:
    place = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
    free_bytes = shutil.disk_usage(place).free
    if needed_bytes > free_bytes:
        raise SourceError(
            f"{folder} has {free_bytes:,} bytes free; expected {needed_bytes:,} for {what}: make room, choose another "
            "folder, or fewer with --archive"
        )


def _received_bytes(path: Path) -> int:
    """Return the number of bytes received so far of the archive *path*."""
    beside = path.with_name(path.name + _UNFINISHED)
    return beside.stat().st_size if beside.exists() else 0


def _check_existing(archive: PublishedArchive, path: Path, progress: Reporter) -> DownloadedArchive:
    size_bytes = path.stat().st_size
    digest = hashlib.md5(usedforsecurity=False)
    told = _MegabyteProgress(progress(f"{path.name} is checked", size_bytes // _MB, unit="MB"))
    with path.open("rb") as file:
        while data := file.read(_CHUNK_BYTES):
            digest.update(data)
            told.advance(len(data))
    if problem := _problem(archive, size_bytes, digest.hexdigest()):
        raise SourceError(f"{path}: {problem} according to its publisher: remove it, and download it again")
    return DownloadedArchive(
        path=path,
        size_bytes=size_bytes,
        md5=digest.hexdigest(),
        is_checked=archive.md5 is not None,
        num_received_bytes=0,
    )


def _problem(archive: PublishedArchive, size_bytes: int, md5: str) -> str:
    """Return how an archive differs from its publisher's size and md5 in words; empty if it agrees."""
    if archive.size_bytes is not None and size_bytes != archive.size_bytes:
        return f"found {size_bytes:,} bytes; expected {archive.size_bytes:,}"
    if archive.md5 is not None and md5 != archive.md5:
        return f"found the md5 {md5}; expected {archive.md5}"
    return ""


def _download_one(archive: PublishedArchive, path: Path, progress: Reporter) -> DownloadedArchive:
    with _naming_the_disk(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_name(path.name + _UNFINISHED).open("a+b") as file:
            _lock_or_refuse(file, path)
            return _Download(archive, path, file, progress).run()


@contextmanager
def _naming_the_disk(path: Path) -> Iterator[None]:
    """Raise SourceError in place of an error of the file system; no server is then asked again because of it."""
    try:
        yield
    except OSError as error:
        raise SourceError(
            f"{path}: found {error.strerror or error}; expected a folder with room for it: {advice(error)}"
        ) from error


def _lock_or_refuse(file: BinaryIO, path: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SourceError(f"{path} is being downloaded by another process; expected only one: wait for it") from None


class _Origin(NamedTuple):
    """The file on the server that an unfinished download comes from."""

    url: str
    tag: str


class _MegabyteProgress:
    """Reports bytes to a progress in whole megabytes."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._rest = 0

    def advance(self, num_bytes: int) -> None:
        whole, self._rest = divmod(self._rest + num_bytes, _MB)
        self._progress.advance(whole)


class _Download:
    """The download of one archive into a locked file that is open for appending."""

    def __init__(self, archive: PublishedArchive, path: Path, file: BinaryIO, progress: Reporter) -> None:
        assert archive.url is not None
        self._url = archive.url
        self._archive = archive
        self._path = path
        self._file = file
        self._progress = progress
        self._note = path.with_name(f"{path.name}{_UNFINISHED}.json")
        self._tag = ""
        self._num_received_bytes = 0
        self._told: _MegabyteProgress | None = None

    def run(self) -> DownloadedArchive:
        """Resume an earlier download, if any, until the archive is whole; rename and return the archive."""
        self._resume()
        if self._archive.size_bytes is None or self._num_bytes != self._archive.size_bytes:
            self._fetch()
        md5, size_bytes = self._digest.hexdigest(), self._num_bytes
        if problem := _problem(self._archive, size_bytes, md5):
            Path(self._file.name).unlink()
            self._note.unlink(missing_ok=True)
            raise SourceError(
                f"{self._url}: {problem} according to its publisher; it was removed: download it again later, or check "
                "the publisher's page for a new md5"
            )
        os.fsync(self._file.fileno())
        Path(self._file.name).rename(self._path)
        self._note.unlink(missing_ok=True)
        fsync_path(self._path.parent)
        return DownloadedArchive(
            path=self._path,
            size_bytes=size_bytes,
            md5=md5,
            is_checked=self._archive.md5 is not None,
            num_received_bytes=self._num_received_bytes,
        )

    def _resume(self) -> None:
        """Hash the bytes of an earlier download if they come from the same URL, otherwise discard them."""
        self._digest = hashlib.md5(usedforsecurity=False)
        self._num_bytes = 0
        origin = self._origin()
        if origin.url != self._url:
            self._restart("")
            return
        self._tag = origin.tag
        self._file.seek(0)
        while data := self._file.read(_CHUNK_BYTES):
            self._digest.update(data)
            self._num_bytes += len(data)

    def _origin(self) -> _Origin:
        try:
            content: Any = json.loads(self._note.read_bytes())
            return _Origin(str(content["url"]), str(content["tag"]))
        except (OSError, ValueError, KeyError, TypeError):
            return _Origin("", "")

    def _restart(self, tag: str) -> None:
        """Discard the bytes received so far; the next bytes belong to the file with this *tag*."""
        with _naming_the_disk(self._path):
            self._file.truncate(0)
            write_atomically(self._note, json.dumps({"url": self._url, "tag": tag}).encode())
        self._digest = hashlib.md5(usedforsecurity=False)
        self._num_bytes = 0
        self._tag = tag

    def _fetch(self) -> None:
        """Request the archive until all of it has arrived."""
        try:
            run_and_wait(ask_patiently(self._receive, pauses_s=_PAUSES_S, count_received=lambda: self._num_bytes))
        except NoAnswerError as error:
            raise SourceError(
                f"{self._url}: found {error} at byte {self._num_bytes:,}; expected the rest of {self._path.name}: "
                "try again, which resumes from there, or open this URL in a browser"
            ) from None

    async def _receive(self) -> None:
        """Request the missing bytes, and append them as they arrive."""
        headers = {"Range": f"bytes={self._num_bytes}-"} if self._num_bytes else {}
        if self._num_bytes and self._tag and not self._tag.startswith("W/"):
            headers["If-Range"] = self._tag
        try:
            async with open_web_answer(self._url, headers) as answer:
                total_bytes = self._check_answer(answer)
                self._require_room_for(total_bytes)
                async for data in answer.pieces():
                    self._append(data, total_bytes)
        except Exception as error:
            whole_bytes = size_without_range(error)
            if whole_bytes is None:
                raise
            if whole_bytes == self._num_bytes:
                return  # all of it has arrived
            self._restart("")
            raise NoAnswerError("that the server has a shorter file now") from None
        if total_bytes is not None and self._num_bytes != total_bytes:
            raise NoAnswerError(f"the end of the answer, {total_bytes - self._num_bytes:,} bytes too early")

    def _check_answer(self, answer: WebAnswer) -> int | None:
        """Make sure that the answer continues the received bytes, or start again; return the size of the archive."""
        if answer.is_range:
            if answer.start != self._num_bytes:
                found = "no stated range" if answer.start is None else f"a range from byte {answer.start} on"
                raise NoAnswerError(f"{found} in answer to one from byte {self._num_bytes} on")
            if self._tag and answer.facts.tag and answer.facts.tag != self._tag:
                self._restart("")
                raise NoAnswerError("that the server has another file now")
        else:
            self._restart(answer.facts.tag)
        total_bytes = answer.facts.size_bytes if answer.facts.size_bytes >= 0 else None
        stated = self._archive.size_bytes
        if stated is not None and total_bytes not in (None, stated):
            raise NoAnswerError(f"a file of {total_bytes:,} bytes; its publisher says {stated:,}", is_final=True)
        return total_bytes or stated

    def _require_room_for(self, total_bytes: int | None) -> None:
        if total_bytes is None:
            return
        _require_free(total_bytes - self._num_bytes, self._path.parent, self._path.name)
        if self._told is None:
            left_mb = (total_bytes - self._num_bytes) // _MB
            self._told = _MegabyteProgress(self._progress(self._path.name, left_mb, unit="MB"))

    def _append(self, data: bytes, total_bytes: int | None) -> None:
        if total_bytes is not None and self._num_bytes + len(data) > total_bytes:
            self._restart("")
            raise NoAnswerError(f"more than the {total_bytes:,} bytes of the whole file")
        with _naming_the_disk(self._path):
            self._file.write(data)
            self._file.flush()
        self._digest.update(data)
        self._num_bytes += len(data)
        self._num_received_bytes += len(data)
        if self._told:
            self._told.advance(len(data))
