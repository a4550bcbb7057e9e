"""Result records at a URL, for machines that share no file system: sent whole, fetched, verified and numbered anew.

    <URL>/<folder of the record below the data root>/000001-<identity>.json
    <URL>/<folder of kept predictions below the data root>/<sha256>.parquet

An object appears whole, and is never replaced by another: the identity is a hash of everything in the record but its
number. Two machines may both have a first record of a cell; where they are fetched, each gets the next free number, in
the order of their start times. What a record says is proved by the hash inside it, as in a file.
"""

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from tta_pipeline.data.remote_files import checked_url, listed_below, read_range, together, waited_for, write_file
from tta_pipeline.errors import RecordError
from tta_pipeline.results.files import (
    KINDS,
    RECORD_VERSION,
    Record,
    file_name,
    numbers,
    parsed,
    publish_record,
    read_record,
    record_bytes,
    record_paths,
)
from tta_pipeline.util.files import locked, read_file, write_once
from tta_pipeline.util.naming import is_benchmark_name
from tta_pipeline.util.progress import Reporter, quiet

_SCHEMES = ("s3", "gs")
_OBJECT = re.compile(r"([0-9]{6,17})-([0-9a-f]{64})\.json")
_NUM_AT_ONCE = 64
"""Records that are fetched at once, or somewhat more."""
_MOST_BYTES = 2**36
_ADVICE = "remove it there; the machine that made it sends it again with its next run"


class _Object(NamedTuple):
    """A record at the URL."""

    folder: PurePosixPath
    """Folder of the record below the data root."""
    number: int
    identity: str

    @property
    def path(self) -> str:
        """Its path below the URL."""
        return f"{self.folder}/{self.number:06d}-{self.identity}.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Fetched:
    """Result of fetching records."""

    num_fetched: int
    num_known: int
    """Records at the URL that were here already."""
    set_aside: tuple[str, ...]
    """Objects that are damaged or foreign, each with the reason; they were not taken."""


@dataclass(frozen=True, kw_only=True)
class Sender:
    """Sends the records of a data root to a URL, each once."""

    root: Path
    url: str
    _done: set[Path] = field(default_factory=set)

    def send(self) -> int:
        """Send the records that are not at the URL yet, each after the predictions that it names; return their number.

        Records of version 1, which prove nothing, and damaged ones stay here.

        Raises:
            StreamError: the URL is none of S3 or Google Cloud Storage, or cannot be listed or written to.
        """
        url = checked_url(self.url, expected=_SCHEMES)
        new = [path for path in record_paths(self.root) if path not in self._done]
        there = set(waited_for(listed_below(url))) if new else set()
        identities = {found.identity for found in _objects(there)}
        num_sent = 0
        for path in new:
            with suppress(RecordError):  # a damaged one is reported where records are published
                num_sent += self._sent(url, path, identities=identities, there=there)
            self._done.add(path)
        return num_sent

    def _sent(self, url: str, path: Path, *, identities: set[str], there: set[str]) -> bool:
        data = record_bytes(path)
        record = parsed(path, data)
        identity = identity_of(record)
        if record.version != RECORD_VERSION or identity in identities:
            return False
        folder = PurePosixPath(path.parent.relative_to(self.root))
        kept = _kept_predictions(folder, record)
        if kept and str(kept) not in there and (self.root / kept).exists():
            predictions = read_file(self.root / kept, limit_bytes=_MOST_BYTES)
            waited_for(write_file(f"{url}/{kept}", predictions))
        waited_for(write_file(f"{url}/{_Object(folder, record.sequence, identity).path}", data))
        identities.add(identity)
        return True


def fetch_records(root: Path, url: str, progress: Reporter = quiet) -> Fetched:
    """Take over each record at *url* that is not here, with the next free number, and the predictions that it names.

    Fetching again changes nothing; a fetch that was killed is finished by the next.

    Args:
        root: The data root.
        url: Where machines send their records.
        progress: Reporter of the records that are read.

    Raises:
        RecordError: a record cannot be written here.
        StreamError: *url* is none of S3 or Google Cloud Storage, or cannot be listed or read.
    """
    url = checked_url(url, expected=_SCHEMES)
    with locked(root / ".fetch.lock"):
        found = sorted(_objects(waited_for(listed_below(url))))
        known = {folder: _identities(root / folder) for folder in {each.folder for each in found}}
        new = [each for each in found if each.identity not in known[each.folder]]
        reading = progress("records", len(new), unit="records")
        set_aside: list[str] = []
        num_fetched = 0
        for several in _by_folder(new):
            records = list(_read(root, url, several, set_aside))
            # Clocks decide only how records of several machines follow one another, which nothing else could.
            for record in sorted(records, key=lambda each: (each.started_at, each.sequence)):
                if (identity := identity_of(record)) not in known[_folder_of(root, record)]:
                    _take(root, url, record)
                    known[_folder_of(root, record)].add(identity)
                    num_fetched += 1
            reading.advance(len(several))
    return Fetched(num_fetched=num_fetched, num_known=len(found) - len(new), set_aside=tuple(set_aside))


def require_bucket(url: str) -> None:
    """Refuse a *url* to which no records can be sent.

    Raises:
        StreamError: it is none of S3 or Google Cloud Storage, or cannot be listed.
    """
    waited_for(listed_below(checked_url(url, expected=_SCHEMES)))


def identity_of(record: Record) -> str:
    """Return a hash of everything in *record* but its number, which is another one wherever it is taken over."""
    content = [record.kind, record.run_id, record.started_at, record.versions, record.facts]
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _objects(names: Collection[str]) -> Iterator[_Object]:
    """Yield the records among objects with *names*; others are somebody's."""
    for name in names:
        path = PurePosixPath(name)
        match = _OBJECT.fullmatch(path.name)
        if match and _is_of_results(path.parent.parts):
            yield _Object(path.parent, int(match[1]), match[2])


def _is_of_results(parts: tuple[str, ...]) -> bool:
    """Return whether *parts* are the names of a folder of records, from the benchmark on."""
    is_below = len(parts) > 3 and ".." not in parts and is_benchmark_name(parts[0]) and parts[1] == "results"
    return is_below and (parts[2] in KINDS or (parts[3] in KINDS and len(parts) > 4))


def _identities(folder: Path) -> set[str]:
    found = set[str]()
    for number in numbers(folder):
        with suppress(RecordError):
            found.add(identity_of(read_record(folder / file_name(number))))
    return found


def _by_folder(objects: Sequence[_Object]) -> Iterator[list[_Object]]:
    """Yield *objects*, which are sorted, some at a time; those of one folder come together, since they are ordered."""
    several: list[_Object] = []
    for _, of_folder in groupby(objects, key=lambda each: each.folder):
        several += of_folder
        if len(several) >= _NUM_AT_ONCE:
            yield several
            several = []
    if several:
        yield several


def _read(root: Path, url: str, objects: Sequence[_Object], set_aside: list[str]) -> Iterator[Record]:
    """Yield the records of *objects* that prove what they say; say of the others why they do not, in *set_aside*."""
    answers = waited_for(together([read_range(f"{url}/{each.path}") for each in objects]))
    for each, data in zip(objects, answers, strict=True):
        try:
            record = parsed(root / each.folder / file_name(each.number), data)
        except RecordError as error:
            set_aside.append(f"{url}/{each.path} {error}; {_ADVICE}")
            continue
        if (found := identity_of(record)) == each.identity:
            yield record
        else:
            set_aside.append(f"{url}/{each.path} is foreign: its identity is {found}; {_ADVICE}")


def _take(root: Path, url: str, record: Record) -> None:
    """Write *record* with the next free number, after the predictions that it names."""
    folder = _folder_of(root, record)
    kept = _kept_predictions(folder, record)
    if kept and not (root / kept).exists():
        names = waited_for(listed_below(f"{url}/{kept.parent}"))
        if kept.name in names:
            data = waited_for(read_range(f"{url}/{kept}"))
            if hashlib.sha256(data).hexdigest() == kept.stem:  # if not, the check of the evaluation misses it
                write_once(root / kept, data)
    results, kind, name = _place(folder)
    publish_record(
        root / results,
        kind=kind,
        name=name,
        run_id=record.run_id,
        started_at=record.started_at,
        facts=dict(record.facts),
        versions_then=record.versions,
    )


def _folder_of(root: Path, record: Record) -> PurePosixPath:
    return PurePosixPath(record.path.parent.relative_to(root))


def _place(folder: PurePosixPath) -> tuple[PurePosixPath, str, str]:
    """Return results folder, kind and name of the records in *folder*."""
    parts = folder.parts
    at = next(at for at in (2, 3) if parts[at] in KINDS)
    return PurePosixPath(*parts[:at]), parts[at], "/".join(parts[at + 1 :])


def _kept_predictions(folder: PurePosixPath, record: Record) -> PurePosixPath | None:
    """Return the path below the data root of the predictions that *record*, which lies in *folder*, names."""
    if record.evaluation is None or record.evaluation.samples_sha256 is None:
        return None
    results, _, name = _place(folder)
    benchmark, _, *part = results.parts
    return PurePosixPath(benchmark, "predictions", *part, name, f"{record.evaluation.samples_sha256}.parquet")
