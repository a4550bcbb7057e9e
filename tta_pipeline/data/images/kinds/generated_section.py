"""Base class of the kinds of source whose images this project corrupts."""

from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal, Self

from pydantic import Field, JsonValue, model_validator

from tta_pipeline.data.corruptions.constants import PARAMETERS, SEVERITIES
from tta_pipeline.data.datasets.dataset import Dataset
from tta_pipeline.data.images.generated_encoding import GENERATOR_VERSION
from tta_pipeline.data.images.images_section import ConvertedSection
from tta_pipeline.domain.cells import Cell
from tta_pipeline.util.config_model import Seed
from tta_pipeline.util.nearest_names import name_choices


class CorruptedSection(ConvertedSection):
    """Images that this project corrupts and stores."""

    severity_table: str
    """Table of severity constants; each kind lists its own choices."""
    encoding: Literal["jpeg", "lossless"] | None = None
    """Encoding of the stored images. Default: as the table's authors did, lossless for cifar_c and jpeg for the
    others."""
    jpeg_quality: int | None = Field(default=None, ge=1, le=100)
    """JPEG quality of stored images. Default: 85, the authors' value."""
    seed: Seed = 0
    """Seed of the corruptions."""
    is_generated: ClassVar[bool] = True

    @model_validator(mode="after")
    def _has_quality_of_jpeg_only(self) -> Self:
        if self.jpeg_quality is not None and self.stored_quality is None:
            raise ValueError(
                f"jpeg_quality is {self.jpeg_quality}, but images are stored lossless, the default for "
                f"{self.severity_table}; expected `encoding: jpeg` with it: add it, or leave jpeg_quality out"
            )
        return self

    def problems(self, cells: Sequence[Cell], dataset: Dataset) -> Iterator[str]:
        """Yield a sentence for corruptions without a function and for severities without constants."""
        del dataset
        if unknown := sorted({cell.corruption for cell in cells} - PARAMETERS.keys()):
            yield (
                f"corruptions has {', '.join(unknown)}, for which images.kind {self.kind!r} has no function; expected "
                f"some of {name_choices(unknown, PARAMETERS, listed_in='tta_pipeline/data/corruptions/constants.py')}"
            )
        if odd := sorted({cell.severity for cell in cells} - set(SEVERITIES)):
            yield (
                f"severities has {', '.join(map(str, odd))}, for which {self.severity_table} has no constants; "
                f"expected any of {', '.join(map(str, SEVERITIES))}"
            )

    @property
    def recipe(self) -> dict[str, JsonValue]:
        """Every setting that decides a byte of the images, besides the clean images."""
        return {
            "generator_version": GENERATOR_VERSION,
            "severity_table": self.severity_table,
            "seed": self.seed,
            "jpeg_quality": self.stored_quality,
        }

    @property
    def stored_quality(self) -> int | None:
        """Quality of the JPEG files; None: images are stored lossless."""
        encoding = self.encoding or ("lossless" if self.severity_table == "cifar_c" else "jpeg")
        return (self.jpeg_quality or 85) if encoding == "jpeg" else None
