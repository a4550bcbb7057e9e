"""Changes of the records since the database was made: new, changed, moved and removed records."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from tta_pipeline.errors import RecordError
from tta_pipeline.results.database.record_listing import ListedRecord, RecordListing, Stamp
from tta_pipeline.results.records import content_sha256, file_sha256, read_record_bytes
from tta_pipeline.util.plurals import count_of
from tta_pipeline.util.short_lists import abbreviate_list

_STAMP = ", ".join(Stamp._fields)
_WITHIN = "$within IS NULL OR folder = $within OR starts_with(folder, $within || '/')"
_KNOWN = f"""
    SELECT folder, sequence, sha256, FALSE AS is_aside, {_STAMP} FROM ingested WHERE {_WITHIN}
    UNION ALL SELECT folder, sequence, sha256, TRUE AS is_aside, {_STAMP} FROM set_aside WHERE {_WITHIN}
"""  # noqa: S608 - the names are ours
_FRESH = f"SELECT folder, sequence, {_STAMP} FROM listed ANTI JOIN ({_KNOWN}) USING (folder, sequence)"  # noqa: S608
_TOUCHED = f"""
    SELECT folder, sequence, {", ".join(f"listed.{name}" for name in Stamp._fields)}, sha256, is_aside
    FROM listed JOIN ({_KNOWN}) AS known USING (folder, sequence)
    WHERE {" OR ".join(f"listed.{name} <> known.{name}" for name in Stamp._fields)}
"""  # noqa: S608
_GONE = f"SELECT folder, sequence, {_STAMP} FROM ({_KNOWN}) ANTI JOIN listed USING (folder, sequence)"  # noqa: S608


@dataclass(frozen=True, kw_only=True)
class Changes:
    """The changes that bring the database up to date with the records."""

    fresh: Sequence[ListedRecord]
    """Records that the database does not have."""
    restamped: Sequence[ListedRecord]
    """Records with a new stamp but unchanged content."""
    undone: str
    """Description of records that were changed or removed after the database was made; empty if there are none."""

    def __bool__(self) -> bool:
        return bool(self.fresh or self.restamped or self.undone)


def find_changes(
    connection: duckdb.DuckDBPyConnection, listing: RecordListing, data_root: Path, within: Path | None = None
) -> Changes:
    """Compare the database with the listed records, those in the folder *within*; records with a new stamp are read."""
    asked = {"within": None if within is None else str(within.relative_to(data_root))}
    connection.register("listed", listing.table())
    try:
        fresh, touched, gone = (
            connection.execute(f"{sql} ORDER BY folder, sequence", asked).fetchall()
            for sql in (_FRESH, _TOUCHED, _GONE)
        )
    finally:
        connection.unregister("listed")
    is_same = [
        (file_sha256 if is_aside else _content_sha256)(data_root / _to_listed(row).path) == sha256
        for *row, sha256, is_aside in touched
    ]
    changed = [_to_listed(row) for row, same in zip(touched, is_same, strict=True) if not same]
    return Changes(
        fresh=[_to_listed(row) for row in fresh],
        restamped=[_to_listed(row) for row, same in zip(touched, is_same, strict=True) if same],
        undone=", and ".join(
            f"{count_of(len(records), 'record')} {do} ({abbreviate_list([record.path for record in records])})"
            for records, do in ((changed, "changed"), ([_to_listed(row) for row in gone], "disappeared"))
            if records
        ),
    )


def restamp(connection: duckdb.DuckDBPyConnection, records: Sequence[ListedRecord]) -> None:
    """Store the new stamps of *records*, whose content is already in the database."""
    if not records:
        return
    rows = [(record.folder, record.sequence, *record.stamp.trusted) for record in records]
    names = ("folder", "sequence", *Stamp._fields)
    connection.register("restamped", pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))))
    values = ", ".join(f"{name} = restamped.{name}" for name in Stamp._fields)
    for table in ("ingested", "set_aside"):
        same = " AND ".join(f"{table}.{name} = restamped.{name}" for name in ("folder", "sequence"))
        connection.execute(f"UPDATE {table} SET {values} FROM restamped WHERE {same}")  # noqa: S608
    connection.unregister("restamped")


def _to_listed(row: Sequence[Any]) -> ListedRecord:
    folder, sequence, *stamp = row[: 2 + len(Stamp._fields)]
    return ListedRecord(folder, sequence, Stamp(*stamp))


def _content_sha256(path: Path) -> str | None:
    """Return the current hash of a record; None if it is damaged."""
    try:
        return content_sha256(read_record_bytes(path))
    except RecordError:
        return None
