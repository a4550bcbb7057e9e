"""How the database differs from the files: by their names and sizes, and in its own rows if others wrote to it."""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import duckdb

from tta_pipeline.domain.locations import Locations
from tta_pipeline.results.database.database import log_beside, opened, plain_errors_of, read_set_aside
from tta_pipeline.results.database.listing import ListedFile, Listing, list_files
from tta_pipeline.results.database.schema_version import schema_version
from tta_pipeline.results.names import PLANS
from tta_pipeline.results.shard_set_rows import read_shard_set_rows
from tta_pipeline.util.files import temporary_folder
from tta_pipeline.util.plurals import count_of
from tta_pipeline.util.short_lists import abbreviate_list

_CHECKED = {
    "results": "file, sha256, size_bytes, void",
    "evaluations": (
        "file, corruption, severity, experiment, counts, counts_in_mean, seed, stream, position, fingerprint, "
        "num_samples, num_correct, error, top5_error, ece, nll, wall_s, images_per_s, median_wall_s, predictions_sha256"
    ),
    "class_results": "file, corruption, severity, num_samples, num_correct",
    "batch_results": "file, corruption, severity, num_samples, num_correct",
    "plans": "file, sha256, num_asked",
    "set_aside": "file, size_bytes",
    "training_runs": "file, counts, weights_sha256",
    "tunings": "file, counts, chosen, error",
    "shard_sets": "benchmark, dataset, corruption, severity, manifest_sha256",
}
"""Tables whose rows are compared with what was inserted, and the columns that are."""
_IS_PLAN = f"file LIKE '%/{PLANS}/%'"
_KNOWN = f"""
SELECT file, size_bytes FROM results UNION ALL SELECT file, size_bytes FROM set_aside WHERE NOT {_IS_PLAN}
"""  # noqa: S608 - the names are ours
_VOIDS = "SELECT file, void FROM results WHERE void IS NOT NULL"
_REFUSED_PLANS = f"SELECT file, reason FROM set_aside WHERE {_IS_PLAN}"  # noqa: S608


@dataclass(frozen=True, kw_only=True, slots=True)
class Present:
    """The current database, compared with the files."""

    fresh: tuple[ListedFile, ...] = ()
    """Files that it lacks, or that have another size now."""
    gone: tuple[str, ...] = ()
    """Files that it has, and that are gone or have another size now."""
    other_voids: tuple[ListedFile, ...] = ()
    """Files that were voided since, or are no longer void."""
    other_plans: tuple[str, ...] = ()
    """Plans that changed, are new or gone."""
    has_other_shard_sets: bool = False
    set_aside: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    why_anew: str = ""
    """Why it cannot be continued; empty if it can."""

    def __bool__(self) -> bool:
        return bool(self.fresh or self.gone or self.other_voids or self.other_plans or self.has_other_shard_sets)


@contextmanager
def open_if_current(locations: Locations) -> Iterator[duckdb.DuckDBPyConnection | None]:
    """Open `metrics.duckdb` for reading if it is whole, has just what the files have, and nobody else writes to it.

    Otherwise yield None.

    Raises:
        RecordError: the database cannot be read in the block.
    """
    current = None
    with plain_errors_of(locations.metrics), ExitStack() as stack:
        if locations.metrics.exists() and not log_beside(locations.metrics).exists():
            with suppress(duckdb.Error):
                connection, note = stack.enter_context(_as_it_is(locations.metrics))
                present = _compare(connection, locations, list_files(locations.root))
                if not (note or present or present.why_anew):
                    current = connection
        if current is None:
            stack.close()
        yield current


def compare(locations: Locations, listing: Listing, *, checks_rows: bool = False) -> Present:
    """Compare the database with the files by their names and sizes; *checks_rows* also hashes all of its rows."""
    with _as_it_is(locations.metrics) as (connection, note):
        present = _compare(connection, locations, listing, checks_rows=checks_rows)
        return replace(present, notes=(note,)) if note else present


def _compare(
    connection: duckdb.DuckDBPyConnection, locations: Locations, listing: Listing, *, checks_rows: bool = False
) -> Present:
    if other := other_schema(connection, locations.metrics) or _damage(
        connection, locations.metrics, always=checks_rows
    ):
        return Present(why_anew=other)
    voids: dict[str, str] = dict(connection.execute(_VOIDS).fetchall())
    known: dict[str, int] = dict(connection.execute(_KNOWN).fetchall())
    shard_sets, _ = read_shard_set_rows(locations.root)
    ((shard_sets_sha256,),) = connection.execute("SELECT shard_sets_sha256 FROM publication").fetchall()
    found = listing.results
    return Present(
        fresh=listing.listed(file for file, size in found.items() if known.get(file) != size),
        gone=tuple(file for file, size in known.items() if found.get(file) != size),
        other_voids=listing.listed(
            file
            for file in sorted({*voids, *listing.voids} & found.keys() & known.keys())
            if voids.get(file) != listing.voids.get(file)
        ),
        other_plans=tuple(_find_other_plans(connection, locations.root, listing)),
        has_other_shard_sets=shard_sets != shard_sets_sha256,
        set_aside=read_set_aside(connection, locations),
    )


def _find_other_plans(connection: duckdb.DuckDBPyConnection, data_root: Path, listing: Listing) -> Iterator[str]:
    """Yield the plans that changed, are new or gone; a plan that could not be read is new once it can be read."""
    plans = dict(connection.execute("SELECT file, sha256 FROM plans").fetchall())
    refused = dict(connection.execute(_REFUSED_PLANS).fetchall())
    for file in sorted({*plans, *refused, *listing.plans}):
        if file in refused and file in listing.plans:
            from tta_pipeline.results.plans import problem_of_plan

            is_other = problem_of_plan(data_root / file) != refused[file]
        else:
            is_other = file in refused or plans.get(file) != listing.plans.get(file)
        if is_other:
            yield file


def find_changes(locations: Locations, listing: Listing) -> Iterator[str]:
    """Yield how `metrics.duckdb` differs from the files of *listing*; nothing is written."""
    if not locations.metrics.exists():
        return
    try:
        present = compare(locations, listing, checks_rows=True)
    except duckdb.Error as error:
        yield no_database(locations.metrics, error)
        return
    if present.why_anew:
        yield present.why_anew
    for files, what in ((present.fresh, "are not in metrics.duckdb"), (present.gone, "disappeared, but are in it")):
        if files:
            names = [each if isinstance(each, str) else each.file for each in files]
            yield f"{count_of(len(files), 'result')} {what} ({abbreviate_list(names)})"


def _damage(connection: duckdb.DuckDBPyConnection, path: Path, *, always: bool = False) -> str:
    """Return what another program did to the rows; empty if nothing. Checked if the file was written to since."""
    ((published_at_ns,),) = connection.execute("SELECT published_at_ns FROM publication").fetchall()
    if path.stat().st_mtime_ns == published_at_ns and not always:
        return ""
    expected = {name: found for name, *found in connection.execute("FROM contents").fetchall()}
    for name, (num_rows, checksum) in contents(connection).items():
        if expected.get(name) != [num_rows, checksum]:
            return f"rows of the table {name} in {path} were changed by another program"
    return ""


def contents(connection: duckdb.DuckDBPyConnection) -> Mapping[str, tuple[int, int]]:
    """Return the number of rows of each checked table, and the sum of their hashes."""
    return {
        name: connection.execute(
            f"SELECT count(*), coalesce(sum(hash({columns})::HUGEINT), 0)::HUGEINT FROM {name}"  # noqa: S608 - ours
        ).fetchall()[0]
        for name, columns in _CHECKED.items()
    }


@contextmanager
def _as_it_is(path: Path) -> Iterator[tuple[duckdb.DuckDBPyConnection, str]]:
    """Open the current database at *path* under another name, as `opened` does.

    If this process already has a path open, DuckDB reuses that open file, even if another file has replaced it.
    """
    if not os.access(path.parent, os.W_OK):  # the data root of others, who let this user read it
        with opened(path) as found:
            yield found
        return
    with temporary_folder(path) as folder:
        link = folder / path.name
        try:
            link.hardlink_to(path)
        except OSError:  # a file system without hard links
            shutil.copyfile(path, link)
        with opened(link) as (connection, note):
            yield connection, note.replace(str(link), str(path))


def no_database(path: Path, error: duckdb.Error) -> str:
    """Return why the file at *path*, which raised *error*, cannot be continued."""
    return f"{path} is no whole database of this version of tta_pipeline ({str(error).splitlines()[0]})"


def other_schema(connection: duckdb.DuckDBPyConnection, path: Path) -> str:
    """Return why the database at *path* cannot be continued: it has another schema. Empty: it has this one."""
    found = connection.execute("SELECT schema_version FROM publication").fetchall()
    return "" if found == [(schema_version(),)] else f"{path} had schema {found[0][0]}; expected {schema_version()}"
