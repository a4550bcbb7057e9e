"""Exchange of result records through a URL, for machines without a common file system.

    <URL>/<folder of the record below the data root>/000001-<identity>.json
    <URL>/<folder of kept predictions below the data root>/<sha256>.parquet

Objects appear whole, and are never replaced: the identity is a hash of everything in the record except its number. Two
machines may both have a first record of a cell; when records are fetched, each gets the next free number, in the order
of their start times. As in a file, the hash inside a record proves it.
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

from tta_pipeline.data.remote_files import (
    list_recursively,
    read_whole,
    validate_url,
    write_file,
)
from tta_pipeline.data.server_requests import gather_bounded, run_and_wait
from tta_pipeline.domain.locations import RESULT_KINDS
from tta_pipeline.errors import RecordError
from tta_pipeline.results.records import (
    Record,
    parse_record,
    publish_record,
    read_record,
    read_record_bytes,
    record_file_name,
    record_numbers,
    record_paths,
)
from tta_pipeline.util.files import locked, write_once
from tta_pipeline.util.identifiers import is_benchmark_name
from tta_pipeline.util.progress import Reporter, quiet_reporter

_SCHEMES = ("s3", "gs")
_OBJECT = re.compile(r"([0-9]{6,17})-([0-9a-f]{64})\.json")
_NUM_AT_ONCE = 64
"""Approximate number of records that are fetched at once."""
_ADVICE = "remove it there; the machine that made it sends it again with its next run"


class _Object(NamedTuple):
    """A record at the URL."""

    folder: PurePosixPath
    """Folder of the record below the data root."""
    number: int
    identity: str

    @property
    def path(self) -> str:
        """Path of the object below the URL."""
        return f"{self.folder}/{self.number:06d}-{self.identity}.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class FetchResult:
    """Result of fetching records."""

    num_fetched: int
    num_known: int
    """Records at the URL that this data root had already."""
    set_aside: tuple[str, ...]
    """Damaged or foreign objects, which were not taken, each with the reason."""


@dataclass(frozen=True, kw_only=True)
class Sender:
    """Sender of a data root's records to a URL, which sends each record once."""

    root: Path
    url: str
    _done: set[Path] = field(default_factory=set)

    def send(self) -> int:
        """Send the records that are not at the URL yet, each after its predictions; return the number of records.

        Damaged records are not sent.

        Raises:
            StreamError: the URL is not on S3 or Google Cloud Storage, or cannot be listed or written to.
        """
        url = validate_url(self.url, expected=_SCHEMES)
        new = [path for path in record_paths(self.root) if path not in self._done]
        there = set(run_and_wait(list_recursively(url))) if new else set()
        identities = {found.identity for found in _parse_objects(there)}
        num_sent = 0
        for path in new:
            with suppress(RecordError):  # damaged records are reported when records are published
                num_sent += self._send_one(url, path, identities=identities, there=there)
            self._done.add(path)
        return num_sent

    def _send_one(self, url: str, path: Path, *, identities: set[str], there: set[str]) -> bool:
        data = read_record_bytes(path)
        record = parse_record(path, data)
        identity = record_identity(record)
        if identity in identities:
            return False
        folder = PurePosixPath(path.parent.relative_to(self.root))
        kept = _predictions_path(folder, record)
        if kept and str(kept) not in there and (self.root / kept).exists():
            predictions = (self.root / kept).read_bytes()
            run_and_wait(write_file(f"{url}/{kept}", predictions))
        run_and_wait(write_file(f"{url}/{_Object(folder, record.sequence, identity).path}", data))
        identities.add(identity)
        return True


def fetch_records(root: Path, url: str, progress: Reporter = quiet_reporter) -> FetchResult:
    """Fetch each record at *url* that is not here yet, with its predictions, and give it the next free number.

    Fetching again changes nothing; the next fetch completes one that was killed.

    Args:
        root: The data root.
        url: URL to which machines send their records.
        progress: Reporter of the records that are read.

    Raises:
        RecordError: a record cannot be written here.
        StreamError: *url* is not on S3 or Google Cloud Storage, or cannot be listed or read.
    """
    url = validate_url(url, expected=_SCHEMES)
    with locked(root / ".fetch.lock"):
        found = sorted(_parse_objects(run_and_wait(list_recursively(url))))
        known = {folder: _known_identities(root / folder) for folder in {each.folder for each in found}}
        new = [each for each in found if each.identity not in known[each.folder]]
        reading = progress("records", len(new), unit="records")
        set_aside: list[str] = []
        num_fetched = 0
        for several in _group_by_folder(new):
            records = list(_read_objects(root, url, several, set_aside))
            # Clocks only decide the order among records of several machines, for which there is no other criterion.
            for record in sorted(records, key=lambda each: (each.started_at, each.sequence)):
                if (identity := record_identity(record)) not in known[_folder_of(root, record)]:
                    _store_record(root, url, record)
                    known[_folder_of(root, record)].add(identity)
                    num_fetched += 1
            reading.advance(len(several))
    return FetchResult(num_fetched=num_fetched, num_known=len(found) - len(new), set_aside=tuple(set_aside))


def require_bucket(url: str) -> None:
    """Check that records can be sent to *url*.

    Raises:
        StreamError: *url* is not on S3 or Google Cloud Storage, or cannot be listed.
    """
    run_and_wait(list_recursively(validate_url(url, expected=_SCHEMES)))


def record_identity(record: Record) -> str:
    """Return a hash of everything in *record* except its number, which changes when the record is fetched."""
    content = [record.kind, record.run_id, record.started_at, record.versions, record.facts]
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _parse_objects(names: Collection[str]) -> Iterator[_Object]:
    """Yield the records among the objects with *names*; other objects are ignored."""
    for name in names:
        path = PurePosixPath(name)
        match = _OBJECT.fullmatch(path.name)
        if match and _is_record_folder(path.parent.parts):
            yield _Object(path.parent, int(match[1]), match[2])


def _is_record_folder(parts: tuple[str, ...]) -> bool:
    """Return whether *parts* are the path of a folder of records, starting with the benchmark."""
    is_below = len(parts) > 3 and ".." not in parts and is_benchmark_name(parts[0]) and parts[1] == "results"
    return is_below and (parts[2] in RESULT_KINDS or (parts[3] in RESULT_KINDS and len(parts) > 4))


def _known_identities(folder: Path) -> set[str]:
    found = set[str]()
    for number in record_numbers(folder):
        with suppress(RecordError):
            found.add(record_identity(read_record(folder / record_file_name(number))))
    return found


def _group_by_folder(objects: Sequence[_Object]) -> Iterator[list[_Object]]:
    """Yield the sorted *objects* in groups of at least `_NUM_AT_ONCE`; a folder's objects stay in one group."""
    several: list[_Object] = []
    for _, of_folder in groupby(objects, key=lambda each: each.folder):
        several += of_folder
        if len(several) >= _NUM_AT_ONCE:
            yield several
            several = []
    if several:
        yield several


def _read_objects(root: Path, url: str, objects: Sequence[_Object], set_aside: list[str]) -> Iterator[Record]:
    """Yield the records in *objects* that their hash proves; append the others, with the reason, to *set_aside*."""
    answers = run_and_wait(gather_bounded([read_whole(f"{url}/{each.path}") for each in objects]))
    for each, data in zip(objects, answers, strict=True):
        try:
            record = parse_record(root / each.folder / record_file_name(each.number), data)
        except RecordError as error:
            set_aside.append(f"{url}/{each.path} {error}; {_ADVICE}")
            continue
        if (found := record_identity(record)) == each.identity:
            yield record
        else:
            set_aside.append(f"{url}/{each.path} is foreign: its identity is {found}; {_ADVICE}")


def _store_record(root: Path, url: str, record: Record) -> None:
    """Write *record* with the next free number, after its predictions."""
    folder = _folder_of(root, record)
    kept = _predictions_path(folder, record)
    if kept and not (root / kept).exists():
        names = run_and_wait(list_recursively(f"{url}/{kept.parent}"))
        if kept.name in names:
            data = run_and_wait(read_whole(f"{url}/{kept}"))
            if hashlib.sha256(data).hexdigest() == kept.stem:  # else the evaluation's check reports it as missing
                write_once(root / kept, data)
    results, kind, name = _split_folder(folder)
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


def _split_folder(folder: PurePosixPath) -> tuple[PurePosixPath, str, str]:
    """Return results folder, kind and name of the records in *folder*."""
    parts = folder.parts
    at = next(at for at in (2, 3) if parts[at] in RESULT_KINDS)
    return PurePosixPath(*parts[:at]), parts[at], "/".join(parts[at + 1 :])


def _predictions_path(folder: PurePosixPath, record: Record) -> PurePosixPath | None:
    """Return the path, below the data root, of the predictions of *record* in *folder*; None if none were kept."""
    if record.evaluation is None or record.evaluation.samples_sha256 is None:
        return None
    results, _, name = _split_folder(folder)
    benchmark, _, *part = results.parts
    return PurePosixPath(benchmark, "predictions", *part, name, f"{record.evaluation.samples_sha256}.parquet")
