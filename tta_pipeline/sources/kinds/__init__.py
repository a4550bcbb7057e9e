"""The kinds of source: a file for each, with its section of a benchmark file, which opens what it names."""

from typing import Annotated

from pydantic import Field

from tta_pipeline.sources.kinds.archive import ArchiveSource
from tta_pipeline.sources.kinds.digits import DigitsSource
from tta_pipeline.sources.kinds.folder import FolderSource
from tta_pipeline.sources.kinds.generated import GeneratedSource
from tta_pipeline.sources.kinds.npy import NpySource
from tta_pipeline.sources.kinds.section import SourceSection
from tta_pipeline.sources.kinds.shards import ShardsSource

__all__ = [
    "KINDS",
    "AnySource",
    "ArchiveSource",
    "DigitsSource",
    "FolderSource",
    "GeneratedSource",
    "NpySource",
    "ShardsSource",
    "SourceSection",
]

KINDS: tuple[type[SourceSection], ...] = (NpySource, ShardsSource, FolderSource, ArchiveSource, GeneratedSource)
"""Kinds that `new-benchmark` recognises, in the order in which they are asked."""

AnySource = Annotated[
    DigitsSource | FolderSource | ArchiveSource | NpySource | GeneratedSource | ShardsSource,
    Field(discriminator="kind"),
]
"""Where images come from."""
