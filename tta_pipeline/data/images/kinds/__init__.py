"""The kinds of source: one module each, with the kind's section of a benchmark file."""

from typing import Annotated

from pydantic import Field

from tta_pipeline.data.images.image_options import ImageOptions
from tta_pipeline.data.images.images_section import ConvertedSection, ImagesSection
from tta_pipeline.data.images.kinds.archive import ArchiveSection
from tta_pipeline.data.images.kinds.digits import DigitsSection
from tta_pipeline.data.images.kinds.folder import FolderSection
from tta_pipeline.data.images.kinds.generated import GeneratedSection
from tta_pipeline.data.images.kinds.npy import NpySection
from tta_pipeline.data.images.kinds.python import PythonSection
from tta_pipeline.data.images.kinds.shards import ShardsSection
from tta_pipeline.errors import ImagesError

__all__ = [
    "KINDS",
    "AnyImages",
    "ArchiveSection",
    "DigitsSection",
    "FolderSection",
    "GeneratedSection",
    "ImagesSection",
    "NpySection",
    "PythonSection",
    "ShardsSection",
]

KINDS: tuple[type[ImagesSection], ...] = (
    PythonSection,
    NpySection,
    ShardsSection,
    FolderSection,
    ArchiveSection,
    GeneratedSection,
)
"""Kinds that `new-benchmark` or `shards make` recognises, in the order in which they are tried."""


def section_from_options(options: ImageOptions) -> ConvertedSection:
    """Return the section for *options* of the command `shards make`."""
    if len(options.sources) > 1 and (folders := [path for path in options.sources if path.is_dir()]):
        raise ImagesError(
            f"The folder {folders[0]} was given together with other sources; expected one folder, or only archives: "
            "leave out one or the other"
        )
    sections = (kind.from_options(options) for kind in KINDS if issubclass(kind, ConvertedSection))
    section = next(filter(None, sections))
    for name in sorted(options.given - section.options):
        raise ImagesError(
            f"The option {name} ({getattr(options, name)!r}) does not apply to images of kind {section.kind}; "
            f"expected only {', '.join(sorted(section.options)) or 'no such option'}: leave it out"
        )
    return section


AnyImages = Annotated[
    DigitsSection | FolderSection | ArchiveSection | NpySection | PythonSection | GeneratedSection | ShardsSection,
    Field(discriminator="kind"),
]
"""The source of the images."""
