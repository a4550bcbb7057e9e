"""Publication of results: `metrics.duckdb` is replaced by an updated copy, so that readers and writers never wait."""

import json
import os
import shutil
import time
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import duckdb

from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import RecordError
from tta_pipeline.results.database.changes import Present, compare, contents, no_database, other_schema
from tta_pipeline.results.database.counting import count_results, source_of
from tta_pipeline.results.database.database import (
    CONFINED,
    lock_settings,
    log_beside,
    opened,
    read_set_aside,
)
from tta_pipeline.results.database.ingest import add_results, remove_results, replace_shard_sets, set_voids
from tta_pipeline.results.database.listing import Listing, list_files
from tta_pipeline.results.database.schema import create_schema
from tta_pipeline.results.database.schema_version import quoted, schema_version
from tta_pipeline.results.plans import Plan
from tta_pipeline.results.shard_set_rows import read_shard_set_rows
from tta_pipeline.util.files import advice, fsync_path, temporary_folder
from tta_pipeline.util.locks import locked
from tta_pipeline.util.plurals import count_of
from tta_pipeline.util.progress import Reporter, quiet_reporter

# Readable by the DuckDB clients that users have, from 1.1 on.
_STORAGE = {
    "storage_compatibility_version": "v1.1.0",
}
# Very many results must not fill the memory. A rebuild also has batches of them in memory.
_MEMORY_OF_COPY, _MEMORY_OF_REBUILD = "300MB", "230MB"


@dataclass(frozen=True, kw_only=True, slots=True)
class Publication:
    """Result of one publication."""

    num_added: int
    notes: tuple[str, ...]
    """Notes for the user, for example about a write-ahead log that was set aside."""
    set_aside: tuple[str, ...] = ()
    """Damaged or foreign files that the database leaves out, one by one or by folder, with the reason."""


def publish_metrics(locations: Locations, *, rebuild: bool = False, progress: Reporter = quiet_reporter) -> Publication:
    """Bring `metrics.duckdb` up to date with result files and plans, by replacing it with an updated copy.

    Args:
        locations: Paths of results and database.
        rebuild: Whether to rebuild the database from all results, each of which is read and hashed.
        progress: Reporter of the results that are read.

    Raises:
        RecordError: the disk is too full for the database, or it cannot be written.
    """
    try:
        with locked(locations.root / ".metrics.lock"):
            return _publish(locations, rebuild=rebuild, progress=progress)
    except (OSError, duckdb.Error) as error:
        raise RecordError(
            f"{locations.metrics} cannot be written ({error}); expected space for two copies of it (nothing was "
            f"published, and no result is lost): {advice(error)}{_say_what_follows(locations)}"
        ) from error


def _say_what_follows(locations: Locations) -> str:
    """Return what to do once the database can be written."""
    if list_files(locations.root).results:
        return ", then run `tta-pipeline results rebuild`"
    return ", or set TTA_DATA_ROOT to another folder, then repeat the command"


def ensure_current(locations: Locations, progress: Reporter = quiet_reporter) -> tuple[str, ...]:
    """Publish if `metrics.duckdb` lacks current results, plans or schema; return notes for the user.

    Raises:
        RecordError: the schema is outdated, and the database cannot be written.
    """
    if not locations.metrics.exists() and not list_files(locations.root).results:
        return ()
    try:
        return publish_metrics(locations, progress=progress).notes
    except RecordError as error:
        with suppress(duckdb.Error), opened(locations.metrics) as (connection, _):
            if not other_schema(connection, locations.metrics):
                return (f"results that are newer than this table may be missing: {error}",)
        raise


def _publish(locations: Locations, *, rebuild: bool, progress: Reporter) -> Publication:
    notes = _set_wal_aside(locations.metrics)
    listing = list_files(locations.root)
    why_anew = ""
    if locations.metrics.exists() and not rebuild:
        try:
            present = compare(locations, listing)
            notes = (*notes, *present.notes)
            if not (why_anew := present.why_anew):
                num_added, set_aside = _update(locations, listing, present, progress)
                return Publication(num_added=num_added, notes=notes, set_aside=set_aside)
        except duckdb.Error as error:
            why_anew = no_database(locations.metrics, error)
    num_added, set_aside = _rebuild(locations, listing, progress)
    if why_anew:
        notes = (*notes, f"{why_anew}; it was rebuilt from the {count_of(num_added, 'result')}")
    return Publication(num_added=num_added, notes=notes, set_aside=set_aside)


def _update(
    locations: Locations, listing: Listing, present: Present, progress: Reporter
) -> tuple[int, tuple[str, ...]]:
    """Replace the database by a copy with the changes; return the number of added results, and what is set aside.

    If nothing changes, there is no copy.
    """
    if not present:
        return 0, present.set_aside

    now_ns = time.time_ns()
    with (
        _copy_beside(locations.metrics, locations.metrics, published_at_ns=now_ns) as copy,
        _connected(copy) as connection,
    ):
        touched = remove_results(connection, present.gone)
        num_added = add_results(connection, locations.root, present.fresh, progress)
        set_voids(connection, present.other_voids)
        touched |= _fingerprints_of(connection, [each.file for each in (*present.fresh, *present.other_voids)])
        _count(connection, locations.root, listing, touched=touched, other_plans=present.other_plans)
        set_aside = _finish(connection, locations, published_at_ns=now_ns)
    return num_added, set_aside


def _rebuild(locations: Locations, listing: Listing, progress: Reporter) -> tuple[int, tuple[str, ...]]:
    """Replace the database by a new one with all results; return their number, and what is set aside."""
    now_ns = time.time_ns()
    with _copy_beside(None, locations.metrics, published_at_ns=now_ns) as copy:
        _create_empty(copy)
        with _connected(copy, memory=_MEMORY_OF_REBUILD) as connection:
            num_added = add_results(connection, locations.root, listing.listed(listing.results), progress)
            _count(connection, locations.root, listing, touched=None, other_plans=tuple(listing.plans))
            set_aside = _finish(connection, locations, published_at_ns=now_ns)
    return num_added, set_aside


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


def _fingerprints_of(connection: duckdb.DuckDBPyConnection, files: Collection[str]) -> set[str]:
    rows = connection.execute(
        "SELECT DISTINCT fingerprint FROM results WHERE list_contains($1, file) AND fingerprint IS NOT NULL",
        [list(files)],
    ).fetchall()
    return {fingerprint for (fingerprint,) in rows}


def _count(
    connection: duckdb.DuckDBPyConnection,
    data_root: Path,
    listing: Listing,
    *,
    touched: set[str] | None,
    other_plans: Collection[str],
) -> None:
    """Decide again what counts for plans that changed or contain one of the fingerprints *touched*.

    Args:
        connection: The database, with all results.
        data_root: The data root.
        listing: The plans under *data_root*.
        touched: Fingerprints of results that came, went, or were voided; None: of all.
        other_plans: Plans that changed, are new or gone.
    """
    concerned: dict[str, Plan] = {}
    refused: dict[str, str] = {}
    timed_again = touched or set()
    for file in listing.plans:
        is_other = touched is None or file in other_plans
        try:
            data = (data_root / file).read_bytes()
            if not (is_other or _may_ask_for(data, timed_again)):
                continue
            plan = Plan.parse(data_root / file, data)
            if is_other or not timed_again.isdisjoint(_asked(plan)):
                concerned[file] = plan
        except (RecordError, OSError) as error:
            refused[file] = str(error)
    columns = "benchmark, dataset, experiment, source"
    stored = connection.execute(
        f"SELECT {columns} FROM plans WHERE list_contains($1, file)",  # noqa: S608 - ours
        [[*concerned, *other_plans]],
    ).fetchall()
    for table in ("plans", "set_aside"):
        connection.execute(
            f"DELETE FROM {table} WHERE list_contains($1, file)",  # noqa: S608 - ours
            [[*concerned, *refused, *other_plans]],
        )
    for file, plan in concerned.items():
        source = source_of(file)
        name = f"{source}:{plan.labels.experiment}" if source else plan.labels.experiment
        connection.execute(
            "INSERT INTO plans VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                file, listing.plans[file], plan.benchmark.partition("/")[0], plan.labels.dataset, name, source,
                plan.file_sha256, plan.num_cells, plan.num_averaged_cells, plan.num_averaged_shifts,
                json.dumps(dict(plan.own_files)),
            ],
        )  # fmt: skip
    for file, reason in refused.items():
        connection.execute("INSERT INTO set_aside VALUES (?, ?, ?)", [file, (data_root / file).stat().st_size, reason])
    count_results(connection, concerned, stored, timed_again=timed_again)


_FEW = 100
"""Fingerprints that are found in a plan's text faster than by parsing it."""


def _may_ask_for(plan: bytes, fingerprints: Collection[str]) -> bool:
    """Return whether the text of a *plan* may have one of *fingerprints*."""
    return len(fingerprints) > _FEW or any(each.encode() in plan for each in fingerprints)


def _asked(plan: Plan) -> Iterator[str]:
    return (fingerprint for stream in plan.streams for fingerprint in stream.fingerprints)


def _finish(connection: duckdb.DuckDBPyConnection, locations: Locations, *, published_at_ns: int) -> tuple[str, ...]:
    """Index the shard sets, and note what the database holds now; return what is set aside."""
    sha256, rows = read_shard_set_rows(locations.root)
    replace_shard_sets(connection, rows)
    connection.execute("DELETE FROM contents")
    for name, found in contents(connection).items():
        connection.execute("INSERT INTO contents VALUES (?, ?, ?)", [name, *found])
    connection.execute("UPDATE publication SET published_at_ns = ?, shard_sets_sha256 = ?", [published_at_ns, sha256])
    return read_set_aside(connection, locations)


@contextmanager
def _copy_beside(current: Path | None, target: Path, *, published_at_ns: int) -> Iterator[Path]:
    """Yield a copy of *current*, or a path for a new file, that replaces *target* when the block succeeds.

    Its time of change is *published_at_ns*, as in its row `publication`.
    """
    # The copy has its own folder, in which DuckDB also puts its log and spilled data; a later publication removes
    # the folder of a killed one. Another machine that does not see our lock may publish at the same time: the
    # last copy stays, and the next publication adds the results that it lacks.
    with temporary_folder(target) as folder:
        copy = folder / target.name
        if current is not None:
            shutil.copyfile(current, copy)
        yield copy
        fsync_path(copy)
        os.utime(copy, ns=(published_at_ns,) * 2)
        copy.replace(target)
        fsync_path(target.parent)


@contextmanager
def _connected(path: Path, *, memory: str = _MEMORY_OF_COPY) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a database that is still private at *path* for writing; it is complete on disk once the block has ended."""
    connection = duckdb.connect(config={**_STORAGE, "memory_limit": memory, "temp_directory": f"{path}.tmp"})
    # A file that is thrown away if its writer fails needs no write-ahead log, a fifth of the time to write it.
    connection.execute(f"ATTACH {quoted(str(path))} AS metrics (RECOVERY_MODE 'no_wal_writes'); USE metrics")
    connection.execute("; ".join(f"SET {name} = {value}" for name, value in CONFINED.items()))
    lock_settings(connection)
    try:
        yield connection
        connection.execute("CHECKPOINT")
    finally:
        connection.close()


def _set_wal_aside(path: Path) -> tuple[str, ...]:
    """Move away a write-ahead log: publications leave none, so another program wrote to the database."""
    log = log_beside(path)
    if not log.exists():
        return ()
    aside = log.with_name(f"{log.name}.set-aside-{uuid.uuid4().hex[:8]}")
    log.rename(aside)
    return (
        (
            f"{log} was left by another program that wrote to the database, and is now {aside}; its content is not "
            "in the database, which is made only from the result files"
        ),
    )
