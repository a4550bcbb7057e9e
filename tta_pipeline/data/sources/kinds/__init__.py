"""The kinds of source: one module each, with the kind's section of a benchmark file."""

from typing import Annotated

from pydantic import Field

from tta_pipeline.data.sources.kinds.archive import ArchiveSource
from tta_pipeline.data.sources.kinds.digits import DigitsSource
from tta_pipeline.data.sources.kinds.folder import FolderSource
from tta_pipeline.data.sources.kinds.generated import GeneratedSource
from tta_pipeline.data.sources.kinds.npy import NpySource
from tta_pipeline.data.sources.kinds.python import PythonSource
from tta_pipeline.data.sources.kinds.shards import ShardsSource
from tta_pipeline.data.sources.source_options import SourceOptions
from tta_pipeline.data.sources.source_section import ImagesSection, SourceSection
from tta_pipeline.errors import SourceError

__all__ = [
    "KINDS",
    "AnySource",
    "ArchiveSource",
    "DigitsSource",
    "FolderSource",
    "GeneratedSource",
    "NpySource",
    "PythonSource",
    "ShardsSource",
    "SourceSection",
]

KINDS: tuple[type[SourceSection], ...] = (
    PythonSource,
    NpySource,
    ShardsSource,
    FolderSource,
    ArchiveSource,
    GeneratedSource,
)
"""Kinds that `new-benchmark` or `shards make` recognises, in the order in which they are tried."""


def section_from_options(options: SourceOptions) -> ImagesSection:
    """Return the section for *options* of the command `shards make`."""
    if len(options.sources) > 1 and (folders := [path for path in options.sources if path.is_dir()]):
        raise SourceError(f"found the folder {folders[0]} beside other sources; expected one folder, or archives only")
    sections = (kind.from_options(options) for kind in KINDS if issubclass(kind, ImagesSection))
    section = next(filter(None, sections))
    for name in sorted(options.given - section.options):
        raise SourceError(
            f"found {name} {getattr(options, name)!r} for a source of kind {section.kind}; expected only "
            f"{', '.join(sorted(section.options)) or 'no such option'}: leave it out"
        )
    return section


AnySource = Annotated[
    DigitsSource | FolderSource | ArchiveSource | NpySource | PythonSource | GeneratedSource | ShardsSource,
    Field(discriminator="kind"),
]
"""The source of the images."""
