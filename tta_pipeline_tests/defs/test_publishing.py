"""When results and plans reach the database, and who brings them there where not every run may."""

import math
from pathlib import Path

import dagster as dg
import pytest
from click.testing import CliRunner

from tta_pipeline.cli import main
from tta_pipeline.defs import evaluation
from tta_pipeline.defs.resources import MetricsStore
from tta_pipeline.domain.cells import CLEAN
from tta_pipeline.results.database.database import open_metrics
from tta_pipeline.results.plans import read_plan
from tta_pipeline_tests.conftest import LEAVES_RECORDS, SMALL, SMALL_CELLS, Project, copy_benchmark, new_project
from tta_pipeline_tests.defs.in_process import execute
from tta_pipeline_tests.result_paths import result_paths


@pytest.fixture
def own_sweep(tmp_path: Path, sweep: Project) -> Project:
    """A copy of the small benchmark with its shards and model, but without results and database."""
    project = new_project(tmp_path)
    project.add_benchmark("small", SMALL)
    copy_benchmark(sweep, project, without=("source", "report", "results"))
    return project


def requires_plan_of_all_cells(project: Project) -> None:
    """Require the fingerprints of every cell with shards in the plan of the experiment that ran, and of no other."""
    plan = read_plan(project.locations, "small", "source")
    assert plan is not None
    assert {cell.key for cell in (*SMALL_CELLS, CLEAN)} == {stream.key for stream in plan.streams}
    assert all(len(stream.fingerprints) == len(stream.segments) for stream in plan.streams)
    assert read_plan(project.locations, "small", "tent") is None


def test_a_run_may_leave_publishing_to_the_report(own_sweep: Project):
    """Told not to publish, an evaluation leaves its result, the plan and no database; see the tests of the report."""
    evaluated = own_sweep.materialize("small/evaluation/source", "--partition", "contrast|5", *LEAVES_RECORDS)

    assert 0 == evaluated.returncode, evaluated.stderr[-3000:]
    assert "metrics.duckdb lacks the new results" in evaluated.stderr
    assert 1 == len(result_paths(own_sweep.locations.root))
    assert not own_sweep.locations.metrics.exists()
    requires_plan_of_all_cells(own_sweep)


def test_a_run_of_one_cell_says_what_its_experiment_asks_for(own_sweep: Project):
    """The plan has the fingerprint of every cell with shards, so the leaderboard knows that three are missing."""
    assert execute(own_sweep, ["small/evaluation/source"], ["contrast|5"], publishes=True).success

    requires_plan_of_all_cells(own_sweep)
    with open_metrics(own_sweep.locations.metrics) as connection:
        found = connection.execute("SELECT experiment, num_cells, num_cells_asked FROM leaderboard").fetchall()
    assert [("source", 1, len(SMALL_CELLS))] == found
    asked = CliRunner().invoke(
        main, ["leaderboard", "--format", "latex"], env={"TTA_DATA_ROOT": str(own_sweep.locations.root)}
    )
    assert f"Means over 1 of {len(SMALL_CELLS)} cells" in asked.stdout


def test_results_are_in_the_database_while_a_run_goes_on(own_sweep: Project, monkeypatch: pytest.MonkeyPatch):
    """Each publication has the cells that are finished by then, and they count at once."""
    publish, found = MetricsStore.publish, []

    def publishes(self: MetricsStore, log: dg.DagsterLogManager, *, is_last: bool = True) -> tuple[str, ...]:
        set_aside = publish(self, log, is_last=is_last)
        with open_metrics(own_sweep.locations.metrics) as connection:
            found.append((is_last, *connection.execute("SELECT count(*) FROM evaluations WHERE counts").fetchone()))
        return set_aside

    monkeypatch.setattr(MetricsStore, "publish", publishes)
    monkeypatch.setattr(evaluation, "_PUBLISH_EVERY_S", 0.0)
    monkeypatch.setattr(evaluation, "_PUBLISH_SHARE", math.inf)
    execute(own_sweep, ["small/evaluation/source"], ["contrast|3", "contrast|5"], publishes=True)

    assert [(False, 1), (False, 2), (True, 2)] == found
