"""Runs that a command makes belong to the code location of this project, as those of Dagster's server do."""

from pathlib import Path

import dagster as dg
import yaml

from tta_pipeline.defs import code_location
from tta_pipeline.defs.in_process import materialize_in_process
from tta_pipeline_tests.conftest import Project

ROOT = Path(__file__).parents[2]


def test_a_run_in_this_process_belongs_to_the_code_location(project: Project):
    """As `tta-pipeline run` makes it: Dagster alone gives it no origin."""

    @dg.asset
    def one() -> None:
        pass

    with dg.DagsterInstance.from_config(str(project.home)) as instance:
        result = materialize_in_process(dg.Definitions(assets=[one]), [one.key], instance=instance, run_config={})
        run = instance.get_run_by_id(result.run_id)

    assert result.success
    assert run is not None
    assert code_location.repository_origin().get_job_origin(run.job_name) == run.remote_job_origin
    assert code_location.NAME == run.tags["dagster/code_location"]


def test_the_project_and_its_tests_have_one_kind_of_instance(project: Project):
    """So that what tests see of runs is what users see."""
    ours, theirs = (
        yaml.safe_load((folder / "dagster.yaml").read_text())["instance_class"] for folder in (ROOT, project.home)
    )

    assert ours == theirs == {"module": code_location.__name__, "class": code_location.ProjectInstance.__name__}
