"""Streams over several cells as assets, through the real command line."""

import dagster as dg
import pytest

from tta_pipeline.definitions import build_definitions
from tta_pipeline.defs.evaluation import EVERY_SAMPLE
from tta_pipeline.results.database.database import open_metrics
from tta_pipeline.results.database.publication import publish_metrics
from tta_pipeline_tests.conftest import LEAVES_RECORDS, SMALL, Project, copy_benchmark, new_project
from tta_pipeline_tests.defs.in_process import execute, what_failed
from tta_pipeline_tests.flat_facts import flat_row
from tta_pipeline_tests.result_paths import results_of

EXPERIMENTS = """
  continual: {model: cnn, method: tent, preset: cifar, batch_size: 32, protocol: continual}
  mixed: {model: cnn, method: tent, preset: cifar, batch_size: 32, protocol: mixed}
  gradual: {model: cnn, method: norm, batch_size: 32, protocol: gradual}
  few: {model: cnn, method: norm, batch_size: 32, severities: [5], subset: {first: 40}}
"""
CONTINUAL = dg.AssetKey(["small", "evaluation", "continual"])


@pytest.fixture(scope="module")
def streamed(tmp_path_factory: pytest.TempPathFactory, sweep: Project) -> Project:
    """The small benchmark with streams, evaluated at severity 5."""
    project = new_project(tmp_path_factory.mktemp("streams"))
    project.add_benchmark("small", SMALL.rstrip() + EXPERIMENTS)
    copy_benchmark(sweep, project, without=("source", "report", "results"))
    finished = project.materialize("group:small_streams", "--partition", "5", *LEAVES_RECORDS)
    assert finished.returncode == 0, finished.stderr[-5000:]
    publish_metrics(project.locations)
    return project


def test_a_command_evaluates_all_streams_of_a_severity(streamed: Project):
    """Each visit has a row, with protocol, stream and position; the streams of all severities come along."""
    with open_metrics(streamed.locations.metrics) as connection:
        rows = connection.execute(
            "SELECT experiment, protocol, stream, position, corruption, severity, num_samples FROM evaluations "
            "WHERE counts AND experiment IN ('continual', 'mixed') ORDER BY experiment, position, shift_position"
        ).fetchall()
        num_gradual = connection.execute("SELECT count(*) FROM evaluations WHERE protocol = 'gradual'").fetchall()

    assert [
        ("continual", "continual", "5", 0, "gaussian_noise", 5, 150),
        ("continual", "continual", "5", 1, "contrast", 5, 150),
        ("mixed", "mixed", "5", 0, "gaussian_noise", 5, 150),
        ("mixed", "mixed", "5", 0, "contrast", 5, 150),
    ] == rows
    assert [(6,)] == num_gradual


def test_a_stream_shows_its_visits_and_what_it_was_made_of(streamed: Project):
    """The page of a partition has a row for each visit and figures of them all, and its check has passed."""
    sums = "sum(num_samples) / sum(wall_s), sum(data_wait_s) / sum(wall_s), avg(error)"
    with open_metrics(streamed.locations.metrics) as connection:
        rows = connection.execute(
            f"SELECT {sums} FROM evaluations WHERE counts AND experiment = 'continual' AND stream = '5'"
        )
        expected = rows.fetchone()
    with dg.DagsterInstance.from_config(str(streamed.home)) as instance:
        event = instance.get_latest_materialization_event(CONTINUAL)
        assert "5" == event.asset_materialization.partition
        metadata = event.asset_materialization.metadata
        check = dg.AssetCheckKey(CONTINUAL, EVERY_SAMPLE)
        (record,) = instance.event_log_storage.get_asset_check_execution_history(check, limit=1)

    assert 2 == metadata["num_segments"].value
    assert expected == pytest.approx(
        [metadata[name].value for name in ("images_per_s", "data_wait_share", "error")], rel=1e-6
    )
    assert "| 1 | contrast | 5 |" in metadata["segments"].value
    assert ("SUCCEEDED", "5") == (record.status.value, record.partition)


def test_a_range_of_severities_is_one_run(streamed: Project):
    """With a result for each; what is finished is not done again."""
    finished = execute(streamed, ["small/evaluation/continual"], ["3", "5"])

    assert finished.success, what_failed(finished)
    found = results_of(streamed.locations.root, "small", "continual")
    assert ["3", "3", "5", "5"] == [each.result.key for each in found]


def test_a_severity_that_is_none_is_refused(streamed: Project):
    """A cell is none either."""
    graph = build_definitions(streamed.locations).resolve_asset_graph()

    assert ["3", "5"] == graph.get(CONTINUAL).partitions_def.get_partition_keys()
    assert 0 != streamed.materialize("small/evaluation/continual", "--partition", "contrast|5").returncode


def test_cells_beside_an_experiment_are_passed_over(streamed: Project):
    """In a run over the whole grid an experiment of one severity evaluates its own cells, of each its subset."""
    finished = execute(streamed, ["small/evaluation/few"], ["gaussian_noise|3", "contrast|5"])

    assert finished.success, what_failed(finished)
    assert finished.asset_materializations_for_node("small__evaluation__few")[0].partition
    found = results_of(streamed.locations.root, "small", "few")
    assert ["contrast-5", "gaussian_noise-5"] == [each.result.key for each in found]
    facts = flat_row(found[0].result.evaluations[0])
    assert (40, "first 40") == (facts["num_samples"], facts["subset"])
