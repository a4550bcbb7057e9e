"""`metrics.duckdb`: made from the result records and published by rename, so that nobody waits for anybody."""

import hashlib
import json
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from tta_pipeline.errors import RecordError
from tta_pipeline.files import advice, fsync_path, locked
from tta_pipeline.locations import Locations
from tta_pipeline.metrics.records import Record, read_record, unread_records
from tta_pipeline.progress import Tell, quiet

_SCHEMA = ("schema.sql", "baselines.sql", "views.sql")
_CELL = "benchmark, experiment, subset, seed, stream, position, corruption, severity"
"""What the newest evaluation is the newest of."""
# Readable by the DuckDB 1.x command lines that people have.
_STORAGE = {"storage_compatibility_version": "v1.2.0"}
# Rows are text and numbers from files: nothing of them may reach the file system, the network or another setting.
_CONFINED = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "lock_configuration": "true",
}
# What is wrong with a question or a row; any other error of DuckDB is one of the file or the disk.
_OF_STATEMENTS = (
    duckdb.DataError,
    duckdb.IntegrityError,
    duckdb.NotSupportedError,
    duckdb.OutOfMemoryException,
    duckdb.PermissionException,
    duckdb.ProgrammingError,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Publication:
    """What one publication did."""

    num_added: int
    was_rebuilt: bool
    notes: tuple[str, ...]
    """Things a person should know, such as a write-ahead log that was set aside."""


def publish_metrics(locations: Locations, *, rebuild: bool = False, tell: Tell = quiet) -> Publication:
    """Bring `metrics.duckdb` up to the result records: a copy gets what is missing and takes the old one's place.

    Args:
        locations: Where records and database lie.
        rebuild: Make it anew from all records.
        tell: Told of the records that are read.

    Raises:
        RecordError: a record cannot be read or breaks a constraint of the schema, or there is no room for the database.
    """
    try:
        with locked(locations.root / ".metrics.lock"):
            return _publish(locations, rebuild=rebuild, tell=tell)
    except (OSError, duckdb.Error) as error:
        raise RecordError(
            f"{locations.metrics} cannot be written ({error}); nothing was published and no record is lost: "
            f"{advice(error)} (while it is published there are two of it), then run `tta-pipeline rebuild-metrics`"
        ) from error


def require_current_schema(locations: Locations, tell: Tell = quiet) -> tuple[str, ...]:
    """Make `metrics.duckdb` anew if it is there and of another schema version; return what a person should know.

    Raises:
        RecordError: see `publish_metrics`.
    """
    return publish_metrics(locations, tell=tell).notes if _what_is_outdated(locations.metrics) else ()


@cache
def schema_version() -> str:
    """Return the version of the schema: a hash of its text, so that no change of it is ever overlooked."""
    return hashlib.sha256("\n".join(_schema()).encode()).hexdigest()[:12]


@contextmanager
def open_metrics(path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open the database for reading; what is published meanwhile is not seen, and nobody waits.

    Raises:
        RecordError: there is no database at *path*, or it cannot be read.
    """
    if not path.exists():
        raise RecordError(f"{path} does not exist; evaluate something, or run `tta-pipeline rebuild-metrics`")
    try:
        with duckdb.connect(path, read_only=True, config=dict(_CONFINED)) as connection:
            yield connection
    except duckdb.Error as error:
        if isinstance(error, _OF_STATEMENTS):
            raise
        raise RecordError(f"{path} cannot be read ({error}); run `tta-pipeline rebuild-metrics`") from error


def _publish(locations: Locations, *, rebuild: bool, tell: Tell) -> Publication:
    _remove_abandoned_copies(locations.metrics)
    notes = _set_wal_aside(locations.metrics)
    why_anew = _what_is_outdated(locations.metrics)
    if locations.metrics.exists() and not why_anew and not rebuild:
        try:
            return Publication(num_added=_add_to_copy(locations, tell), was_rebuilt=False, notes=notes)
        except duckdb.Error as error:
            why_anew = f"{locations.metrics} is damaged ({_first_line(error)})"
    num_added = _add_to_copy(locations, tell, is_new=True)
    if why_anew:
        notes = (*notes, f"{why_anew}; it was made anew from the {num_added:,} records")
    return Publication(num_added=num_added, was_rebuilt=True, notes=notes)


def _add_to_copy(locations: Locations, tell: Tell, *, is_new: bool = False) -> int:
    """Let a copy of the database, or a new one, take its place with all records; return how many it lacked."""
    with (
        _copy_beside(None if is_new else locations.metrics, locations.metrics) as copy,
        _connected(copy) as connection,
    ):
        if is_new:
            _create_schema(connection)
        return _add_records(connection, locations.root, tell)


def _what_is_outdated(path: Path) -> str | None:
    """Return in words why the file at *path* is no database of this schema; None if it is one, or is not there."""
    if not path.exists():
        return None
    try:
        with duckdb.connect(path, read_only=True, config=dict(_CONFINED)) as connection:
            found = connection.execute("SELECT version FROM schema_version").fetchall()
    except duckdb.Error as error:
        return f"{path} could not be read as a database of tta_pipeline ({_first_line(error)})"
    return None if found == [(schema_version(),)] else f"{path} had schema {found[0][0]}; expected {schema_version()}"


def _first_line(error: duckdb.Error) -> str:
    return str(error).splitlines()[0]


def _schema() -> Sequence[str]:
    return [files(__package__).joinpath(name).read_text() for name in _SCHEMA]


def _create_schema(connection: duckdb.DuckDBPyConnection) -> None:
    for sql in _schema():
        connection.execute(sql)
    connection.execute("INSERT INTO schema_version VALUES (?)", [schema_version()])
    _comment_columns_of_views(connection)


def _comment_columns_of_views(connection: duckdb.DuckDBPyConnection) -> None:
    """Give each column of a view that has no comment of its own that of the evaluations' or shard sets' column."""
    missing = connection.execute(
        """
        SELECT c.table_name, c.column_name, any_value(t.comment ORDER BY t.table_name)
        FROM duckdb_columns() AS c
        JOIN duckdb_views() AS v ON v.view_name = c.table_name AND NOT v.internal
        JOIN duckdb_columns() AS t ON t.column_name = c.column_name AND t.table_name IN ('evaluations', 'shard_sets')
        WHERE c.comment IS NULL
        GROUP BY ALL
        """
    ).fetchall()
    for view, column, comment in missing:
        quoted = comment.replace("'", "''")
        connection.execute(f"COMMENT ON COLUMN {view}.{column} IS '{quoted}'")  # takes no bound value; the text is ours


@contextmanager
def _copy_beside(current: Path | None, target: Path) -> Iterator[Path]:
    """Yield a copy of *current*, or a path for a new file, that takes *target*'s place when the block ends well."""
    copy = target.with_name(f"{_copy_prefix(target)}{uuid.uuid4().hex}")
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


def _remove_abandoned_copies(target: Path) -> None:
    """Remove what killed publications left: only who holds the lock makes copies."""
    for path in target.parent.glob(f"{_copy_prefix(target)}*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()  # DuckDB spills into a folder


def _copy_prefix(target: Path) -> str:
    return f".{target.name}-"


@contextmanager
def _connected(path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    connection = duckdb.connect(path, config={**_STORAGE, **_CONFINED})
    try:
        connection.execute("BEGIN")
        yield connection
        connection.execute("COMMIT")
        connection.execute("CHECKPOINT")
    except _OF_STATEMENTS as error:
        raise RecordError(f"the records do not fit the database: {error}; nothing was published") from error
    finally:
        connection.close()


def _add_records(connection: duckdb.DuckDBPyConnection, data_root: Path, tell: Tell) -> int:
    # A range where one will do: a million numbers of records, nearly all without a gap, take a moment and no memory.
    ranges = connection.execute("SELECT folder, min(sequence), max(sequence), count(*) FROM ingested GROUP BY folder")
    known: dict[str, Sequence[int]] = {
        folder: range(low, high + 1) if high - low + 1 == count else _ingested(connection, folder)
        for folder, low, high, count in ranges.fetchall()
    }
    rows: dict[str, list[Mapping[str, Any]]] = {"ingested": []}
    unread = tuple(unread_records(data_root, known))
    progress = tell("metrics.duckdb", len(unread), unit="records")
    for path in unread:
        record = read_record(path)
        progress.advance(1)
        rows["ingested"].append({"folder": str(path.parent.relative_to(data_root)), "sequence": record.sequence})
        for table, table_rows in _rows(record).items():
            rows.setdefault(table, []).extend(table_rows)
    for table, table_rows in rows.items():
        _insert(connection, table, table_rows)
    _mark_latest(connection)
    return len(rows["ingested"])


def _ingested(connection: duckdb.DuckDBPyConnection, folder: str) -> list[int]:
    found = connection.execute("SELECT sequence FROM ingested WHERE folder = ? ORDER BY sequence", [folder]).fetchall()
    return [sequence for (sequence,) in found]


def _mark_latest(connection: duckdb.DuckDBPyConnection) -> None:
    """Let the newest evaluation of each cell be the only one marked, so that no question looks for it among all."""
    same_cell = " AND ".join(f"evaluations.{column} = newest.{column}" for column in _CELL.split(", "))
    connection.execute(
        f"""
        UPDATE evaluations SET is_latest = FALSE
        FROM (SELECT {_CELL}, max(sequence) AS sequence FROM evaluations WHERE is_latest
              GROUP BY ALL HAVING count(*) > 1) AS newest
        WHERE is_latest AND evaluations.sequence < newest.sequence AND {same_cell}
        """  # noqa: S608 - the names are ours
    )


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
    return _evaluation_rows(record, common, facts)


def _evaluation_rows(
    record: Record, common: Mapping[str, Any], facts: dict[str, Any]
) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    batches, bins = facts.pop("batches"), facts.pop("calibration")
    for shown in ("first_positions", "first_predictions", "first_confidences"):
        facts.pop(shown, None)
    # Records made before there were subsets and streams of several cells do not say it.
    facts = {"subset": "all", "stream": f"{facts['corruption']}|{facts['severity']}", "position": 0, **facts}
    identity = {name: facts[name] for name in _CELL.split(", ")} | {"sequence": record.sequence}
    by_class = facts.pop("class_counts", None)  # neither do those of metrics version 1 count by class
    facts |= {
        "bin_counts": bins["counts"],
        "bin_confidence_sums": bins["confidence_sums"],
        "bin_correct_counts": bins["correct_counts"],
    }
    return {
        "evaluations": [{**common, **facts}],
        "evaluation_batches": [{**identity, "batch": number, **batch} for number, batch in enumerate(batches)],
        "class_results": [{**identity, **by_class}] if by_class else [],
    }


def _insert(connection: duckdb.DuckDBPyConnection, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert *rows*, of which older ones may lack columns: those get the column's default, or NULL."""
    by_columns: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        by_columns.setdefault(tuple(row), []).append(row)
    for alike in by_columns.values():
        connection.register("incoming", pa.Table.from_pylist(alike))
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
