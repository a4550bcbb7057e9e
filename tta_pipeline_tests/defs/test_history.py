"""Dagster's history while a run reports to it."""

from pathlib import Path

import dagster as dg

from tta_pipeline.defs.history import keep_history_open
from tta_pipeline_tests.conftest import Project


def test_a_run_that_reports_keeps_the_history_open_and_waits_for_no_disk(project: Project):
    """SQLite merges no journal after each event, and writes as always when the run has reported."""
    (project.home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    with dg.DagsterInstance.from_config(str(project.home)) as instance:
        storage = instance.event_log_storage
        journal = Path(storage.path_for_shard("index") + "-wal")

        def synchronous() -> int:
            with storage.index_connection() as connection:
                return connection.exec_driver_sql("PRAGMA synchronous").scalar()

        full = synchronous()
        with keep_history_open(instance, "a run"):
            normal = synchronous()
            was_kept = journal.exists()

        assert (full, normal, synchronous()) == (2, 1, 2)
        assert was_kept
        assert not journal.exists()
