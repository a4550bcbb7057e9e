"""The kinds of source: a file for each, with its section of a benchmark file, which opens what it names."""

from typing import Annotated

from pydantic import Field

from tta_pipeline.sources.kinds.archive import ArchiveSource
from tta_pipeline.sources.kinds.digits import DigitsSource
from tta_pipeline.sources.kinds.folder import FolderSource
from tta_pipeline.sources.kinds.generated import GeneratedSource
from tta_pipeline.sources.kinds.npy import NpySource
from tta_pipeline.sources.kinds.shards import ShardsSource

AnySource = Annotated[
    DigitsSource | FolderSource | ArchiveSource | NpySource | GeneratedSource | ShardsSource,
    Field(discriminator="kind"),
]
"""Where images come from."""
