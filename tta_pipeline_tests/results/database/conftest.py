"""A database of what a test stored, for tests of what its views answer."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tta_pipeline.domain.locations import Locations
from tta_pipeline.results.database.database import open_metrics
from tta_pipeline.results.database.ingest import add_results, remove_results, replace_shard_sets
from tta_pipeline.results.database.listing import list_files
from tta_pipeline.results.database.publication import _connected, _count, _create_empty, publish_metrics
from tta_pipeline.results.shard_set_rows import read_shard_set_rows
from tta_pipeline.util.progress import quiet_reporter

Ask = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture
def locations(tmp_path: Path) -> Locations:
    """An empty data root."""
    return Locations(root=tmp_path)


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    """A database without results, open for writing."""
    path = tmp_path_factory.mktemp("schema") / "metrics.duckdb"
    _create_empty(path)
    with _connected(path) as connection:
        yield connection


@pytest.fixture
def ask(locations: Locations, schema: duckdb.DuckDBPyConnection) -> Ask:
    """Return a function that adds what was stored, all at once, to an open database, and answers a question.

    A question about views needs no publication: to publish a file and to open it takes more than twice the time.
    """
    added: object = None

    def ask(sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        nonlocal added
        listing, shard_sets = list_files(locations.root), read_shard_set_rows(locations.root)
        if (listing, shard_sets) != added:
            earlier = schema.execute("SELECT file FROM results UNION SELECT file FROM set_aside").fetchall()
            remove_results(schema, [file for (file,) in earlier])
            schema.execute("DELETE FROM plans")
            add_results(schema, locations.root, listing.listed(listing.results), quiet_reporter)
            _count(schema, locations.root, listing, touched=None, other_plans=tuple(listing.plans))
            replace_shard_sets(schema, shard_sets[1])
            added = listing, shard_sets
        return schema.execute(sql, list(parameters)).fetchall()

    return ask


@pytest.fixture
def ask_published(locations: Locations) -> Ask:
    """Return a function that publishes what came since the last question, and answers one from the file."""

    def ask(sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        publish_metrics(locations)
        with open_metrics(locations.metrics) as connection:
            return connection.execute(sql, list(parameters)).fetchall()

    return ask
