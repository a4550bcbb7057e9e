"""The kind `digits`: the handwritten digits of scikit-learn."""

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, JsonValue

from tta_pipeline.data.shifts.shift_set import ShiftSet
from tta_pipeline.data.sources.digit_images import DigitsSettings, GeneratedDigits
from tta_pipeline.data.sources.kinds.generated_section import GeneratedSection
from tta_pipeline.data.sources.source_section import SourceContext
from tta_pipeline.util.config_model import Seed
from tta_pipeline.util.partitions import CLEAN, TRAIN, Cell

if TYPE_CHECKING:
    from tta_pipeline.data.sources.digit_images import DigitsSettings
    from tta_pipeline.data.sources.listing import Source


class DigitsSource(GeneratedSection):
    """Handwritten digits of scikit-learn, corrupted by this project."""

    kind: Literal["digits"]
    severity_table: Literal["imagenet_c", "tiny_imagenet_c", "cifar_c"] = "cifar_c"
    """Table of severity constants: for images of 224, 64 or 32 pixels."""
    seed: Seed = 0
    """Seed of the split into training and test images, and of the corruptions."""
    num_test: int = Field(default=600, ge=10, le=1700)
    """Number of test images; the rest trains the source model."""
    is_drawn: ClassVar[bool] = True

    @property
    def has_clean(self) -> bool:
        """Whether there are uncorrupted test images: always."""
        return True

    @property
    def has_loose_files(self) -> bool:
        """Whether each image is a file: always, since the digits are generated into folders."""
        return True

    @property
    def has_loose_train(self) -> bool:
        """Whether each training image is a file: always."""
        return True

    @property
    def has_train(self) -> bool:
        """Whether there are images to train source models on: always."""
        return True

    @property
    def settings(self) -> "DigitsSettings":
        """Settings with which the digits are generated."""
        return DigitsSettings(
            seed=self.seed,
            num_test=self.num_test,
            severity_table=self.severity_table,
            jpeg_quality=self.stored_quality,
        )

    @property
    def recipe(self) -> dict[str, JsonValue]:
        """Every setting that decides a byte of the images."""
        return self.settings.model_dump(mode="json")

    def open(self, at: SourceContext) -> "Source":
        """Return the generated digits, which must have the settings of this section."""
        return GeneratedDigits(root=at.generated_root, cells=(*at.cells, CLEAN, TRAIN), settings=self.settings)

    def places(self, cell: Cell, shift_set: ShiftSet) -> tuple[Path, ...]:  # noqa: ARG002 - drawn, and found nowhere
        """Return nothing: the digits are generated here."""
        return ()
