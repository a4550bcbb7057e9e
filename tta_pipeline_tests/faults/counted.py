"""Counts what is stored and what is published, also in other processes, which import nothing heavy with it."""

from collections import Counter

from tta_pipeline.domain.locations import Locations
from tta_pipeline.results.database.database import open_metrics
from tta_pipeline_tests.result_paths import result_paths


def published(locations: Locations) -> Counter[str]:
    """Return how many evaluations each run has, every one with its rows in the other tables."""
    with open_metrics(locations.metrics) as connection:
        runs = [run for (run,) in connection.execute("SELECT run_id FROM evaluations").fetchall()]
        for table, rows_each in (("results", 1), ("class_results", 1), ("batch_results", 1)):
            assert (rows_each * len(runs),) == connection.execute(f"SELECT count(*) FROM {table}").fetchone()
        assert (bool(runs),) == connection.execute("SELECT count(*) FROM evaluations WHERE counts").fetchone()
    return Counter(runs)


def recorded(locations: Locations) -> int:
    """Return how many results there are."""
    return len(result_paths(locations.root))
