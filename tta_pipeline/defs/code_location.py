"""The code location of this project, and Dagster's instance in which runs of a command belong to it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import dagster as dg

from tta_pipeline.defs.history import keep_history_open
from tta_pipeline.defs.resources.run_launcher import tags_of_this_process

if TYPE_CHECKING:
    from tta_pipeline.defs.private_dagster import RemoteRepositoryOrigin

NAME = "tta_pipeline.definitions"
"""Name of the code location in `workspace.yaml`, and in the workspace of each project that `init` makes."""


def repository_origin() -> "RemoteRepositoryOrigin":
    """Return where Dagster finds the jobs and sensors of the code location."""
    from tta_pipeline.defs.private_dagster import RegisteredCodeLocationOrigin, RemoteRepositoryOrigin

    return RemoteRepositoryOrigin(RegisteredCodeLocationOrigin(NAME), "__repository__")


class ProjectInstance(dg.DagsterInstance):
    """Dagster's instance, to be named in `dagster.yaml`, with an origin for the runs that a command makes, and quickly.

    The timeline of the web UI, and the page of a job, show runs whose origin is known. Dagster knows it where its web
    server or its daemon makes a run; `tta-pipeline run`, `dg launch` and `dagster asset materialize` make runs without.
    These runs are tagged with their process, too, by which `end_dead_runs` finds killed ones.
    """

    @classmethod
    def config_schema(cls) -> Mapping[str, dg.Field]:
        """Return no setting beyond those of any instance; Dagster asks for this."""
        return {}

    @classmethod
    def config_defaults(cls, base_dir: str) -> Mapping[str, object]:
        """Return the defaults of any instance in *base_dir*; Dagster asks for this."""
        from tta_pipeline.defs.private_dagster import InstanceRef

        return InstanceRef.config_defaults(base_dir)

    def create_run_for_job(self, job_def: dg.JobDefinition, *args: Any, **options: Any) -> dg.DagsterRun:
        """Create a run as any instance does, of this code location unless *options* name another."""
        options.setdefault("remote_job_origin", repository_origin().get_job_origin(job_def.name))
        options["tags"] = {**tags_of_this_process(), **(options.get("tags") or {})}
        options["run_id"] = options.get("run_id") or str(uuid4())
        with keep_history_open(self, options["run_id"]):  # an event for each asset, check and partition
            return super().create_run_for_job(job_def, *args, **options)
