"""Result records: one small file for each measurement, written once; the source of truth for the database.

    <data root>/<benchmark>/results/
      evaluations/<experiment>/<corruption>-<severity>/000001.json
      shard_sets/<corruption>-<severity>/000001.json
      loader_benchmarks/<corruption>-<severity>/000001.json
      trainings/<model>/000001.json
      trials/<experiment>/<trial>/<corruption>-<severity>/000001.json
      tunings/<experiment>/000001.json

A trial is an evaluation for the choice of hyperparameters; the database has it only as part of its tuning. The results
of a benchmark with several shift sets lie in `results/<shift set>/`. The number gives the order of the records of one
cell, independently of clocks. A file is

    {"sha256":"<of the bytes of the record>","record":{"version":4,"kind":...,"sequence":...,"facts":{...}}}

so its hash proves it. It also names what it records: a file in the place of another record is foreign. Only the present
version is read.
"""

import hashlib
import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from tta_pipeline.domain.locations import RESULT_KINDS
from tta_pipeline.errors import RecordError
from tta_pipeline.results.evaluation_record import Evaluation
from tta_pipeline.results.training_record import TrainingRun
from tta_pipeline.results.tuning_record import TuningRun
from tta_pipeline.util.files import write_once
from tta_pipeline.util.json_values import JsonObject

RECORD_VERSION = 4
KINDS_IN_DATABASE = tuple(kind for kind in RESULT_KINDS if kind != "trials")
"""Kinds whose records become rows; the record of a tuning includes the results of its trials."""
_KINDS_OF_EVALUATIONS = ("evaluations", "trials")
_PACKAGES = (
    "tta_pipeline", "torch", "torchvision", "timm", "open_clip_torch", "transformers", "numpy", "pillow", "simplejpeg",
    "dagster", "duckdb",
)  # fmt: skip
_HEAD, _MIDDLE, _TAIL = b'{"sha256":"', b'","record":', b"}"
_BODY = len(_HEAD) + 64 + len(_MIDDLE)
_FIELDS = {"kind", "run_id", "sequence", "started_at", "versions", "facts"}
_MADE_EARLIER = "was made by an earlier version of tta_pipeline"
_ADVICE = "move it out of the results folder, or restore the original file"


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """One measurement with its origin and proof: run, versions, number and hash."""

    kind: str
    run_id: str
    sequence: int
    """Position among the records of the same name, from 1."""
    started_at: str
    """Start time in UTC, for display; never used for ordering."""
    versions: Mapping[str, str]
    sha256: str
    """sha256 of the record."""
    facts: Mapping[str, Any]
    evaluation: Evaluation | None
    """The facts of a record of kind evaluations or trials; None for other kinds."""
    training: TrainingRun | None
    """The facts of a record of kind trainings; None for other kinds."""
    tuning: TuningRun | None
    """The facts of a record of kind tunings; None for other kinds."""
    path: Path


def utc_now() -> str:
    """Return the current time in UTC, in the format of records."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def publish_record(
    results: Path,
    *,
    kind: str,
    name: str,
    run_id: str,
    started_at: str,
    facts: JsonObject | Evaluation | TrainingRun | TuningRun,
    versions_then: Mapping[str, str] | None = None,
) -> Record:
    """Write one record of *kind* under *results*, numbered after the existing ones of *name*.

    Args:
        results: Results folder of the benchmark.
        kind: One of `RESULT_KINDS`.
        name: Folder of the record below *kind*, such as `<experiment>/<corruption>-<severity>`.
        run_id: Dagster run that measured it.
        started_at: Start time in UTC.
        facts: The measured facts.
        versions_then: Library versions of an earlier measurement; None: the versions of this process.

    Raises:
        RecordError: a fact is not a finite number, facts contradict each other or their place, or the file cannot be
            written.
    """
    folder = results / kind / name
    content: JsonObject = {
        "version": RECORD_VERSION,
        "kind": kind,
        "run_id": run_id,
        "started_at": started_at,
        "versions": software_versions() if versions_then is None else dict(versions_then),
        "facts": facts if isinstance(facts, Mapping) else facts.facts(),
    }
    try:
        number = _last_number(folder)
        while True:
            number += 1  # the folder is not listed again: on a network, the listing may be a minute old
            path = folder / record_file_name(number)
            data = encode_record({**content, "sequence": number})
            record = parse_record(path, data)
            if write_once(path, data):
                return record
    except RecordError as error:
        raise RecordError(f"{folder}: a record of run {run_id} was not written: {error}") from error
    except (OSError, ValueError) as error:
        raise RecordError(
            f"{folder}: a record of run {run_id} cannot be written ({error}); expected finite numbers and disk space"
        ) from error


def latest_record(results: Path, *, kind: str, name: str) -> Record | None:
    """Return the newest record of *name*, or None if there is none.

    Raises:
        RecordError: the newest record is damaged or foreign; an older one never replaces it.
    """
    number = _last_number(results / kind / name)
    return read_record(results / kind / name / record_file_name(number)) if number else None


def earlier_records(results: Path, *, kind: str, name: str) -> Iterator[Record]:
    """Yield the records of *name* before the newest, in descending order; damaged and foreign ones are left out."""
    folder = results / kind / name
    for number in reversed(record_numbers(folder)[:-1]):
        with suppress(RecordError):  # reported when records are published
            yield read_record(folder / record_file_name(number))


def record_numbers(folder: Path) -> list[int]:
    """Return the numbers of the records in *folder*, in ascending order; *folder* need not exist."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - creating an object for each name takes most of the time
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(number for name in names if (number := record_number(name)))


def record_paths(data_root: Path) -> Iterator[Path]:
    """Yield the paths of all records under *data_root*, in a deterministic order."""
    for kind in RESULT_KINDS:
        for results in result_folders(data_root, kind):
            for folder, names in record_folders(str(results)):
                yield from (
                    Path(folder, record_file_name(number)) for number in sorted(filter(None, map(record_number, names)))
                )


def result_folders(data_root: Path, kind: str) -> Iterator[Path]:
    """Yield the folders of all records of *kind*: one for each benchmark, or for each of its shift sets."""
    yield from sorted(data_root.glob(f"*/results/{kind}"))
    yield from sorted(path for path in data_root.glob(f"*/results/*/{kind}") if path.parent.name not in RESULT_KINDS)


def record_folders(folder: str) -> Iterator[tuple[str, list[str]]]:
    """Yield every folder at or under *folder* that holds records, with all names in it.

    Paths are strings, since creating an object for each of very many paths would take most of the time.
    """
    try:
        names = os.listdir(folder)  # noqa: PTH208 - see above
    except (FileNotFoundError, NotADirectoryError):
        return
    if any(name.endswith(".json") for name in names):
        yield folder, names
    for name in sorted(name for name in names if not name.endswith(".json") and not name.startswith(".")):
        yield from record_folders(f"{folder}/{name}")


def read_record(path: Path) -> Record:
    """Read one record, and check its hash, its place and the consistency of its facts.

    Raises:
        RecordError: the record cannot be read, or is damaged, foreign or of another version; the message has its path.
    """
    try:
        return parse_record(path, read_record_bytes(path))
    except RecordError as error:
        advice = "" if _MADE_EARLIER in str(error) else f"; {_ADVICE}"
        raise RecordError(f"{path} {error}{advice}") from error


def read_record_bytes(path: str | Path) -> bytes:
    """Return the content of the file of a record.

    Raises:
        RecordError: it cannot be read; the message does not have its path.
    """
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise RecordError(f"cannot be read ({error.strerror})") from error


def encode_record(content: JsonObject) -> bytes:
    """Return the bytes of a file that holds *content* and its hash.

    Raises:
        ValueError: a number is infinite or NaN.
    """
    body = json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
    return b"".join((_HEAD, hashlib.sha256(body).hexdigest().encode(), _MIDDLE, body, _TAIL))


def parse_record(path: Path, data: bytes) -> Record:
    """Return the record in *data*, the content of the file at *path*.

    Raises:
        RecordError: the record is damaged, foreign or of another version; the message does not have its path.
    """
    sha256, body = _verify_hash(data)
    content = _parse_content(body)
    _require_common_fields(content, path)
    kind, facts = content["kind"], content["facts"]
    record = Record(
        path=path,
        sha256=sha256,
        evaluation=Evaluation.from_facts(facts) if kind in _KINDS_OF_EVALUATIONS else None,
        training=TrainingRun.from_facts(facts) if kind == "trainings" else None,
        tuning=TuningRun.from_facts(facts) if kind == "tunings" else None,
        **content,
    )
    _require_place(record)
    return record


def content_sha256(data: bytes) -> str:
    """Return the hash of the record in *data*, as the database stores it.

    Raises:
        RecordError: the hash differs from the one in the file.
    """
    return _verify_hash(data)[0]


def file_sha256(path: Path) -> str | None:
    """Return the hash of a whole file, record or not; None if it cannot be read."""
    try:
        return hashlib.sha256(read_record_bytes(path)).hexdigest()
    except RecordError:
        return None


def record_number(name: str) -> int:
    """Return the number of the record in the file called *name*; 0 if *name* is not the name of a record."""
    stem = name.removesuffix(".json")
    return int(stem) if stem != name and stem.isascii() and stem.isdecimal() and len(stem) < 18 else 0


def record_file_name(number: int) -> str:
    """Return the name of the file of the record with *number*."""
    return f"{number:06d}.json"


def software_versions() -> dict[str, str]:
    """Return the versions of the software that may affect a result, with platform and host."""
    installed = {name: _version(name) for name in _PACKAGES}
    return {"python": sys.version.split()[0], "platform": platform.platform(), "host": platform.node(), **installed}


@cache
def _version(package: str) -> str:
    """Return the version that this process found first: it stays with what it has imported."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _verify_hash(data: bytes) -> tuple[str, bytes]:
    """Return the verified hash of a record, and its bytes."""
    if not data.startswith(_HEAD):
        raise RecordError("is not a result record: it has no hash")
    body, claimed = data[_BODY : -len(_TAIL)], data[len(_HEAD) : len(_HEAD) + 64]
    found = hashlib.sha256(body).hexdigest()
    frame = _HEAD + claimed + _MIDDLE
    if not (data.startswith(frame) and data.endswith(_TAIL) and found.encode() == claimed):
        raise RecordError(f"is damaged: it hashes to {found[:12]}...; expected {claimed[:12].decode('latin-1')!a}...")
    return found, body


def _parse_content(body: bytes) -> dict[str, Any]:
    """Return the fields of a record of the present version, without the version."""
    try:
        content = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise RecordError(f"is not a result record ({error!r:.200})") from error
    found = content.pop("version", None) if isinstance(content, dict) else None
    if type(found) is not int or found != RECORD_VERSION:
        raise RecordError(
            f"{_MADE_EARLIER}: its version is {found!r:.20}; expected {RECORD_VERSION}: make it again by "
            "`tta-pipeline run`"
        )
    fields: dict[str, Any] = content
    return fields


def _require_common_fields(content: Mapping[str, Any], path: Path) -> None:
    """Check the fields that all kinds of records have."""
    if content.keys() != _FIELDS:
        odd = sorted(map(str, content.keys() ^ _FIELDS))
        raise RecordError(
            f"is not a result record: {', '.join(odd[:5])} is missing or unknown; expected {sorted(_FIELDS)}"
        )
    for name, kind in (("kind", str), ("run_id", str), ("started_at", str), ("versions", dict), ("facts", dict)):
        if type(content[name]) is not kind:
            raise RecordError(f"is not a result record: {name} is {content[name]!r:.60}; expected {_IN_JSON[kind]}")
    for name, value in content["versions"].items():
        if type(value) is not str:
            raise RecordError(f"is not a result record: versions.{name} is {value!r:.60}; expected {_IN_JSON[str]}")
    try:
        datetime.fromisoformat(content["started_at"])
    except ValueError:
        raise RecordError(
            f"is not a result record: started_at is {content['started_at']!r:.60}; expected an ISO 8601 time"
        ) from None
    number = record_number(path.name)
    if content["sequence"] != number or type(content["sequence"]) is not int:
        raise RecordError(
            f"is foreign: it is number {content['sequence']!r:.20}; expected {number}, as in its file name"
        )


_IN_JSON = {str: "text", dict: "an object"}


def _require_place(record: Record) -> None:
    """Check that benchmark, shift set, kind and name of the record match its folders."""
    parts = record.path.parts
    place = next((at for at in range(len(parts) - 2, 1, -1) if _is_kind_folder(parts, at)), None)
    if place is None:
        raise RecordError("is foreign: it does not lie in the results folder of a benchmark")
    results = place - 1 if parts[place - 1] == "results" else place - 2
    benchmark, kind, name = parts[results - 1], parts[place], "/".join(parts[place + 1 : -1])
    shift_set = record.facts.get("shift_set")
    if results == place - 2 and shift_set != parts[place - 1]:
        raise RecordError(
            f"is foreign: it is of shift set {shift_set!r:.60}; expected {parts[place - 1]}, in whose folder it lies"
        )
    if record.facts.get("benchmark") != benchmark:
        raise RecordError(
            f"is foreign: it is of benchmark {record.facts.get('benchmark')!r:.60}; expected {benchmark}, in whose "
            "folder it lies"
        )
    if record.kind != kind:
        raise RecordError(f"is foreign: its kind is {record.kind!r:.60}; expected {kind}, in whose folder it lies")
    names = _possible_names(record)
    if name not in names:
        raise RecordError(f"is foreign: it is of {names[0]}; expected {name}, in whose folder it lies")


def _is_kind_folder(parts: tuple[str, ...], at: int) -> bool:
    """Return whether the folder at index *at* holds records: `results/<kind>`, or `results/<shift set>/<kind>`."""
    if parts[at] not in RESULT_KINDS:
        return False
    return parts[at - 1] == "results" or (at > 2 and parts[at - 2] == "results" and parts[at - 1] not in RESULT_KINDS)


def _possible_names(record: Record) -> tuple[str, ...]:
    """Return the possible names of the folder of *record*; its levels depend on seeds and protocol."""
    row, facts = record.evaluation, record.facts
    if record.training is not None:
        return (record.training.model,)
    if record.tuning is not None:
        return (record.tuning.experiment,)
    if row is None:
        return (f"{facts.get('corruption')}-{facts.get('severity')}",)
    cell = f"{row.corruption}-{row.severity}"
    return tuple(
        f"{row.experiment}/{seed}{visit}"
        for seed in ("", f"seed-{row.seed}/")
        for visit in (cell, f"{row.stream}/{row.position:03d}-{cell}")
    )


def _last_number(folder: Path) -> int:
    found = record_numbers(folder)
    return found[-1] if found else 0
