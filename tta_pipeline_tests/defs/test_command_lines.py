"""Dagster's command lines, `dg` and the one before, find one code location and do the same."""

import json
import os
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.workspace.load_target import PyProjectFileTarget, WorkspaceFileTarget, WorkspaceLoadTarget
from dagster_dg_core.context import DgContext

from tta_pipeline.definitions import assets_only
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline_tests.conftest import SMALL, SMALL_CELLS, SMALL_RANGE, Project, launcher

ROOT = Path(__file__).parents[2]
WITH_WARNINGS = """
import sys, warnings
from importlib.metadata import entry_points
warnings.resetwarnings()
for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
    warnings.simplefilter("ignore", category)  # as Python does by default
del sys.modules["tta_pipeline.definitions"]  # which has filters of its own
sys.argv = sys.argv[1:]
(program,) = entry_points(group="console_scripts", name=sys.argv[0])
sys.exit(program.load()())
"""
SHARDS = ("launch", "--assets", "small/images,small/tar_shards,small/shard_manifest")


def run_dg(project: Project, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `dg` in the project folder, for a user whose home is empty."""
    finished = launcher().run(["dg", *arguments], environment(project), timeout_s=600, folder=ROOT)
    assert 0 == finished.returncode, finished.stderr[-3000:]
    return finished


def environment(project: Project) -> dict[str, str]:
    """Return the environment of a user whose home is empty."""
    return {**project.environment, "HOME": str(project.home.parent), "PATH": os.defpath}


def find_code_location(target: WorkspaceLoadTarget) -> tuple[str, str | None, Path]:
    """Return name, module and folder of the only code location of a file that `dagster dev` reads."""
    (origin,) = target.create_origins()
    loaded = origin.loadable_target_origin
    return origin.location_name, loaded.module_name, Path(loaded.working_directory or "missing").resolve()


def test_whatever_starts_dagster_finds_the_same_code_location(monkeypatch):
    """`dg dev`, `dagster dev` and `-w workspace.yaml` give it one name, so that they share the history of sensors."""
    monkeypatch.chdir(ROOT)
    expected = ("tta_pipeline.definitions", "tta_pipeline.definitions", ROOT)

    found = DgContext.for_project_environment(ROOT, {})

    assert expected == (found.code_location_name, found.code_location_target_module_name, found.root_path)
    assert expected == find_code_location(PyProjectFileTarget("pyproject.toml"))
    assert expected == find_code_location(WorkspaceFileTarget(["workspace.yaml"]))


def requires_one_run_of_contrast_5(project: Project) -> None:
    """Require shards of the cell that was named, a history that knows the run, and an empty home of the user."""
    assert ["contrast|5"] == [each.key for each in SMALL_CELLS if project.locations.shards("small", each).exists()]
    assert not (project.home.parent / ".dagster").exists()
    with dg.DagsterInstance.from_config(str(project.home)) as instance:
        assert 1 == instance.get_runs_count()


def test_dg_launches_a_cell_without_a_warning_and_without_statistics(project: Project):
    """Of the run itself: warnings of imports are errors in these tests, and those of the program are slow to see."""
    project.add_benchmark("small", SMALL.replace("num_test: 150", "num_test: 20"))

    command = ("dg", *SHARDS, "--partition", "contrast|5", "--config-json", '{"loggers": {"console": {}}}')
    finished = launcher().run(
        ["python", "-c", WITH_WARNINGS, *command], environment(project), timeout_s=600, folder=ROOT
    )

    assert 0 == finished.returncode, finished.stderr[-3000:]
    assert "Warning" not in finished.stdout + finished.stderr
    assert "contrast|5: 20 samples read back and indexed" in finished.stdout + finished.stderr
    requires_one_run_of_contrast_5(project)


@pytest.mark.slow
def test_the_program_dg_launches_a_cell_without_a_warning(project: Project):
    """Its imports warn of nothing either."""
    project.add_benchmark("small", SMALL.replace("num_test: 150", "num_test: 20"))

    command = (*SHARDS, "--partition", "contrast|5", "--config-json", '{"loggers": {"console": {}}}')
    shows_warnings = {**environment(project), "PYTHONWARNINGS": ""}
    finished = subprocess.run(
        [Path(sys.executable).with_name("dg"), *command],
        cwd=ROOT, env=shows_warnings, capture_output=True, text=True, check=True,
    )  # fmt: skip

    shown = finished.stdout + finished.stderr
    assert "Warning" not in shown
    assert "contrast|5: 20 samples read back and indexed" in shown
    requires_one_run_of_contrast_5(project)


@pytest.mark.slow
def test_dg_launches_a_range_of_cells_as_one_run(project: Project):
    """Every cell of the rectangle has all its images afterwards."""
    project.add_benchmark("small", SMALL)

    run_dg(project, *SHARDS, "--partition-range", SMALL_RANGE)

    opened = [ShardSet.open(project.locations.shards("small", cell)) for cell in SMALL_CELLS]
    assert [150, 150, 150, 150] == [each.manifest.num_samples for each in opened]
    with dg.DagsterInstance.from_config(str(project.home)) as instance:
        assert 1 == instance.get_runs_count()


def test_dg_lists_what_the_benchmark_files_define(project: Project):
    """The list has every asset of the user's benchmarks."""
    project.add_benchmark("small", SMALL)
    graph = assets_only(project.locations.root).resolve_asset_graph()

    listed = json.loads(run_dg(project, "list", "defs", "--json").stdout)

    assert {key.to_user_string() for key in graph.get_all_asset_keys()} == {
        each["asset_key"] for each in listed["assets"]
    }


@pytest.mark.slow
def test_dg_checks_what_the_benchmark_files_define(project: Project):
    """It finds nothing wrong."""
    project.add_benchmark("small", SMALL)

    checked = run_dg(project, "check", "defs")

    assert "All definitions loaded successfully" in checked.stdout + checked.stderr
