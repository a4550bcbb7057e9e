"""`metrics.duckdb`, made from the result records and published by rename, so that readers and writers never wait."""

import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import duckdb

from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import RecordError
from tta_pipeline.results.database.ingest import add_records
from tta_pipeline.results.database.latest import mark_latest, marked_sha256
from tta_pipeline.results.database.record_changes import Changes, find_changes, restamp
from tta_pipeline.results.database.record_listing import RecordListing, list_records
from tta_pipeline.results.database.schema import create_schema, quoted, schema_version
from tta_pipeline.results.expected_results import ExpectedResults, read_expected_results
from tta_pipeline.util.files import advice, fsync_path, locked, temporary_folder
from tta_pipeline.util.plurals import count_of
from tta_pipeline.util.progress import Reporter, quiet_reporter

# Readable by the DuckDB clients that users have, from 1.1 on.
_STORAGE = {
    "storage_compatibility_version": "v1.1.0",
}
# Very many records must not fill the memory. A rebuild also has batches of records in memory; a copy may need new
# stamps for a million.
_MEMORY_OF_COPY, _MEMORY_OF_REBUILD = "300MB", "230MB"
# Rows hold text and numbers from files, which must not reach the file system, the network or other settings.
_CONFINED = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}
_HOLDER = re.compile(r"held in (?P<program>.*?) ?\(PID (?P<pid>\d+)")
"""How DuckDB names the process that has a file open for writing."""
_MAX_LINES = 20
"""Most lines about records that are set aside; the table `set_aside` has all of them."""
_SET_ASIDE = """
SELECT
    CASE count(*)
        WHEN 1 THEN $1 || '/' || any_value(folder) || '/' || format('{:06d}.json', any_value(sequence)) || ' '
        ELSE $1 || '/' || split_part(folder, '/', 1) || '/results: ' || count(*) || ' records, such as '
            || min(folder) || ': each '
    END || reason,
    count(*)
FROM set_aside
GROUP BY split_part(folder, '/', 1), reason
ORDER BY ALL
LIMIT $2
"""
EVALUATE_FIRST = (
    "evaluate a benchmark first, such as `tta-pipeline run digits_c --cell 'fog|5'`; `tta-pipeline doctor` lists the "
    "benchmarks"
)
"""What a user without results can run."""
# Errors of a query or a row; any other error of DuckDB concerns the file or the disk.
STATEMENT_ERRORS = (
    duckdb.DataError,
    duckdb.IntegrityError,
    duckdb.NotSupportedError,
    duckdb.OutOfMemoryException,
    duckdb.PermissionException,
    duckdb.ProgrammingError,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Publication:
    """Result of one publication."""

    num_added: int
    was_rebuilt: bool
    notes: tuple[str, ...]
    """Notes for the user, for example about a write-ahead log that was set aside."""
    set_aside: tuple[str, ...] = ()
    """Damaged or foreign records that the database leaves out, one by one or by folder, with the reason."""


def publish_metrics(
    locations: Locations,
    *,
    within: Path | None = None,
    rebuild: bool = False,
    progress: Reporter = quiet_reporter,
) -> Publication:
    """Bring `metrics.duckdb` up to date with the result records, by replacing it with an updated copy.

    Args:
        locations: Paths of records and database.
        within: Folder of the records that are compared with the database, for a run that publishes its own results
            every few seconds: the time does not grow with the records of others. None: all records are compared.
        rebuild: Whether to rebuild the database from all records.
        progress: Reporter of the records that are read.

    Raises:
        RecordError: the disk has no room for the database, or it cannot be written.
    """
    try:
        with locked(locations.root / ".metrics.lock"):
            return _publish(locations, within=within, rebuild=rebuild, progress=progress)
    except (OSError, duckdb.Error) as error:
        raise RecordError(
            f"{locations.metrics} cannot be written ({error}); nothing was published and no record is lost: "
            f"{advice(error)} (publishing needs room for two copies of it), then run `tta-pipeline results rebuild`"
        ) from error


def ensure_current(locations: Locations, progress: Reporter = quiet_reporter) -> tuple[str, ...]:
    """Publish again if `metrics.duckdb` has an outdated schema or benchmark files were edited since; return notes.

    Raises:
        RecordError: the schema is outdated, and the database cannot be written.
    """
    if not locations.metrics.exists():
        return ()
    is_outdated = True
    with suppress(duckdb.Error), _opened(locations.metrics) as (connection, note):
        is_outdated = bool(_other_schema(connection, locations.metrics))
        if not is_outdated and marked_sha256(connection) == read_expected_results(locations).sha256:
            return (note,) if note else ()
    try:
        return publish_metrics(locations, progress=progress).notes
    except RecordError as error:
        if is_outdated:
            raise
        return (f"benchmark files were edited since, but the results that count are still the earlier ones: {error}",)


@contextmanager
def open_metrics(path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open the database for reading; results published meanwhile do not show, and neither side waits.

    If another program has it open for writing, a copy is read.

    Raises:
        RecordError: there is no database at *path*, or it cannot be read.
    """
    if not path.exists():
        raise RecordError(
            f"{path} does not exist; expected the database of results: {EVALUATE_FIRST}. Where "
            "records are, run `tta-pipeline results rebuild`"
        )
    try:
        with _opened(path) as (connection, _):
            yield connection
    except duckdb.Error as error:
        if isinstance(error, STATEMENT_ERRORS):
            raise
        raise RecordError(f"{path} cannot be read ({error}); run `tta-pipeline results rebuild`") from error


def open_read_only(path: Path) -> duckdb.DuckDBPyConnection:
    """Open the database at *path* as `open_metrics` does, but without converting DuckDB's errors."""
    return _lock_settings(duckdb.connect(path, read_only=True, config=dict(_CONFINED)))


@contextmanager
def _opened(path: Path) -> Iterator[tuple[duckdb.DuckDBPyConnection, str]]:
    """Yield a connection as `open_read_only` does, and a note if a copy is read: another program writes to *path*."""
    try:
        connection = open_read_only(path)
    except duckdb.OperationalError as error:
        note = _note_of_writer(path, str(error))
        if not note:
            raise
        with temporary_folder(path) as folder, open_read_only(shutil.copyfile(path, folder / path.name)) as connection:
            yield connection, note
        return
    with connection:
        yield connection, ""


def _note_of_writer(path: Path, message: str) -> str:
    """Return a note about who has *path* open for writing, according to DuckDB's *message*; empty if nobody has."""
    if "different configuration" in message:
        who = "this process"
    elif "Could not set lock" in message:
        found = _HOLDER.search(message)
        who = f"process {found['pid']} ({found['program']})" if found else "another process"
    else:
        return ""
    return (
        f"{who} has {path} open for writing; what it writes is lost with the next new result, which replaces the file"
    )


def _lock_settings(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    """Lock the settings of *connection* and turn off its progress bar, which would end up in answers."""
    connection.execute("SET enable_progress_bar = false; SET lock_configuration = true")
    return connection


def _publish(locations: Locations, *, within: Path | None, rebuild: bool, progress: Reporter) -> Publication:
    notes = _set_wal_aside(locations.metrics)
    asked = read_expected_results(locations)
    why_anew = ""
    if locations.metrics.exists() and not rebuild:
        try:
            present = _compare(locations, asked, within)
            notes = (*notes, *present.notes)
            if not (why_anew := present.changes.undone):
                num_added, set_aside = _update(locations, present, asked, progress)
                return Publication(num_added=num_added, was_rebuilt=False, notes=notes, set_aside=set_aside)
        except duckdb.Error as error:
            why_anew = f"{locations.metrics} is no whole database of tta_pipeline ({str(error).splitlines()[0]})"
    num_added, set_aside = _rebuild(locations, list_records(locations.root), asked, progress)
    if why_anew:
        notes = (*notes, f"{why_anew}; it was rebuilt from the {count_of(num_added, 'record')}")
    return Publication(num_added=num_added, was_rebuilt=True, notes=notes, set_aside=set_aside)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Present:
    """The database as it is, beside the records and the benchmark files."""

    changes: Changes
    asks_anew: bool
    """Whether the benchmark files ask for other results than at the last publication."""
    set_aside: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def _compare(locations: Locations, asked: ExpectedResults, within: Path | None) -> _Present:
    """Compare the database with the records; one of another schema is undone."""
    with _as_it_is(locations.metrics) as (connection, note):
        notes = (note,) if note else ()
        if other := _other_schema(connection, locations.metrics):
            return _Present(changes=Changes(fresh=(), restamped=(), undone=other), asks_anew=True, notes=notes)
        return _Present(
            changes=find_changes(connection, list_records(locations.root, within), locations.root, within),
            asks_anew=marked_sha256(connection) != asked.sha256,
            set_aside=read_set_aside(connection, locations),
            notes=notes,
        )


def _update(
    locations: Locations, present: _Present, asked: ExpectedResults, progress: Reporter
) -> tuple[int, tuple[str, ...]]:
    """Replace the database by a copy with the changes; return the number of added records, and what is set aside.

    If nothing changes, there is no copy.
    """
    changes = present.changes
    if not changes and not present.asks_anew:
        return 0, present.set_aside
    # Where the benchmark files ask for the same, only folders with new records are marked again: see `mark_latest`.
    folders = None if present.asks_anew else frozenset(record.folder for record in changes.fresh)
    with _copy_beside(locations.metrics, locations.metrics) as copy, _connected(copy) as connection:
        restamp(connection, changes.restamped)
        num_added = add_records(connection, locations.root, changes.fresh, progress)
        mark_latest(connection, asked, folders=folders)
        return num_added, read_set_aside(connection, locations)


def _rebuild(
    locations: Locations, listing: RecordListing, asked: ExpectedResults, progress: Reporter
) -> tuple[int, tuple[str, ...]]:
    """Replace the database by a new one with all records; return their number, and what is set aside."""
    with _copy_beside(None, locations.metrics) as copy:
        _create_empty(copy)
        with _connected(copy, memory=_MEMORY_OF_REBUILD) as connection:
            num_added = add_records(connection, locations.root, listing, progress)
            mark_latest(connection, asked)
            return num_added, read_set_aside(connection, locations)


def _create_empty(path: Path) -> None:
    """Create an empty database at *path*; its 400 statements, which take most of a second, run once per process."""
    if schema_version() in _empty:
        path.write_bytes(_empty[schema_version()])
        return
    with _connected(path) as connection:
        create_schema(connection)
    _empty[schema_version()] = path.read_bytes()


_empty: dict[str, bytes] = {}
"""File content of an empty database, by the version of its schema."""


def read_set_aside(connection: duckdb.DuckDBPyConnection, locations: Locations) -> tuple[str, ...]:
    """Return the records that the database leaves out and why, in a line per record, or per benchmark and reason."""
    found = connection.execute(_SET_ASIDE, [str(locations.root), _MAX_LINES]).fetchall()
    ((num_records,),) = connection.execute("SELECT count(*) FROM set_aside").fetchall()
    left_out = num_records - sum(count for _, count in found)
    more = (f"{left_out:,} more records: tta-pipeline metrics --sql 'FROM set_aside'",) if left_out else ()
    return (*(line for line, _ in found), *more)


@contextmanager
def _as_it_is(path: Path) -> Iterator[tuple[duckdb.DuckDBPyConnection, str]]:
    """Open the current database at *path* under another name, as `_opened` does.

    If this process already has a path open, DuckDB reuses that open file, even if another file has replaced it.
    """
    with temporary_folder(path) as folder:
        link = folder / path.name
        try:
            link.hardlink_to(path)
        except OSError:  # a file system without hard links
            shutil.copyfile(path, link)
        with _opened(link) as (connection, note):
            yield connection, note.replace(str(link), str(path))


def _other_schema(connection: duckdb.DuckDBPyConnection, path: Path) -> str:
    """Return why the database at *path* cannot be continued: it has another schema. Empty: it has this one."""
    found = connection.execute("SELECT version FROM schema_version").fetchall()
    return "" if found == [(schema_version(),)] else f"{path} had schema {found[0][0]}; expected {schema_version()}"


@contextmanager
def _copy_beside(current: Path | None, target: Path) -> Iterator[Path]:
    """Yield a copy of *current*, or a path for a new file, that replaces *target* when the block succeeds."""
    # The copy is in a folder of its own, in which DuckDB also puts its log and spilled data; a later publication
    # removes the folder of a killed one. Another machine that does not see our lock may publish at the same time: the
    # last copy stays, and the next publication adds the records that it lacks.
    with temporary_folder(target) as folder:
        copy = folder / target.name
        if current is not None:
            shutil.copyfile(current, copy)
        yield copy
        fsync_path(copy)
        copy.replace(target)
        fsync_path(target.parent)


@contextmanager
def _connected(path: Path, *, memory: str = _MEMORY_OF_COPY) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a database that is still private at *path* for writing; it is complete on disk once the block has ended."""
    connection = duckdb.connect(config={**_STORAGE, "memory_limit": memory, "temp_directory": f"{path}.tmp"})
    # A file that is thrown away if its writer fails needs no write-ahead log, a fifth of the time to write it.
    connection.execute(f"ATTACH {quoted(str(path))} AS metrics (RECOVERY_MODE 'no_wal_writes'); USE metrics")
    connection.execute("; ".join(f"SET {name} = {value}" for name, value in _CONFINED.items()))
    _lock_settings(connection)
    try:
        yield connection
        connection.execute("CHECKPOINT")
    finally:
        connection.close()


def _set_wal_aside(path: Path) -> tuple[str, ...]:
    """Move away a write-ahead log: publications leave none, so another program wrote to the database."""
    log = path.with_name(f"{path.name}.wal")
    if not log.exists():
        return ()
    aside = log.with_name(f"{log.name}.set-aside-{uuid.uuid4().hex[:8]}")
    log.rename(aside)
    return (
        (
            f"{log} was left by another program that wrote to the database, and is now {aside}; its content is not "
            "in the database, which is made only from the result records"
        ),
    )
