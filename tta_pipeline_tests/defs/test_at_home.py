"""In a Dagster project of somebody else, on a stock instance: the project of docs/guides/dagster.md, as it stands."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster._core.definitions.freshness_evaluator import TimeWindowFreshnessPolicyEvaluator
from dagster._core.loader import LoadingContextForTest
from jsonschema import Draft202012Validator

from tta_pipeline.benchmarks.load_files import FIRST_FILE
from tta_pipeline.defs.component import RobustnessBenchmark
from tta_pipeline.domain.locations import EMBEDDED_BENCHMARKS
from tta_pipeline_tests.conftest import SMALL, Project, copy_benchmark, launcher, new_project

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guides" / "dagster.md").read_text()
FILES = dict(re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE, re.DOTALL))
PYPROJECT = """
[project]
name = "foreign"
version = "1"
[tool.dg]
directory_type = "project"
[tool.dg.project]
root_module = "foreign"
registry_modules = ["tta_pipeline"] # an installed tta_pipeline has an entry point for it
[tool.dg.cli]
suppress_warnings = ["project_and_activated_venv_mismatch"]
"""
REPORT = dg.AssetKey(["small", "robustness_report"])
IMPORTED_ONCE = ["duckdb", "foreign.definitions", "sklearn.datasets", "torch", "dagster._core.executor.multiprocess",
                 "tta_pipeline.defs.component"]  # fmt: skip
"""What each step would import again if its process were not forked from one that has it."""


@dataclass(frozen=True, kw_only=True)
class Foreign:
    """A project of somebody else, with the results of the small benchmark in its data root."""

    folder: Path
    home: Path

    def dg(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `dg` in the folder of the project."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TTA_DATA")}
        environment = {**kept, "DAGSTER_HOME": str(self.home), "HOME": str(self.home), "PATH": os.defpath}
        done = launcher().run(["dg", *arguments], environment, timeout_s=300, folder=self.folder)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done


@pytest.fixture(scope="module")
def foreign(sweep: Project, tmp_path_factory: pytest.TempPathFactory) -> Foreign:
    """The project of the page, with a component that `dg` scaffolded; its instance has Dagster's own settings."""
    project = new_project(tmp_path_factory.mktemp("foreign"))
    folder = project.locations.root.parent
    (project.home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    copy_benchmark(sweep, project, without=("source", "report"))
    shutil.copy(sweep.locations.metrics, project.locations.metrics)
    project.add_benchmark("small", SMALL)
    files = {f"foreign/{name}": text.replace('"mine"', '"small"') for name, text in FILES.items()}
    empty = dict.fromkeys(("foreign/__init__.py", "foreign/defs/__init__.py"), "")
    for name, text in {**empty, **files, "pyproject.toml": PYPROJECT}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    foreign = Foreign(folder=folder, home=project.home)
    foreign.dg("scaffold", "defs", "tta_pipeline.RobustnessBenchmark", "digits")
    return foreign


@pytest.mark.slow
def test_an_asset_downstream_of_the_leaderboard_in_its_own_executor(foreign: Foreign):
    """Each step is a process, the component's too, and the project's asset reads the leaderboard that is there."""
    start_method = {"forkserver": {"preload_modules": IMPORTED_ONCE}}
    config = {"execution": {"config": {"start_method": start_method}}}
    assets = "winner,digits/clean/images"
    foreign.dg("launch", "--assets", assets, "--config-json", json.dumps(config))

    with dg.DagsterInstance.from_config(str(foreign.home)) as instance:
        (run,) = instance.get_runs()
        entries = instance.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_WORKER_STARTED)
        shown = instance.get_latest_materialization_event(dg.AssetKey("winner")).asset_materialization.metadata
    assert run.status is dg.DagsterRunStatus.SUCCESS
    assert 2 == len(entries)
    assert shown["experiment"].value in ("source", "norm", "tent")
    assert (foreign.folder / "data" / "digits" / "source" / "clean" / "0").is_dir(), "in the data of the project"


def test_a_component_is_checked_and_listed(foreign: Foreign, definitions: dg.Definitions):
    """Its defs.yaml is as `dg scaffold` wrote it."""
    checked = foreign.dg("check", "defs")
    repository = definitions.get_repository_def()

    assert "All definitions loaded successfully" in checked.stdout + checked.stderr
    assert {"winner", "small/evaluation/tent", "digits/evaluation/tent"} <= {
        key.to_user_string() for key in repository.asset_graph.get_all_asset_keys()
    }
    assert ["new_cells", "report"] == sorted(each.name for each in repository.schedule_defs)


@pytest.fixture(scope="module")
def definitions(foreign: Foreign) -> Iterator[dg.Definitions]:
    """The definitions of the project, in this process, which is in its folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(foreign.folder))
        patch.chdir(foreign.folder)
        patch.delenv("TTA_DATA_ROOT", raising=False)
        yield import_module("foreign.definitions").defs()


def test_an_asset_downstream_of_the_leaderboard_reads_it(foreign: Foreign, definitions: dg.Definitions):
    """The leaderboard that is there; what a component makes lies in the data of the project."""
    job = definitions.resolve_implicit_global_asset_job_def()
    keys = [dg.AssetKey("winner"), dg.AssetKey(["digits", "clean", "images"])]
    with dg.DagsterInstance.ephemeral() as instance:
        done = job.execute_in_process(asset_selection=keys, instance=instance)

    (shown,) = done.asset_materializations_for_node("winner")
    assert shown.metadata["experiment"].value in ("source", "norm", "tent")
    assert (foreign.folder / "data" / "digits" / "source" / "clean" / "0").is_dir()


def test_a_finished_cell_is_finished_there_too(definitions: dg.Definitions):
    """The resources reach evaluations by their prefixed keys, and nothing is evaluated again."""
    key = dg.AssetKey(["small", "clean", "evaluation", "source"])
    with dg.DagsterInstance.ephemeral() as instance:
        job = definitions.resolve_implicit_global_asset_job_def()
        done = job.execute_in_process(asset_selection=[key], instance=instance)

    (made,) = done.asset_materializations_for_node("small__clean__evaluation__source")
    assert made.metadata["was_evaluated"].value is False


@pytest.mark.filterwarnings("ignore:Non-compliant tag keys:DeprecationWarning")  # Dagster's own tags for two dimensions
def test_a_schedule_asks_for_the_cells_without_results(definitions: dg.Definitions, project: Project):
    """At night, for a cell with shards that an experiment has not seen, and for no other."""
    repository = definitions.get_repository_def()
    made: Mapping[str, tuple[str, ...]] = {
        "shard_manifest": ("contrast|3", "contrast|5"), "evaluation/source": ("contrast|3", "contrast|5"),
        "evaluation/tent": ("contrast|3",),
    }  # fmt: skip
    with dg.DagsterInstance.from_config(str(project.home)) as instance:
        for name, cells in made.items():
            for cell in cells:
                key = dg.AssetKey(["small", *name.split("/")])
                instance.report_runless_asset_event(dg.AssetMaterialization(key, partition=cell))
        context = dg.build_schedule_context(instance, repository_def=repository)
        asked = repository.get_schedule_def("new_cells").evaluate_tick(context)

    assert ["contrast|5"] == [request.partition_key for request in asked.run_requests]


def test_a_report_is_stale_after_two_days(definitions: dg.Definitions, monkeypatch: pytest.MonkeyPatch):
    """Dagster's own evaluation of the policy says so."""
    node = definitions.resolve_asset_graph().get(REPORT)
    clock = "dagster._core.definitions.freshness_evaluator.get_current_timestamp"
    states = []
    with dg.DagsterInstance.ephemeral() as instance:
        instance.report_runless_asset_event(dg.AssetMaterialization(REPORT))
        made_at = instance.get_latest_materialization_event(REPORT).timestamp
        for days in (1, 3):
            monkeypatch.setattr(clock, lambda days=days: made_at + timedelta(days=days).total_seconds())
            found = TimeWindowFreshnessPolicyEvaluator().evaluate_freshness(LoadingContextForTest(instance), node)
            states.append(asyncio.run(found).value)

    assert ["PASS", "FAIL"] == states


def test_the_schema_that_dg_checks_has_the_fields_and_refuses_no_file_of_ours():
    """A field that there is not, and a wrong type, are refused before anything is loaded."""
    schema = Draft202012Validator(RobustnessBenchmark.get_model_cls().model_json_schema())
    shipped = [EMBEDDED_BENCHMARKS / "digits_c.yaml", FIRST_FILE,
               *(ROOT / "tta_pipeline" / "extras" / "new_project" / "files").glob("*.yaml")]  # fmt: skip
    benchmarks = [text for text in map(yaml.safe_load, map(Path.read_text, shipped)) if "experiments" in text]

    assert 5 == len(benchmarks)
    assert [] == [error.message for text in benchmarks for error in schema.iter_errors(text)]
    for wrong in ({"image_sizes": 32}, {"image_size": "large"}):
        assert list(schema.iter_errors({**benchmarks[0], **wrong}))


def test_an_own_resource_and_an_own_executor_are_in_nobodys_way(definitions: dg.Definitions):
    """The keys of ours have a prefix, and there is no logger, job or sensor of ours."""
    repository = definitions.get_repository_def()

    assert {"store", "tta_store", "tta_metrics", "tta_compute"} <= set(repository.get_top_level_resources())
    assert ["default_automation_condition_sensor"] == [each.name for each in repository.sensor_defs]
    assert sys.modules["foreign.definitions"].DATA.name == "data"
