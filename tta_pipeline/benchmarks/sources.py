"""The source of a benchmark's images, in its file."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from tta_pipeline.processes import MOST_PROCESSES
from tta_pipeline.sections import Section, Seed
from tta_pipeline.shard_places import ShardsPlace


class CleanImages(Section):
    """The uncorrupted images, in a folder or an archive. A path alone is short for `{path: ...}`."""

    path: Path
    """Folder of class folders, root of torchvision's `ImageNet` (its `val` is used), tar or tar.gz."""
    layout: Literal["classes", "nested", "flat"] = "classes"
    """Layout of an archive: class folders; a tar per class, as in ILSVRC2012_img_train.tar; or only files, as in
    ILSVRC2012_img_val.tar, with classes from the ground truth."""
    ground_truth: Path | None = None
    """File with the classes of a flat archive: a line per file, or per number of a validation image."""
    devkit: Path | None = None
    """The devkit's `meta.mat`, needed if the ground truth uses its numbers."""

    @model_validator(mode="after")
    def _consistent(self) -> "CleanImages":
        if (self.layout == "flat") != (self.ground_truth is not None):
            raise ValueError(
                f"found layout {self.layout} and ground_truth {self.ground_truth}; expected both for a flat archive "
                "and no ground_truth for others"
            )
        return self


def _as_clean_images(value: Any) -> Any:
    return {"path": value} if isinstance(value, str | Path) else value


def _pattern_with_a_group(pattern: str) -> str:
    try:
        num_groups = re.compile(pattern).groups
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
    if not num_groups:
        raise ValueError(f"{pattern!r} has no group; expected the class name in parentheses")
    return pattern


Clean = Annotated[CleanImages, BeforeValidator(_as_clean_images)]
ClassPattern = Annotated[str, AfterValidator(_pattern_with_a_group)]


class _MadeHere(Section):
    """Images that this project corrupts and stores."""

    kind: str
    severity_table: Literal["imagenet_c", "tiny_imagenet_c", "cifar_c"]
    """Source of the severity constants: those for images of 224, 64 or 32 pixels."""
    encoding: Literal["jpeg", "lossless"] | None = None
    """How the images are stored; by default as the table's authors did: lossless for cifar_c, jpeg for the other
    two."""
    jpeg_quality: int | None = Field(default=None, ge=1, le=100)
    """Quality of images stored as jpeg; by default 85, as the authors used."""

    @model_validator(mode="after")
    def _has_quality_of_jpeg_only(self) -> Self:
        if self.jpeg_quality is not None and self.stored_quality is None:
            raise ValueError(
                f"found jpeg_quality {self.jpeg_quality} for images that are stored lossless, the default for "
                f"{self.severity_table}; expected encoding: jpeg with it, or neither"
            )
        return self

    @property
    def stored_quality(self) -> int | None:
        """Quality of the JPEG files; None: images are stored lossless."""
        encoding = self.encoding or ("lossless" if self.severity_table == "cifar_c" else "jpeg")
        return (self.jpeg_quality or 85) if encoding == "jpeg" else None


class DigitsSource(_MadeHere):
    """Handwritten digits of scikit-learn, corrupted by this project."""

    kind: Literal["digits"]
    severity_table: Literal["imagenet_c", "tiny_imagenet_c", "cifar_c"] = "cifar_c"
    """Source of the severity constants: those for images of 224, 64 or 32 pixels."""
    seed: Seed = 0
    """Seed of the split into training and test images, and of the corruptions."""
    num_test: int = Field(default=600, ge=10, le=1700)
    """Number of test images; the rest trains the source model."""


class FolderSource(Section):
    """Images in folders, `<root>/<corruption>/<severity>/<class>/<name>`."""

    kind: Literal["folder"]
    root: Path
    group_depth: Literal[2, 3] = 2
    """Depth of the severity folders; 3 for archives unpacked into one folder each,
    `<root>/<archive>/<corruption>/<severity>/...`."""
    class_pattern: ClassPattern | None = None
    """Regular expression for `<folder>/<file>`, whose first group is the class; None: the folder is the class."""
    clean: Clean | None = None
    """The uncorrupted images."""


class ArchiveSource(Section):
    """Tar archives as downloaded, never unpacked: read in one pass, then cell by cell in place.

    Keep the archives until the shards are written. A compressed archive is copied while it is read.
    """

    kind: Literal["archive"]
    archives: tuple[Path, ...] = Field(min_length=1)
    published: Literal["imagenet_c", "tiny_imagenet_c"] | None = None
    """Name of the published data set whose md5 sums the archives must have; None: not checked."""
    class_pattern: ClassPattern | None = None
    """Regular expression for `<folder>/<file>`, whose first group is the class; None: the folder is the class."""
    clean: Clean | None = None
    """The uncorrupted images."""


class NpySource(Section):
    """CIFAR-10-C and CIFAR-100-C as published: `<root>/<corruption>.npy` and `labels.npy`."""

    kind: Literal["npy"]
    root: Path
    clean: Clean | None = None
    """The uncorrupted images."""


class GeneratedSource(_MadeHere):
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


class ShardsSource(Section):
    """Existing shards made elsewhere, `<root>/<corruption>/<severity>/*.tar`; nothing is rewritten or copied."""

    kind: Literal["shards"]
    root: ShardsPlace
    """Folder, or URL of http, https, s3, gs or hf, whose shards are then streamed. A URL, or each URL of a list, may
    instead name the shards themselves, with braces for numbers and `{shift}` and `{severity}` for the cell:
    `https://example.org/{shift}/{severity}/shard-{00000..00015}.tar`."""
    clean: ShardsPlace | None = None
    """Folder or URL of shards with the uncorrupted images."""

    @model_validator(mode="after")
    def _in_one_place(self) -> Self:
        if self.clean is not None and isinstance(self.clean, Path) != isinstance(self.root, Path):
            raise ValueError("found a folder and a URL; expected root and clean both here, or both at URLs")
        return self

    @property
    def is_remote(self) -> bool:
        """Whether the shards are at URLs."""
        return not isinstance(self.root, Path)


AnySource = Annotated[
    DigitsSource | FolderSource | ArchiveSource | NpySource | GeneratedSource | ShardsSource,
    Field(discriminator="kind"),
]
