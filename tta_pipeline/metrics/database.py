"""`metrics.duckdb`: made from the result records and published by rename, so that nobody waits for anybody."""

import json
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from tta_pipeline.errors import RecordError
from tta_pipeline.files import fsync_path, locked
from tta_pipeline.locations import Locations
from tta_pipeline.metrics.records import Record, read_record, record_paths

SCHEMA_VERSION = 3
# Readable by the DuckDB 1.x command lines that people have.
_STORAGE = {"storage_compatibility_version": "v1.2.0"}
# Rows are text and numbers from files: nothing of them may reach the file system, the network or another setting.
_CONFINED = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "lock_configuration": "true",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Publication:
    """What one publication did."""

    num_added: int
    was_rebuilt: bool
    notes: tuple[str, ...]
    """Things a person should know, such as a write-ahead log that was set aside."""


def publish_metrics(locations: Locations, *, rebuild: bool = False) -> Publication:
    """Bring `metrics.duckdb` up to the result records: a copy gets what is missing and takes the old one's place.

    Raises:
        RecordError: a record cannot be read, or breaks a constraint of the schema.
    """
    with locked(locations.root / ".metrics.lock"):
        notes = _set_wal_aside(locations.metrics)
        current = locations.metrics if not rebuild and _is_current(locations.metrics) else None
        with _copy_beside(current, locations.metrics) as copy, _connected(copy) as connection:
            if current is None:
                connection.execute(files(__package__).joinpath("schema.sql").read_text())
                connection.execute("CREATE TABLE schema_version AS SELECT ?::INTEGER AS version", [SCHEMA_VERSION])
            num_added = _add_records(connection, locations.root)
    return Publication(num_added=num_added, was_rebuilt=current is None, notes=notes)


@contextmanager
def open_metrics(path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open the database for reading; what is published meanwhile is not seen, and nobody waits.

    Raises:
        RecordError: there is no database at *path*, or it cannot be read.
    """
    if not path.exists():
        raise RecordError(f"{path} does not exist; evaluate something, or run `tta-pipeline rebuild-metrics`")
    try:
        connection = duckdb.connect(path, read_only=True, config=dict(_CONFINED))
    except duckdb.Error as error:
        raise RecordError(f"{path} cannot be read ({error}); run `tta-pipeline rebuild-metrics`") from error
    try:
        yield connection
    finally:
        connection.close()


def _is_current(path: Path) -> bool:
    """Return whether *path* is a database of this schema; anything else is made anew from the records."""
    if not path.exists():
        return False
    try:
        with duckdb.connect(path, read_only=True, config=dict(_CONFINED)) as connection:
            return connection.execute("SELECT version FROM schema_version").fetchall() == [(SCHEMA_VERSION,)]
    except duckdb.Error:
        return False


@contextmanager
def _copy_beside(current: Path | None, target: Path) -> Iterator[Path]:
    """Yield a copy of *current*, or a path for a new file, that takes *target*'s place when the block ends well."""
    copy = target.with_name(f".{target.name}-{uuid.uuid4().hex}")
    try:
        if current is not None:
            shutil.copyfile(current, copy)
        yield copy
        fsync_path(copy)
        copy.replace(target)
        fsync_path(target.parent)
    finally:
        copy.unlink(missing_ok=True)
        copy.with_name(f"{copy.name}.wal").unlink(missing_ok=True)


@contextmanager
def _connected(path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    connection = duckdb.connect(path, config={**_STORAGE, **_CONFINED})
    try:
        connection.execute("BEGIN")
        yield connection
        connection.execute("COMMIT")
        connection.execute("CHECKPOINT")
    except duckdb.Error as error:
        raise RecordError(f"the records do not fit the database: {error}; nothing was published") from error
    finally:
        connection.close()


def _add_records(connection: duckdb.DuckDBPyConnection, data_root: Path) -> int:
    known = {path for (path,) in connection.execute("SELECT path FROM ingested").fetchall()}
    new = [path for path in record_paths(data_root) if str(path.relative_to(data_root)) not in known]
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for path in new:
        for table, table_rows in _rows(read_record(path)).items():
            rows.setdefault(table, []).extend(table_rows)
    rows["ingested"] = [{"path": str(path.relative_to(data_root))} for path in new]
    for table, table_rows in rows.items():
        _insert(connection, table, table_rows)
    return len(new)


def _rows(record: Record) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """Return the rows of *record* by table."""
    common = {
        "run_id": record.run_id,
        "sequence": record.sequence,
        "started_at": record.started_at,
        "versions": json.dumps(record.versions),
    }
    facts = dict(record.facts)
    if record.kind == "shard_sets":
        facts.setdefault("shard_set", "shards")  # records made before there were transforms do not say it
        shards = facts.pop("shards")
        identity = {name: facts[name] for name in ("benchmark", "shard_set", "corruption", "severity")}
        return {
            "shard_sets": [{**common, **facts}],
            "shards": [{**identity, "sequence": record.sequence, **shard} for shard in shards],
        }
    if record.kind == "loader_benchmarks":
        loaders = facts.pop("loaders")
        return {"loader_benchmarks": [{**common, **facts, **loader} for loader in loaders]}
    batches, bins = facts.pop("batches"), facts.pop("calibration")
    for shown in ("first_predictions", "first_confidences"):
        facts.pop(shown)
    identity = {name: facts[name] for name in ("benchmark", "experiment", "corruption", "severity")}
    facts |= {
        "bin_counts": bins["counts"],
        "bin_confidence_sums": bins["confidence_sums"],
        "bin_correct_counts": bins["correct_counts"],
    }
    return {
        "evaluations": [{**common, **facts}],
        "evaluation_batches": [
            {**identity, "sequence": record.sequence, "batch": number, **batch} for number, batch in enumerate(batches)
        ],
    }


def _insert(connection: duckdb.DuckDBPyConnection, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:
        connection.register("incoming", pa.Table.from_pylist(rows))
        connection.execute(f"INSERT INTO {table} BY NAME SELECT * FROM incoming")  # noqa: S608 - the names are ours
        connection.unregister("incoming")


def _set_wal_aside(path: Path) -> tuple[str, ...]:
    """Move away a write-ahead log: we leave none, so somebody wrote into the database, which is derived."""
    log = path.with_name(f"{path.name}.wal")
    if not log.exists():
        return ()
    aside = log.with_name(f"{log.name}.set-aside-{uuid.uuid4().hex[:8]}")
    log.rename(aside)
    return (
        (
            f"{log} was left by somebody's own write session and is now {aside}; what it wrote is not in the database, "
            "which is made from the result records alone"
        ),
    )
