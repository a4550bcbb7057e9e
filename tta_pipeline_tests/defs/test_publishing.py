"""Who brings the database up to date, where not every run may."""

from pathlib import Path

import pytest

from tta_pipeline.results.database.database import open_metrics
from tta_pipeline.results.records import record_paths
from tta_pipeline_tests.conftest import LEAVES_RECORDS, SMALL, Project, copy_benchmark, new_project


@pytest.fixture
def own_sweep(tmp_path: Path, sweep: Project) -> Project:
    """A copy of the small benchmark with its shards and model, but without results and database."""
    project = new_project(tmp_path)
    project.add_benchmark("small", SMALL)
    copy_benchmark(sweep, project, without=("source", "report", "results"))
    return project


def test_a_run_may_leave_publishing_to_the_report(own_sweep: Project):
    """Told not to publish, an evaluation leaves its record and no database; the report publishes all the same."""
    evaluated = own_sweep.materialize("small/evaluation/source", "--partition", "contrast|5", *LEAVES_RECORDS)
    assert 0 == evaluated.returncode, evaluated.stderr[-3000:]
    assert "tta-pipeline results rebuild" in evaluated.stderr
    assert 1 == len(list(record_paths(own_sweep.locations.root)))
    assert not own_sweep.locations.metrics.exists()

    reported = own_sweep.materialize("small/robustness_report", *LEAVES_RECORDS)
    assert 0 == reported.returncode, reported.stderr[-3000:]
    with open_metrics(own_sweep.locations.metrics) as connection:
        assert [("source", "contrast", 5)] == connection.execute(
            "SELECT experiment, corruption, severity FROM evaluations"
        ).fetchall()
