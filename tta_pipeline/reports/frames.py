"""Questions to the database from Python."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from tta_pipeline.locations import Locations
from tta_pipeline.metrics.database import open_metrics
from tta_pipeline.reports.answers import Answer


def query(sql: str, parameters: Sequence[object] = (), *, data_root: Path | str | None = None) -> pa.Table:
    """Return what the database of results answers, as an Arrow table: `.to_pandas()`, `.to_pylist()`, or polars.

    Results that a run publishes meanwhile are not waited for, and nothing can be written.

    Args:
        sql: One question to `metrics.duckdb`; tables and views are in docs/metrics.md, examples in docs/queries.md.
        parameters: What stands for each `?` in it.
        data_root: Where `metrics.duckdb` lies; None: `$TTA_DATA_ROOT`, by default `data/` in the working directory.

    Raises:
        RecordError: there is no database, or it cannot be read.
        QuestionError: the database cannot answer.
    """
    locations = Locations(root=Path(data_root).absolute()) if data_root else Locations.from_environment()
    with open_metrics(locations.metrics) as connection, Answer(connection, sql, parameters) as answer:
        schema, batches = answer.batches()
        return pa.Table.from_batches(batches, schema)
