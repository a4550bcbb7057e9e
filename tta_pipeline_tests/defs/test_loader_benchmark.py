"""The asset that measures loaders on a cell, through the real command line."""

import json

import dagster as dg
import pytest

from tta_pipeline.results.database.database import open_metrics
from tta_pipeline.results.database.publication import publish_metrics
from tta_pipeline_tests.conftest import SMALL, Project, copy_benchmark

CONFIG = {"loaders": ["indexed"], "repeats": 1, "batch_size": 32, "num_threads": [1]}


@pytest.fixture
def measured(project: Project, sweep: Project) -> Project:
    """One cell with a loader measured."""
    project.add_benchmark("small", SMALL)
    copy_benchmark(sweep, project, without=("source", "report", "results"))
    config = json.dumps({"ops": {"small__loader_benchmark": {"config": CONFIG}}})
    finished = project.materialize("small/loader_benchmark", "--partition", "contrast|5", "--config-json", config)
    assert finished.returncode == 0, finished.stderr[-5000:]
    return project


def test_the_figures_are_in_the_database_and_in_the_web_ui(measured: Project):
    """A row, a table and a chart; and the records alone give the database again."""
    question = (
        "SELECT loader, corruption, severity, num_samples, repeats, batch_size, images_per_s FROM loader_benchmarks"
    )
    with open_metrics(measured.locations.metrics) as connection:
        rows = connection.execute(question).fetchall()
    publish_metrics(measured.locations, rebuild=True)
    with open_metrics(measured.locations.metrics) as connection:
        assert rows == connection.execute(question).fetchall()
    with dg.DagsterInstance.from_config(str(measured.home)) as instance:
        event = instance.get_latest_materialization_event(dg.AssetKey(["small", "loader_benchmark"]))
        metadata = event.asset_materialization.metadata

    speed = metadata["images_per_s"].value["indexed"]
    assert [("indexed", "contrast", 5, 150, 1, 32, speed)] == rows
    assert "| indexed | uint8 | 1 |" in metadata["loaders"].value
    assert "](data:image/png;base64,iVBOR" in metadata["chart"].value
