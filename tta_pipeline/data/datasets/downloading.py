"""Downloads of the published archives of a dataset, resumed after a dropped connection and checked by md5.

<folder>/
  noise.tar                   a whole archive, whose md5 was compared
  noise.tar.unfinished        the bytes received so far, locked by the downloading process; a later start resumes here
  noise.tar.unfinished.json   URL, size and tag of the file on the server
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from io import FileIO
from pathlib import Path
from urllib.parse import urlsplit

from tta_pipeline.data.copied_file import copy_file
from tta_pipeline.data.datasets.dataset import Dataset, PublishedArchive
from tta_pipeline.data.remote_files import FileFacts, fetch_file_facts
from tta_pipeline.errors import ImagesError, StreamError
from tta_pipeline.util.daemon_threads import run_ahead
from tta_pipeline.util.files import advice, fsync_path, write_atomically
from tta_pipeline.util.nearest_names import name_choices
from tta_pipeline.util.plurals import count_of
from tta_pipeline.util.progress import Progress, Reporter, Step

_UNFINISHED = ".unfinished"
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
    dataset: Dataset, *, archives: tuple[str, ...] = (), shifts: tuple[str, ...] = ()
) -> Mapping[str, PublishedArchive]:
    """Return the archives of *dataset* named in *archives* or with any of *shifts*; all if both are empty."""
    known = dataset.archives
    if not known:
        raise ImagesError(
            f"The dataset {dataset.name} has no archive to download; expected a dataset with archives: see "
            f"{dataset.homepage or 'the page of its publisher'}"
        )
    if unsafe := [name for name in known if "/" in name or name.startswith(".")]:
        raise ImagesError(
            f"The archive {unsafe[0]!r} is not a plain file name; expected a name without folders: correct the dataset"
        )
    if unknown := [name for name in archives if name not in known]:
        choices = name_choices(unknown, known, listed_in="the dataset's own page")
        raise ImagesError(
            f"There is no archive named {', '.join(unknown)}; expected any of {choices}: correct --archive"
        )
    if unknown := [name for name in shifts if name not in dataset.names]:
        choices = name_choices(unknown, dataset.names, listed_in="the field `names` of the dataset")
        raise ImagesError(f"There is no shift named {', '.join(unknown)}; expected any of {choices}: correct --shift")
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
        raise ImagesError(
            f"No URL is known for {', '.join(unknown)}; expected these files in {folder}: download them from "
            f"{homepage or 'the page of the publisher'} into that folder, or choose other archives with --archive"
        )
    for name, archive in archives.items():
        if urlsplit(archive.url or "").scheme not in ("http", "https"):
            raise ImagesError(f"The URL of {name} is {archive.url}; expected http or https: correct the dataset")


def _require_room(archives: Mapping[str, PublishedArchive], folder: Path) -> None:
    """Refuse downloads that do not fit on the disk; archives of unknown size are checked when the server sends it."""
    needed_bytes = sum(
        max((each.size_bytes or 0) - _received_bytes(folder / name), 0) for name, each in archives.items()
    )
    _require_free(needed_bytes, folder, count_of(len(archives), "archive"))


def _require_free(needed_bytes: int, folder: Path, what: str) -> None:
    place = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
    free_bytes = shutil.disk_usage(place).free
    if needed_bytes > free_bytes:
        raise ImagesError(
            f"Only {free_bytes:,} bytes are free in {folder}; expected {needed_bytes:,} for {what}: free some space, "
            "choose another folder, or download fewer archives with --archive"
        )


def _received_bytes(path: Path) -> int:
    """Return the number of bytes received so far of the archive *path*."""
    beside = path.with_name(path.name + _UNFINISHED)
    return beside.stat().st_size if beside.exists() else 0


def _check_existing(archive: PublishedArchive, path: Path, progress: Reporter) -> DownloadedArchive:
    size_bytes = path.stat().st_size
    told = _MegabyteProgress(progress(f"{path.name} is checked", size_bytes // _MB, unit="MB"))
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while data := file.read(_MB):
            digest.update(data)
            told.advance(len(data))
    if problem := _problem(archive, size_bytes, digest.hexdigest()):
        raise ImagesError(f"{path}: {problem} according to its publisher: remove it, and download it again")
    return DownloadedArchive(
        path=path,
        size_bytes=size_bytes,
        md5=digest.hexdigest(),
        is_checked=archive.md5 is not None,
        num_received_bytes=0,
    )


def _problem(archive: PublishedArchive, size_bytes: int, md5: str) -> str:
    """Return in words how an archive differs from its publisher's size and md5; empty if it agrees."""
    if archive.size_bytes is not None and size_bytes != archive.size_bytes:
        return f"found {size_bytes:,} bytes; expected {archive.size_bytes:,}"
    if archive.md5 is not None and md5 != archive.md5:
        return f"found the md5 {md5}; expected {archive.md5}"
    return ""


def _download_one(archive: PublishedArchive, path: Path, progress: Reporter) -> DownloadedArchive:
    """Receive an archive, or the rest of it, under another name; rename and return it once it is whole."""
    assert archive.url is not None
    unfinished = path.with_name(path.name + _UNFINISHED)
    facts = _fetch_facts(archive)
    with _naming_the_disk(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("a+b", buffering=0) as file:
            _lock_or_refuse(file, path)
            _forget_another_file(file, archive.url, facts)
            missing_bytes = facts.size_bytes - file.seek(0, os.SEEK_END)
            _require_free(missing_bytes, path.parent, path.name)
            told = _MegabyteProgress(progress(path.name, missing_bytes // _MB, unit="MB"))
            receive = partial(copy_file, out=file, facts=facts, algorithm="md5", report=told.advance)
            with _naming_what_to_do():
                (md5,) = run_ahead(receive, [archive.url])
            if problem := _problem(archive, facts.size_bytes, md5):
                unfinished.unlink()
                _note(unfinished).unlink()
                raise ImagesError(
                    f"{archive.url}: {problem} according to its publisher; it was removed: download it again later, or "
                    "check the publisher's page for a new md5"
                )
            os.fsync(file.fileno())
        unfinished.rename(path)
        _note(unfinished).unlink()
        fsync_path(path.parent)
    return DownloadedArchive(
        path=path,
        size_bytes=facts.size_bytes,
        md5=md5,
        is_checked=archive.md5 is not None,
        num_received_bytes=told.num_bytes,
    )


def _fetch_facts(archive: PublishedArchive) -> FileFacts:
    """Return the server's facts about an archive; raise an error if its size differs from the publisher's."""
    assert archive.url is not None
    with _naming_what_to_do():
        (facts,) = fetch_file_facts([archive.url])
    if problem := _problem(archive, facts.size_bytes, archive.md5 or ""):
        raise ImagesError(f"{archive.url}: {problem} according to its publisher: see the publisher's page")
    return facts


@contextmanager
def _naming_what_to_do() -> Iterator[None]:
    try:
        yield
    except StreamError as error:
        raise ImagesError(f"{error}; try again, which resumes, or open this URL in a browser") from None


def _forget_another_file(file: FileIO, url: str, facts: FileFacts) -> None:
    """Empty an unfinished *file* if the file at *url* has changed, and record the server's current facts."""
    note = _note(Path(file.name))
    expected = json.dumps({"url": url, "size_bytes": facts.size_bytes, "tag": facts.tag}).encode()
    if not note.exists() or note.read_bytes() != expected:
        file.truncate(0)
        write_atomically(note, expected)


def _note(unfinished: Path) -> Path:
    return unfinished.with_name(f"{unfinished.name}.json")


@contextmanager
def _naming_the_disk(path: Path) -> Iterator[None]:
    """Raise ImagesError instead of a file system error, so that no download is tried again because of it."""
    try:
        yield
    except OSError as error:
        raise ImagesError(
            f"{path} cannot be written ({error.strerror or error}); expected a folder with enough free space: "
            f"{advice(error)}"
        ) from error


def _lock_or_refuse(file: FileIO, path: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ImagesError(
            f"Another process is downloading {path}; expected only one: wait until it has finished"
        ) from None


class _MegabyteProgress:
    """Reports bytes to a progress in whole megabytes."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.num_bytes = 0

    def advance(self, num_bytes: int) -> None:
        self._progress.advance((self.num_bytes + num_bytes) // _MB - self.num_bytes // _MB)
        self.num_bytes += num_bytes
