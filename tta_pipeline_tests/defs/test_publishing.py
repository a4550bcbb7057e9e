"""When results and plans reach the database, and who brings them there where not every run may."""

import math
from collections.abc import Mapping
from pathlib import Path

import dagster as dg
import pytest

from tta_pipeline.definitions import build_definitions
from tta_pipeline.defs import evaluation
from tta_pipeline.defs.resources import MetricsStore
from tta_pipeline.domain.cells import CLEAN
from tta_pipeline.results.database.database import open_metrics
from tta_pipeline.results.plans import read_plan
from tta_pipeline_tests.conftest import LEAVES_RECORDS, SMALL, SMALL_CELLS, Project, copy_benchmark, new_project
from tta_pipeline_tests.result_paths import result_paths


@pytest.fixture
def own_sweep(tmp_path: Path, sweep: Project) -> Project:
    """A copy of the small benchmark with its shards and model, but without results and database."""
    project = new_project(tmp_path)
    project.add_benchmark("small", SMALL)
    copy_benchmark(sweep, project, without=("source", "report", "results"))
    return project


def test_a_run_may_leave_publishing_to_the_report(own_sweep: Project):
    """Told not to publish, an evaluation leaves its result and no database; the report publishes all the same."""
    evaluated = own_sweep.materialize("small/evaluation/source", "--partition", "contrast|5", *LEAVES_RECORDS)
    assert 0 == evaluated.returncode, evaluated.stderr[-3000:]
    assert "not in metrics.duckdb yet" in evaluated.stderr
    assert 1 == len(result_paths(own_sweep.locations.root))
    assert not own_sweep.locations.metrics.exists()

    reported = own_sweep.materialize("small/robustness_report", *LEAVES_RECORDS)
    assert 0 == reported.returncode, reported.stderr[-3000:]
    with open_metrics(own_sweep.locations.metrics) as connection:
        assert [("source", "contrast", 5)] == connection.execute(
            "SELECT experiment, corruption, severity FROM evaluations"
        ).fetchall()


def run_as_the_web_ui(project: Project, asset: str, tags: Mapping[str, str]) -> None:
    """Run *asset* of the small benchmark as the web UI does, at the partitions that *tags* name."""
    job = build_definitions(project.locations).resolve_implicit_global_asset_job_def()
    subset = job.get_subset(asset_selection={dg.AssetKey(["small", *asset.split("/")])})
    with dg.DagsterInstance.from_config(str(project.home)) as instance:
        assert subset.execute_in_process(instance=instance, tags=dict(tags)).success


@pytest.mark.parametrize("is_web_ui", [False, True])
def test_a_run_of_one_cell_says_what_its_experiment_asks_for(own_sweep: Project, *, is_web_ui: bool):
    """The plan has the fingerprint of every cell with shards, so the leaderboard knows that three are missing."""
    if is_web_ui:
        run_as_the_web_ui(own_sweep, "evaluation/source", {"dagster/partition": "contrast|5"})
    else:
        done = own_sweep.materialize("small/evaluation/source", "--partition", "contrast|5")
        assert 0 == done.returncode, done.stderr[-3000:]

    plan = read_plan(own_sweep.locations, "small", "source")
    assert plan is not None
    assert {cell.key for cell in (*SMALL_CELLS, CLEAN)} == {stream.key for stream in plan.streams}
    assert all(len(stream.fingerprints) == len(stream.segments) for stream in plan.streams)
    assert read_plan(own_sweep.locations, "small", "tent") is None
    with open_metrics(own_sweep.locations.metrics) as connection:
        found = connection.execute("SELECT experiment, num_cells, num_cells_asked FROM leaderboard").fetchall()
    assert [("source", 1, len(SMALL_CELLS))] == found
    asked = own_sweep.run("tta-pipeline", "leaderboard", "--format", "latex")
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
    ends = {"start": SMALL_CELLS[0].key, "end": SMALL_CELLS[-1].key}
    run_as_the_web_ui(
        own_sweep, "evaluation/source", {f"dagster/asset_partition_range_{name}": key for name, key in ends.items()}
    )

    assert [(False, 1), (False, 2), (False, 3), (False, 4), (True, 4)] == found
