"""The kind `generated`: corruptions made here."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from tta_pipeline.partitions import Cell
from tta_pipeline.processes import MOST_PROCESSES
from tta_pipeline.sections import Seed
from tta_pipeline.shifts.shift_set import ShiftSet
from tta_pipeline.sources.kinds.clean import Clean
from tta_pipeline.sources.kinds.made_here import MadeHere
from tta_pipeline.sources.kinds.section import SourceContext

if TYPE_CHECKING:
    from tta_pipeline.sources.listing import Source


class GeneratedSource(MadeHere):
    """Corruptions made here from clean images: results are comparable with each other, not with published tables.

    How much they differ from results on the published images is unknown: these were not available. The effect of the
    encoding alone was measured with a ResNet-20 on 1,000 images of CIFAR-10, themselves JPEG files of quality 75,
    under the 15 corruptions of cifar_c at severity 5, in batches of 200. The mean error is 58.1 % (source) and 37.7 %
    (norm) with lossless storage, 59.8 % and 41.2 % with JPEG of quality 85; under contrast, norm has 32.7 % and
    48.5 %.
    """

    kind: Literal["generated"]
    clean: Clean
    """The uncorrupted images."""
    seed: Seed = 0
    """Seed of the corruptions."""
    jobs: int = Field(default=1, ge=1, le=MOST_PROCESSES)
    """Number of processes that generate images."""

    def open(self, at: SourceContext) -> "Source":
        """Return the images that are made."""
        from tta_pipeline.sources.generated import GeneratedImages
        from tta_pipeline.sources.generator import Encoding

        return GeneratedImages(
            clean=self.clean.open(at),
            cells=at.cells,
            table=self.severity_table,
            seed=self.seed,
            encoding=Encoding(jpeg_quality=self.stored_quality),
            image_size=at.image_size,
            spill_root=at.spill_root,
            jobs=self.jobs,
        )

    def places(self, cell: Cell, shift_set: ShiftSet) -> tuple[Path, ...]:  # noqa: ARG002 - all are made of the same
        """Return the clean images."""
        return (self.clean.path.expanduser(),)
