"""What the web UI shows as out of date, decided by Dagster's own resolver of the stale status."""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver
from dagster._core.loader import LoadingContextForTest

from tta_pipeline_tests.conftest import SMALL, SMALL_RANGE, Project, copied_results
from tta_pipeline_tests.defs.in_process import code_location, execute, what_failed
from tta_pipeline_tests.evaluation.test_standing import forget, own_method  # noqa: F401 - a fixture

NEW_CODE = "has a new code version"


@pytest.fixture
def instance(sweep: Project, tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """A copy of the history of the sweep."""
    home = shutil.copytree(sweep.home, tmp_path / "history")
    with dg.DagsterInstance.from_config(str(home)) as instance:
        yield instance


def out_of_date(project: Project, instance: dg.DagsterInstance) -> Mapping[str, set[str]]:
    """Return why the experiments of the small benchmark are out of date at contrast 5; without those that are not."""
    graph = code_location(project.locations).resolve_asset_graph()
    resolver = CachingStaleStatusResolver(instance, graph, LoadingContextForTest(instance))
    causes = {
        name: {
            each.reason for each in resolver.get_stale_causes(dg.AssetKey(["small", "evaluation", name]), "contrast|5")
        }
        for name in ("source", "norm", "tent")
    }
    return {name: reasons for name, reasons in causes.items() if reasons}


def test_nothing_is_out_of_date_after_a_run_over_experiments_alone(
    sweep: Project, instance: dg.DagsterInstance, tmp_path: Path
):
    """As `tta-pipeline run` has it: the shards and the model are of earlier runs, and the history knows them."""
    project = copied_results(sweep, tmp_path)
    assert {} == out_of_date(project, instance)

    finished = execute(project, ["small/evaluation/norm"], SMALL_RANGE.split("..."), instance=instance)

    assert finished.success, what_failed(finished)
    assert {} == out_of_date(project, instance)


@pytest.mark.parametrize(
    ("edit", "outdated"),
    [
        (("preset: cifar", "preset: imagenet"), {"tent"}),
        (("epochs: 4", "epochs: 5"), {"source", "norm", "tent"}),
        (("Few digits", "Some digits"), set()),
    ],
)
def test_an_edited_benchmark_file_outdates_the_experiments_that_it_changes(
    project: Project, instance: dg.DagsterInstance, edit: tuple[str, str], outdated: set[str]
):
    """No others, and none for another title."""
    project.add_benchmark("small", SMALL.replace(*edit))

    assert {name: {NEW_CODE} for name in outdated} == out_of_date(project, instance)


def test_edited_code_of_a_method_is_another_version(project: Project, own_method: Path):  # noqa: F811
    """Code that cannot be parsed has none: the fault is shown instead."""
    project.add_benchmark("small", SMALL + "  mine: {model: cnn, method: 'my_method:MINE'}\n")

    def version(scale: str) -> str | None:
        (own_method / "my_scale.py").write_text(f"SCALE = {scale}\n")
        forget()
        graph = code_location(project.locations).resolve_asset_graph()
        return graph.get(dg.AssetKey(["small", "evaluation", "mine"])).code_version

    assert version("1.0") == version("1.0  # as it is") != version("2.0")
    assert version("(") is None
