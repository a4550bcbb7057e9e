"""Result records: one small file for each thing measured, written once, and the truth behind the database.

    <data root>/<benchmark>/results/
      evaluations/<experiment>/<corruption>-<severity>/000001.json
      shard_sets/[<transform>/]<corruption>-<severity>/000001.json
      loader_benchmarks/<corruption>-<severity>/000001.json

The number is the order of the records of one cell; no clock is asked for it.
"""

import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tta_pipeline.errors import RecordError
from tta_pipeline.files import write_once

RECORD_VERSION = 1
KINDS = ("evaluations", "loader_benchmarks", "shard_sets")
_PACKAGES = ("tta_pipeline", "torch", "torchvision", "numpy", "pillow", "simplejpeg", "dagster", "duckdb")


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """One measurement with what a reader needs to trust it."""

    kind: str
    run_id: str
    sequence: int
    """Position among the records of the same thing, from 1."""
    started_at: str
    """UTC, for people; never for order."""
    versions: Mapping[str, str]
    facts: Mapping[str, Any]
    path: Path


def now() -> str:
    """Return the time in UTC, as records have it."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def publish_record(
    results: Path, *, kind: str, name: str, run_id: str, started_at: str, facts: Mapping[str, Any]
) -> Record:
    """Write one record of *kind* under *results*, after those that *name* has already.

    Raises:
        RecordError: a fact is no finite number, or the file cannot be written.
    """
    folder = results / kind / name
    content = {
        "version": RECORD_VERSION,
        "kind": kind,
        "run_id": run_id,
        "started_at": started_at,
        "versions": versions(),
        "facts": facts,
    }
    try:
        data = json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
        return read_record(_write_next(folder, data))
    except (OSError, ValueError) as error:
        raise RecordError(
            f"{folder}: a record of run {run_id} cannot be written ({error}); expected finite numbers and room to write"
        ) from error


def latest_record(results: Path, *, kind: str, name: str) -> Record | None:
    """Return the newest record of *name*, or None if it has none."""
    paths = _numbered(results / kind / name)
    return read_record(paths[-1]) if paths else None


def record_paths(data_root: Path) -> Iterator[Path]:
    """Yield the paths of all records under *data_root*, in an order that is always the same."""
    for kind in KINDS:
        yield from sorted(data_root.glob(f"*/results/{kind}/**/[0-9]*.json"))


def unread_records(data_root: Path, known: Mapping[str, Sequence[int]]) -> Iterator[Path]:
    """Yield the paths of the records under *data_root* that are not *known*, in an order that is always the same.

    A folder in which nothing is new costs its listing and one comparison, so that a million records take a second.

    Args:
        data_root: What holds the benchmarks' results.
        known: Numbers, rising, of the records of each folder, which is relative to *data_root*.
    """
    for kind in KINDS:
        for results in sorted(data_root.glob(f"*/results/{kind}")):
            for folder, names in _listed(str(results.relative_to(data_root)), str(data_root)):
                numbers = known.get(folder, ())
                # A new record has a higher number than all others.
                if len(names) == len(numbers) and max(names) == _file_name(numbers[-1]):
                    continue
                found = {int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdecimal()}
                yield from (data_root / folder / _file_name(number) for number in sorted(found.difference(numbers)))


def read_record(path: Path) -> Record:
    """Read one record.

    Raises:
        RecordError: it is damaged or of another version.
    """
    try:
        content = json.loads(path.read_bytes())
        version_found = content.pop("version")
        record = Record(path=path, sequence=int(path.stem), **content)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordError(f"{path} is no result record ({error!r}); move it out of the results folder") from error
    if version_found != RECORD_VERSION:
        raise RecordError(
            f"{path} has version {version_found}; expected {RECORD_VERSION}: use the tta_pipeline that wrote it"
        )
    return record


def versions() -> dict[str, str]:
    """Return the versions of what a result depends on."""
    installed = {name: _version(name) for name in _PACKAGES}
    return {"python": sys.version.split()[0], "platform": platform.platform(), "host": platform.node(), **installed}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _write_next(folder: Path, data: bytes) -> Path:
    """Write *data* under the first free number, also when other processes write into *folder*."""
    while True:
        taken = _numbered(folder)
        path = folder / _file_name(int(taken[-1].stem) + 1 if taken else 1)
        if write_once(path, data):
            return path


def _listed(folder: str, root: str) -> Iterator[tuple[str, list[str]]]:
    """Yield every folder at or under *folder*, a path in *root*, that holds records, with the names in it.

    Text all through, since an object for each of very many paths would take most of the time.
    """
    try:
        names = os.listdir(f"{root}/{folder}")  # noqa: PTH208 - see above
    except NotADirectoryError:
        return
    if any(name.endswith(".json") for name in names):
        yield folder, names
    for name in sorted(name for name in names if "." not in name):
        yield from _listed(f"{folder}/{name}", root)


def _file_name(number: int) -> str:
    return f"{number:06d}.json"


def _numbered(folder: Path) -> list[Path]:
    return sorted(folder.glob("[0-9]*.json"))
