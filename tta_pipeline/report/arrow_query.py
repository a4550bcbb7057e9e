"""Answers of the database in Arrow's types: for Python, and as Parquet."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import QuestionError
from tta_pipeline.report.answers import Answer
from tta_pipeline.report.formats import require_unique_columns
from tta_pipeline.results.database.database import open_metrics


def query(sql: str, parameters: Sequence[object] = (), *, data_root: Path | str | None = None) -> pa.Table:
    """Return the answer of the results database as an Arrow table, for `.to_pandas()`, `.to_pylist()` or polars.

    The database is opened read-only; the query does not wait for results that a run publishes meanwhile.

    Args:
        sql: One query to `metrics.duckdb`. Its tables and views are listed in docs/reference/database.md, and there
            are examples in docs/reference/queries.md.
        parameters: The values for each `?` in *sql*.
        data_root: Folder of `metrics.duckdb`; None: `$TTA_DATA_ROOT`, by default `data/` in the working directory.

    Raises:
        RecordError: there is no database, or it cannot be read.
        QuestionError: the database cannot answer.
    """
    locations = Locations(root=Path(data_root).absolute()) if data_root else Locations.from_environment()
    with open_metrics(locations.metrics) as connection, Answer(connection, sql, parameters) as answer:
        schema, batches = answer.batches()
        return pa.Table.from_batches(batches, schema)


def write_parquet(schema: pa.Schema, batches: Iterable[pa.RecordBatch], file: BinaryIO) -> None:
    """Write *batches*, which have *schema*, to *file* as Parquet.

    Raises:
        QuestionError: two columns have the same name, or Parquet lacks the type of a column.
    """
    require_unique_columns(schema.names)
    try:
        with pq.ParquetWriter(file, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
    except pa.ArrowException as error:
        first, *_ = str(error).splitlines()
        raise QuestionError(
            f"Parquet cannot store the result ({first}); expected columns of other types: cast the column, such as "
            "x::VARCHAR"
        ) from error
