"""Records into the database: read by batches, in columns, and set aside one by one where they do not fit."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa

from tta_pipeline.errors import RecordError
from tta_pipeline.evaluation.record import columns
from tta_pipeline.metrics.listing import Listed, Listing, Stamp
from tta_pipeline.metrics.records import Record, file_sha256, parsed, record_bytes
from tta_pipeline.metrics.schema import CELL, evaluations_arrow
from tta_pipeline.progress import Tell

_BATCH = 1_000
_CHECKPOINT_EVERY = 20
"""Batches, after which the database is written out: what is not yet is held in memory."""
_FACTS = attrgetter(*(field.path for field in columns()))
_COUNTS = pa.schema([(name, pa.list_(pa.int32())) for name in ("num_samples", "num_correct")])
_TIMES = pa.schema(
    [
        ("num_samples", pa.list_(pa.int32())),
        *((name, pa.list_(pa.float64())) for name in ("data_wait_s", "host_to_device_s", "compute_s")),
    ]
)
_KEY = pa.schema([("folder", pa.string()), ("sequence", pa.int64())])
_STAMPS = pa.schema([(name, pa.int64()) for name in Stamp._fields])
Read = tuple[Listed, Record]


class Refused(NamedTuple):
    """A record that is set aside."""

    listed: Listed
    reason: str
    file_sha256: str | None


def add_records(
    connection: duckdb.DuckDBPyConnection, data_root: Path, listed: Listing | Sequence[Listed], tell: Tell
) -> int:
    """Put *listed* records into the database, set aside those that are damaged or foreign; return how many it has more.

    Raises:
        duckdb.Error: of the file or the disk.
    """
    progress = tell("metrics.duckdb", len(listed), unit="records")
    left, num_added, num_batches = iter(listed), 0, 0
    while batch := list(islice(left, _BATCH)):
        read, refused = _read(data_root, batch)
        unfit = [
            Refused(listed, reason, file_sha256(data_root / listed.path))
            for listed, reason in _inserted(connection, read)
        ]
        _set_aside(connection, [*refused, *unfit])
        num_added += len(read) - len(unfit)
        progress.advance(len(batch))
        num_batches += 1
        if num_batches % _CHECKPOINT_EVERY == 0:
            connection.execute("CHECKPOINT")
    _mark_latest(connection)
    return num_added


def _read(data_root: Path, batch: Sequence[Listed]) -> tuple[list[Read], list["Refused"]]:
    """Return the records of *batch*, with stamps to remember, and those that are none, with what is wrong."""
    read, refused = [], []
    for listed in batch:
        known = listed._replace(stamp=listed.stamp.trusted)
        path = data_root / listed.path
        try:
            data = record_bytes(path)
        except RecordError as error:
            refused.append(Refused(known, str(error), None))
            continue
        try:
            read.append((known, parsed(path, data)))
        except RecordError as error:
            refused.append(Refused(known, str(error), hashlib.sha256(data).hexdigest()))
    return read, refused


def _inserted(connection: duckdb.DuckDBPyConnection, read: Sequence[Read]) -> Iterator[tuple[Listed, str]]:
    """Insert what was read, all in one go; yield those that break a constraint, with what DuckDB or Arrow says."""
    if not read:
        return
    connection.execute("BEGIN")
    try:
        for table, rows in _tables(read):
            _insert(connection, table, rows)
    except (duckdb.ConstraintException, duckdb.DataError, duckdb.NotSupportedError, duckdb.ProgrammingError,
            pa.ArrowException, KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:  # fmt: skip
        connection.execute("ROLLBACK")
        if len(read) == 1:
            yield read[0][0], f"does not fit the database ({_first_line(error)}); expected what docs/reference says"
            return
        middle = len(read) // 2
        yield from _inserted(connection, read[:middle])
        yield from _inserted(connection, read[middle:])
    except BaseException:
        with suppress(duckdb.Error):  # what went wrong before tells more
            connection.execute("ROLLBACK")
        raise
    else:
        connection.execute("COMMIT")


def _insert(connection: duckdb.DuckDBPyConnection, table: str, rows: pa.Table) -> None:
    connection.register("incoming", rows)
    connection.execute(f"INSERT INTO {table} BY NAME SELECT * FROM incoming")  # noqa: S608 - the names are ours
    connection.unregister("incoming")


def _tables(read: Sequence[Read]) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows of *read* by table."""
    yield "ingested", _columnar(
        (*(listed[:2] for listed, _ in read),), _KEY, [(record.sha256, *listed.stamp) for listed, record in read],
        pa.schema([("sha256", pa.string()), *_STAMPS]),
    )  # fmt: skip
    evaluations = [(listed, record) for listed, record in read if record.evaluation is not None]
    if evaluations:
        yield from _evaluations(evaluations)
    others: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for _, record in read:
        if record.evaluation is None:
            for table, row in _other_rows(record):
                others.setdefault((table, *sorted(row)), []).append(row)
    for (table, *_), rows in others.items():
        yield table, pa.Table.from_pylist(rows)


def _evaluations(read: Sequence[Read]) -> Iterator[tuple[str, pa.Table]]:
    rows = [
        (
            listed.folder, listed.sequence, record.version, record.run_id, *_FACTS(record.evaluation),
            record.evaluation and record.evaluation.conditions, _utc(record.started_at), _as_json(record.versions),
        )
        for listed, record in read
    ]  # fmt: skip
    yield "evaluations", _columnar(rows, evaluations_arrow())
    with_classes = [(listed, row.class_counts) for listed, record in read if (row := record.evaluation)]
    found = [(listed[:2], counts) for listed, counts in with_classes if counts]
    if found:
        counts = [(each.num_samples, each.num_correct) for _, each in found]
        yield "class_results", _columnar([key for key, _ in found], _KEY, counts, _COUNTS)
    timed = [(listed[:2], row.batches) for listed, record in read if (row := record.evaluation)]
    timed = [(key, batches) for key, batches in timed if batches.num_samples]
    if timed:
        times = [(b.num_samples, b.data_wait_s, b.host_to_device_s, b.compute_s) for _, b in timed]
        yield "batch_results", _columnar([key for key, _ in timed], _KEY, times, _TIMES)


def _columnar(
    rows: Sequence[Sequence[Any]], schema: pa.Schema, more: Sequence[Sequence[Any]] = (), its: pa.Schema | None = None
) -> pa.Table:
    """Return *rows* of *schema* as a table, with the columns of *more* beside them."""
    arrays = [pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), schema.types, strict=True)]
    if its is None:
        return pa.Table.from_arrays(arrays, schema=schema)
    return pa.Table.from_arrays([*arrays, *_columnar(more, its).columns], schema=pa.schema([*schema, *its]))


def _other_rows(record: Record) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the rows of a record that is of no evaluation, each with its table."""
    common = {
        "run_id": record.run_id,
        "sequence": record.sequence,
        "started_at": _utc(record.started_at),
        "versions": _as_json(record.versions),
    }
    facts = dict(record.facts)
    if record.kind == "loader_benchmarks":
        for loader in facts.pop("loaders"):
            yield "loader_benchmarks", {**common, **facts, **loader}
        return
    facts.setdefault("shard_set", "shards")  # records made before there were transforms do not say it
    shards = facts.pop("shards")
    yield "shard_sets", {**common, **facts}
    identity = {name: facts[name] for name in ("benchmark", "shard_set", "corruption", "severity")}
    for shard in shards:
        yield "shards", {**identity, "sequence": record.sequence, **shard}


def _set_aside(connection: duckdb.DuckDBPyConnection, refused: Sequence[Refused]) -> None:
    if refused:
        rows = [(each.reason, each.file_sha256, *each.listed.stamp) for each in refused]
        schema = pa.schema([("reason", pa.string()), ("sha256", pa.string()), *_STAMPS])
        _insert(connection, "set_aside", _columnar([each.listed[:2] for each in refused], _KEY, rows, schema))


def _mark_latest(connection: duckdb.DuckDBPyConnection) -> None:
    """Let the newest evaluation of each cell be the only one marked, so that no question looks for it among all.

    None is where a newer record of the folder is set aside: what it said is not known, and an older one is not it.
    """
    same_cell = " AND ".join(f"evaluations.{column} = newest.{column}" for column in CELL)
    connection.execute(
        f"""
        UPDATE evaluations SET is_latest = FALSE
        FROM (SELECT {", ".join(CELL)}, max(sequence) AS sequence FROM evaluations WHERE is_latest
              GROUP BY ALL HAVING count(*) > 1) AS newest
        WHERE is_latest AND evaluations.sequence < newest.sequence AND {same_cell}
        """  # noqa: S608 - the names are ours
    )
    connection.execute(
        """
        UPDATE evaluations SET is_latest = FALSE
        FROM (SELECT folder, max(sequence) AS sequence FROM set_aside GROUP BY folder) AS aside
        WHERE is_latest AND evaluations.folder = aside.folder AND evaluations.sequence < aside.sequence
        """
    )


def _utc(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _as_json(versions: Mapping[str, str]) -> str:
    return _json_of(tuple(versions.items()))


@lru_cache(maxsize=64)
def _json_of(versions: tuple[tuple[str, str], ...]) -> str:
    return json.dumps(dict(versions))


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else repr(error)
