"""`metrics.duckdb`, open for reading; what is published meanwhile replaces the file, so nobody waits."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import RecordError
from tta_pipeline.util.files import temporary_folder

# Rows hold text and numbers from files, which must not reach the file system, the network or other settings.
CONFINED = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}
_HOLDER = re.compile(r"held in (?P<program>.*?) ?\(PID (?P<pid>\d+)")
"""How DuckDB names the process that has a file open for writing."""
_MAX_LINES = 20
"""Most lines about files that are set aside; the table `set_aside` has all of them."""
_SET_ASIDE = """
SELECT
    CASE count(*)
        WHEN 1 THEN $1 || '/' || any_value(file) || ' '
        ELSE $1 || '/' || split_part(file, '/', 1) || '/' || split_part(file, '/', 2) || ': ' || count(*)
            || ' files, such as ' || min(file) || ': each '
    END || reason,
    count(*)
FROM set_aside
GROUP BY split_part(file, '/', 1), split_part(file, '/', 2), reason
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


@contextmanager
def open_metrics(path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open the database for reading; results published meanwhile do not show, and neither side waits.

    If another program has it open for writing, a copy is read.

    Raises:
        RecordError: there is no database at *path*, or it cannot be read.
    """
    if not path.exists():
        raise RecordError(
            f"{path} does not exist; expected the database of results: {EVALUATE_FIRST}. If there are result files "
            "already, run `tta-pipeline results rebuild`"
        )
    with plain_errors_of(path), opened(path) as (connection, _):
        yield connection


@contextmanager
def plain_errors_of(path: Path) -> Iterator[None]:
    """Raise a `RecordError` if the database at *path* cannot be read; errors of a query stay as they are."""
    try:
        yield
    except duckdb.Error as error:
        if isinstance(error, STATEMENT_ERRORS):
            raise
        raise RecordError(
            f"{path} cannot be read ({error}); expected a DuckDB database: run `tta-pipeline results rebuild`"
        ) from error


def open_read_only(path: Path) -> duckdb.DuckDBPyConnection:
    """Open the database at *path* as `open_metrics` does, but without converting DuckDB's errors."""
    return lock_settings(duckdb.connect(path, read_only=True, config=dict(CONFINED)))


@contextmanager
def opened(path: Path) -> Iterator[tuple[duckdb.DuckDBPyConnection, str]]:
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


def log_beside(path: Path) -> Path:
    """Return the file in which DuckDB keeps what another program wrote to the database at *path*; ours leave none."""
    return path.with_name(f"{path.name}.wal")


def lock_settings(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    """Lock the settings of *connection* and turn off its progress bar, which would be mixed with results."""
    connection.execute("SET enable_progress_bar = false; SET lock_configuration = true")
    return connection


def read_set_aside(connection: duckdb.DuckDBPyConnection, locations: Locations) -> tuple[str, ...]:
    """Return the files that the database leaves out and why, in a line per file, or per benchmark and reason."""
    found = connection.execute(_SET_ASIDE, [str(locations.root), _MAX_LINES]).fetchall()
    ((num_files,),) = connection.execute("SELECT count(*) FROM set_aside").fetchall()
    left_out = num_files - sum(count for _, count in found)
    more = (f"{left_out:,} more files: tta-pipeline query 'FROM set_aside'",) if left_out else ()
    return (*(line for line, _ in found), *more)
