"""Which evaluations count: the chains of results in the plans, with labels from the plans."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import duckdb
import pyarrow as pa

from tta_pipeline.domain.locations import ADDED
from tta_pipeline.results.chains import Link, choose_chain
from tta_pipeline.results.evaluation_parts import CellLabels
from tta_pipeline.results.plans import Plan
from tta_pipeline.results.record_fields import columns_of, values_of

UNDER_LOAD = 0.2
"""Share of the cores that others keep busy from which a timing is marked; a quiet machine has less than a tenth."""
_LABELS = tuple(field.name for field in columns_of(CellLabels))
_KEY = ("file", "corruption", "severity")
_IDENTITY = ("benchmark", "dataset", "experiment", "source")
_TYPES = {"severity": pa.int32(), "shift_position": pa.int32(), "counts_in_mean": pa.bool_()}
_IS_RELEASED = " AND ".join(f"r.{name} IS NOT DISTINCT FROM e.{name}" for name in _IDENTITY)
_ONE = ("file", "corruption", "severity", "experiment")
# Rows that count already, with the same labels, stay as they are: a new timing of one cell rewrites no others.
_KEPT = f"""
CREATE OR REPLACE TEMP TABLE kept AS
SELECT e.rowid AS row, {", ".join(f"e.{name}" for name in _ONE)}
FROM evaluations AS e JOIN counted AS c USING ({", ".join(_ONE)})
WHERE e.counts AND {" AND ".join(f"c.{name} IS NOT DISTINCT FROM e.{name}" for name in _LABELS)}
"""  # noqa: S608 - the names are ours
_CLAIMED = f"CREATE OR REPLACE TEMP TABLE claimed AS FROM counted ANTI JOIN kept USING ({', '.join(_ONE)})"
_LET_GO = f"""
CREATE OR REPLACE TEMP TABLE let_go AS
SELECT e.rowid AS row, e.file FROM evaluations AS e
SEMI JOIN released AS r ON e.counts AND {_IS_RELEASED}
WHERE e.rowid NOT IN (SELECT row FROM kept)
"""  # noqa: S608
_TOUCHED = "CREATE OR REPLACE TEMP TABLE touched AS SELECT file FROM claimed UNION SELECT file FROM let_go"
# A result in the plans of two experiments has a row for each; a result in no plan has a row of its first name.
_RELEASE = """
UPDATE evaluations SET counts = FALSE, experiment = made_as, num_timings = NULL, median_wall_s = NULL,
    under_load = NULL, devices_differ_by = NULL
WHERE rowid IN (SELECT row FROM let_go)
"""
_DROP_COPIES = """
DELETE FROM evaluations WHERE NOT counts AND rowid IN (
    SELECT rowid FROM (
        SELECT rowid, row_number() OVER (PARTITION BY file, corruption, severity ORDER BY counts DESC, rowid) AS n
        FROM evaluations SEMI JOIN touched USING (file)
    ) WHERE n > 1
)
"""
_RANKED = """
CREATE OR REPLACE TEMP TABLE ranked AS
SELECT c.*, coalesce(has_counting, FALSE) AS is_taken,
    row_number() OVER (PARTITION BY file, corruption, severity ORDER BY experiment) AS number
FROM claimed AS c
LEFT JOIN (
    SELECT file, bool_or(counts) AS has_counting FROM evaluations SEMI JOIN claimed USING (file) GROUP BY file
) USING (file)
"""
_CLAIM = f"""
UPDATE evaluations SET counts = TRUE, {", ".join(f"{name} = r.{name}" for name in _LABELS)}
FROM ranked AS r
WHERE NOT r.is_taken AND r.number = 1 AND {" AND ".join(f"r.{name} = evaluations.{name}" for name in _KEY)}
"""  # noqa: S608 - the names are ours
_COPY = f"""
INSERT INTO evaluations BY NAME
SELECT e.* REPLACE (TRUE AS counts, {", ".join(f"r.{name} AS {name}" for name in _LABELS)})
FROM ranked AS r
JOIN (
    FROM evaluations SEMI JOIN (FROM ranked WHERE is_taken OR number > 1) USING (file)
    QUALIFY row_number() OVER (PARTITION BY file, corruption, severity ORDER BY rowid) = 1
) AS e USING ({", ".join(_KEY)})
WHERE r.is_taken OR r.number > 1
"""  # noqa: S608
_TIMED = """
CREATE OR REPLACE TEMP TABLE timed AS
SELECT fingerprint FROM evaluations SEMI JOIN touched USING (file)
UNION SELECT fingerprint FROM timed_again
"""
_TIMINGS = f"""
UPDATE evaluations SET num_timings = t.num_timings, median_wall_s = t.median_wall_s, under_load = t.under_load,
    devices_differ_by = t.devices_differ_by
FROM (
    WITH every AS (
        SELECT DISTINCT
            file, fingerprint, corruption, severity, conditions, wall_s, error, predictions_sha256,
            coalesce(other_load >= {UNDER_LOAD} * num_cores, FALSE) AS is_loaded
        FROM evaluations
        SEMI JOIN timed USING (fingerprint)
        ANTI JOIN (FROM results WHERE void IS NOT NULL) USING (file)
    )
    SELECT
        c.rowid AS row,
        count(*) FILTER (o.conditions = c.conditions) AS num_timings,
        coalesce(
            median(o.wall_s) FILTER (o.conditions = c.conditions AND NOT is_loaded),
            median(o.wall_s) FILTER (o.conditions = c.conditions)
        ) AS median_wall_s,
        bool_and(is_loaded) FILTER (o.conditions = c.conditions) AS under_load,
        CASE WHEN count(DISTINCT o.predictions_sha256) > 1 THEN max(o.error) - min(o.error) END AS devices_differ_by
    FROM evaluations AS c
    JOIN every AS o USING (fingerprint, corruption, severity)
    WHERE c.counts
    GROUP BY c.rowid
) AS t
WHERE t.row = evaluations.rowid
"""  # noqa: S608
_NEWEST_OF = {"training_runs": "model", "tunings": "experiment"}
"""Tables in which only the newest result counts, each with the column that names its subject."""
_MARK_NEWEST = """
UPDATE {table} SET counts = marked.counts FROM (
    SELECT t.rowid AS row,
        void IS NULL AND r.source IS NULL AND row_number() OVER (
            PARTITION BY benchmark, dataset, {column}
            ORDER BY void IS NOT NULL, r.source IS NOT NULL, finished_at DESC, sha256 DESC
        ) = 1 AS counts
    FROM {table} AS t JOIN results AS r USING (file)
) AS marked
WHERE marked.row = {table}.rowid AND marked.counts <> {table}.counts
"""


def count_results(
    connection: duckdb.DuckDBPyConnection,
    plans: Mapping[str, Plan],
    stored: Collection[tuple[str, str, str, str | None]],
    *,
    timed_again: Collection[str],
) -> None:
    """Mark the evaluations in *plans* as counting, and measure how their timings agree.

    Args:
        connection: The database, with all results.
        plans: The plans that changed, or of whose results some did, by path relative to the data root.
        stored: Benchmark, dataset, experiment and source of plans as they were when they were last counted; what
            counted by them stops counting unless it is in *plans*.
        timed_again: Fingerprints of which results came, went, or were voided.
    """
    rows = _counted_rows(connection, plans)
    counted = pa.table(
        {name: pa.array([row[name] for row in rows], _TYPES.get(name, pa.string())) for name in (*_KEY, *_LABELS)}
    )
    released = pa.table(
        {name: pa.array([each[at] for each in stored], pa.string()) for at, name in enumerate(_IDENTITY)}
    )
    again = pa.table({"fingerprint": pa.array(sorted(timed_again), pa.string())})
    with registered(connection, counted=counted, released=released, timed_again=again):
        _mark_counted(connection)
    for table, column in _NEWEST_OF.items():
        if _has_rows(connection, table):
            connection.execute(_MARK_NEWEST.format(table=table, column=column))


def _mark_counted(connection: duckdb.DuckDBPyConnection) -> None:
    """Let just the rows of the table `counted` count, of those in the plans that `released` names.

    What changes nothing is left out: to plan a statement on a wide table takes DuckDB up to ten milliseconds.
    """
    for statement in (_KEPT, _CLAIMED, _LET_GO, _TOUCHED):
        connection.execute(statement)
    if _has_rows(connection, "let_go"):
        connection.execute(_RELEASE)
        connection.execute(_DROP_COPIES)
    if _has_rows(connection, "claimed"):
        connection.execute(_RANKED)
        connection.execute(_CLAIM)
        if _has_rows(connection, "ranked WHERE is_taken OR number > 1"):
            connection.execute(_COPY)
    connection.execute(_TIMED)
    if _has_rows(connection, "timed"):
        connection.execute(_TIMINGS)


def _has_rows(connection: duckdb.DuckDBPyConnection, table: str) -> bool:
    return bool(connection.execute(f"FROM {table} LIMIT 1").fetchall())


def _counted_rows(connection: duckdb.DuckDBPyConnection, plans: Mapping[str, Plan]) -> list[dict[str, Any]]:
    """Return file, cell and labels of each evaluation that counts by *plans*."""
    asked = {fingerprint for plan in plans.values() for stream in plan.streams for fingerprint in stream.fingerprints}
    links = _read_links(connection, asked)
    rows = []
    for path, plan in plans.items():
        folder, source = path.rsplit("/", 2)[0], source_of(path)
        labels: dict[str, dict[str, Any]] = {}
        for stream in plan.streams:
            at = f"{folder}/{stream.folder}"
            found = {each: links.get((at, each), ()) for each in stream.fingerprints}
            for link, segment in zip(choose_chain(stream.fingerprints, found), stream.segments, strict=False):
                for cell in segment.cells:
                    corruption, _, severity = cell.partition("|")
                    if corruption not in labels:
                        of_shift = values_of(plan.labels.of_shift(corruption))
                        labels[corruption] = {**dict(zip(_LABELS, of_shift, strict=True)), "corruption": corruption}
                        if source:
                            labels[corruption]["experiment"] = f"{source}:{plan.labels.experiment}"
                    rows.append({**labels[corruption], "file": link.file, "severity": int(severity)})
    return rows


def _read_links(
    connection: duckdb.DuckDBPyConnection, fingerprints: Collection[str]
) -> Mapping[tuple[str, str], list[Link]]:
    """Return the results with *fingerprints* that are not void, by their folder and fingerprint."""
    with registered(connection, asked=pa.table({"fingerprint": pa.array(sorted(fingerprints), pa.string())})):
        rows = connection.execute(
            "SELECT fingerprint, file, sha256, previous, finished_at, device FROM results SEMI JOIN asked "
            "USING (fingerprint) WHERE kind = 'evaluation' AND void IS NULL"
        ).fetchall()
    found: dict[tuple[str, str], list[Link]] = defaultdict(list)
    for fingerprint, file, sha256, previous, finished_at, device in rows:
        link = Link(file=file, sha256=sha256, previous=previous, finished_at=finished_at, device=device)
        found[file.rpartition("/")[0], fingerprint].append(link)
    return found


def source_of(file: str) -> str | None:
    """Return the name under which *file* was added from others; None if it is the data root's own."""
    parts = file.split("/")
    return parts[1] if parts[0] == ADDED else None


@contextmanager
def registered(connection: duckdb.DuckDBPyConnection, **tables: pa.Table) -> Iterator[None]:
    """Let the database read *tables* by name in the block."""
    for name, table in tables.items():
        connection.register(name, table)
    try:
        yield
    finally:
        for name in tables:
            connection.unregister(name)
