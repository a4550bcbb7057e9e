"""A database of what a test stored, for tests of what its views answer."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tta_pipeline.domain.locations import Locations
from tta_pipeline.results.database.database import open_metrics
from tta_pipeline.results.database.publication import publish_metrics
from tta_pipeline.results.database.schema import create_schema

Ask = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture
def locations(tmp_path: Path) -> Locations:
    """An empty data root."""
    return Locations(root=tmp_path)


@pytest.fixture(scope="module")
def schema() -> Iterator[duckdb.DuckDBPyConnection]:
    """A database without results: to create it takes most of a second."""
    with duckdb.connect() as connection:
        create_schema(connection)
        yield connection


@pytest.fixture
def ask(locations: Locations) -> Ask:
    """Return a function that publishes what was stored, and answers a question."""

    def ask(sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        publish_metrics(locations)
        with open_metrics(locations.metrics) as connection:
            return connection.execute(sql, list(parameters)).fetchall()

    return ask
