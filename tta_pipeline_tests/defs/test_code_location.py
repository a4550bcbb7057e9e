"""Runs that a command makes belong to the code location of this project, as those of Dagster's server do."""

from pathlib import Path

import dagster as dg
import yaml
from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine

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


def test_a_run_over_many_partitions_is_created_without_a_wait_for_the_disk(project: Project):
    """Dagster stores an event for each partition in a transaction of its own."""

    @dg.asset(
        partitions_def=dg.StaticPartitionsDefinition(["a", "b", "c"]), backfill_policy=dg.BackfillPolicy.single_run()
    )
    def one() -> None:
        pass

    modes = list[int]()

    def note(connection: Connection) -> None:
        modes.append(connection.exec_driver_sql("PRAGMA synchronous").scalar_one())

    job = dg.Definitions(assets=[one]).resolve_implicit_global_asset_job_def()
    with dg.DagsterInstance.from_config(str(project.home)) as instance:
        event.listen(Engine, "commit", note)
        try:
            instance.create_run_for_job(
                job, tags={"dagster/asset_partition_range_start": "a", "dagster/asset_partition_range_end": "c"}
            )
        finally:
            event.remove(Engine, "commit", note)

    assert 2 * 3 * [1] == modes[-2 * 3 :]  # each in the file of the run and in that of all


def test_the_project_and_its_tests_have_one_kind_of_instance(project: Project):
    """So that what tests see of runs is what users see."""
    ours, theirs = (
        yaml.safe_load((folder / "dagster.yaml").read_text())["instance_class"] for folder in (ROOT, project.home)
    )

    assert ours == theirs == {"module": code_location.__name__, "class": code_location.ProjectInstance.__name__}
