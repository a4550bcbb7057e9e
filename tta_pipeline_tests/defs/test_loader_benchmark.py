"""The asset that measures loaders on a cell."""

from tta_pipeline.results.database.database import open_metrics
from tta_pipeline.results.database.publication import publish_metrics
from tta_pipeline_tests.conftest import SMALL, Project, copy_benchmark
from tta_pipeline_tests.defs.in_process import execute, what_failed

CONFIG = {"loaders": ["indexed"], "repeats": 1, "batch_size": 32, "num_threads": [1]}


def test_the_figures_are_in_the_database_and_in_the_web_ui(project: Project, sweep: Project):
    """A row, a table and a chart; and the records alone give the database again."""
    project.add_benchmark("small", SMALL)
    copy_benchmark(sweep, project, without=("source", "report", "results"))
    question = (
        "SELECT loader, corruption, severity, num_samples, repeats, batch_size, images_per_s FROM loader_benchmarks"
    )

    measured = execute(
        project, ["small/loader_benchmark"], ["contrast|5"], publishes=True,
        config={"small__loader_benchmark": {"config": CONFIG}},
    )  # fmt: skip

    assert measured.success, what_failed(measured)
    with open_metrics(project.locations.metrics) as connection:
        rows = connection.execute(question).fetchall()
    publish_metrics(project.locations, rebuild=True)
    with open_metrics(project.locations.metrics) as connection:
        assert rows == connection.execute(question).fetchall()
    (made,) = measured.asset_materializations_for_node("small__loader_benchmark")
    speed = made.metadata["images_per_s"].value["indexed"]
    assert [("indexed", "contrast", 5, 150, 1, 32, speed)] == rows
    assert "| indexed | uint8 | 1 |" in made.metadata["loaders"].value
    assert "](data:image/png;base64,iVBOR" in made.metadata["chart"].value
