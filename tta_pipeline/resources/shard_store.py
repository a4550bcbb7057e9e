"""The data root: sources, shards and reports."""

from pathlib import Path

import dagster as dg
from pydantic import Field

from tta_pipeline.locations import Locations


class ShardStore(dg.ConfigurableResource):  # type: ignore[type-arg]
    """Where images, shards, models and reports lie."""

    data_root: str = Field(description="Folder of everything the pipeline makes, by default $TTA_DATA_ROOT or data/")

    @property
    def locations(self) -> Locations:
        """The paths under the data root."""
        return Locations(root=Path(self.data_root).absolute())
