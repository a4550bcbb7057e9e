"""The data root: sources, shards and reports."""

import os
from typing import TYPE_CHECKING

import dagster as dg
from pydantic import Field

from tta_pipeline.defs.resources.run_launcher import tag_process
from tta_pipeline.domain.locations import Locations

if TYPE_CHECKING:
    from tta_pipeline.util.processes import Workers


class ShardStore(dg.ConfigurableResource):  # type: ignore[type-arg]
    """Where images, shards, models and reports are stored."""

    data_root: str = Field(
        default="", description="Folder for everything that the pipeline makes; empty: $TTA_DATA_ROOT or data/"
    )
    shards_root: str = Field(
        default="",
        description="Data root with shards shared by several people, which is only read; empty: none, or "
        "$TTA_SHARDS_ROOT if data_root is empty too",
    )
    processes: int = Field(default=0, ge=0, description="Processes that write and read shards; 0: one for each core")

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Tag the run with its process, before its first step: every run of ours has this resource."""
        if context.instance and context.run:
            tag_process(context.instance, context.run)

    def workers(self) -> "Workers":
        """Return the worker processes as a context manager; they start when there is enough work."""
        from tta_pipeline.util.processes import Workers

        return Workers(self.processes or len(os.sched_getaffinity(0)))

    @property
    def locations(self) -> Locations:
        """The paths under the data root, and in the store of shared shards."""
        return Locations.from_roots(self.data_root, self.shards_root)
