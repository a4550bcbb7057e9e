"""A database of what a test recorded, in memory, for tests of what its views answer."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tta_pipeline.domain.locations import Locations
from tta_pipeline.results.database.ingest import add_records
from tta_pipeline.results.database.latest import mark_latest
from tta_pipeline.results.database.record_changes import find_changes
from tta_pipeline.results.database.record_listing import list_records
from tta_pipeline.results.database.schema import create_schema
from tta_pipeline.results.expected_results import read_expected_results
from tta_pipeline.util.progress import quiet_reporter

Ask = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture
def locations(tmp_path: Path) -> Locations:
    """An empty data root."""
    return Locations(root=tmp_path)


@pytest.fixture(scope="module")
def schema() -> Iterator[duckdb.DuckDBPyConnection]:
    """A database without records: to create it takes most of a second."""
    with duckdb.connect() as connection:
        create_schema(connection)
        yield connection


@pytest.fixture
def database(schema: duckdb.DuckDBPyConnection) -> Iterator[duckdb.DuckDBPyConnection]:
    """A database that is without records again after the test."""
    yield schema
    of_records = "SELECT table_name FROM duckdb_tables() JOIN duckdb_columns() USING (table_name)"
    for (table,) in schema.execute(f"{of_records} WHERE column_name = 'folder'").fetchall():
        schema.execute(f"DELETE FROM {table}")


@pytest.fixture
def ask(locations: Locations, database: duckdb.DuckDBPyConnection) -> Ask:
    """Return a function that adds what was recorded to the database, as a publication does, and answers a question."""

    def ask(sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        changes = find_changes(database, list_records(locations.root), locations.root)
        assert not changes.undone
        if changes.fresh:
            add_records(database, locations.root, changes.fresh, quiet_reporter)
            mark_latest(database, read_expected_results(locations))
        return database.execute(sql, list(parameters)).fetchall()

    return ask
