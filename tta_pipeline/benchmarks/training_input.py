"""The input of a training in a benchmark file: loader, shuffling and augmentation."""

from typing import Literal, Self

from pydantic import Field, model_validator

from tta_pipeline.util.config_model import MAX_COUNT, ConfigModel

Augmentation = Literal["none", "simple", "full"]


class RandAugment(ConfigModel):
    """`RandAugment` of torchvision.transforms.v2, after crop and flip (Cubuk et al. 2020)."""

    num_ops: int = Field(default=2, ge=1, le=100)
    """Number of operations on each image."""
    magnitude: int = Field(default=9, ge=0, le=30)
    """Strength of each operation, 0 to 30."""


class AugMix(ConfigModel):
    """`AugMix` of torchvision.transforms.v2, after crop and flip (Hendrycks et al. 2020), but no consistency loss."""

    severity: int = Field(default=3, ge=1, le=10)
    """Strength of each operation, 1 to 10."""
    width: int = Field(default=3, ge=1, le=100)
    """Number of chains that are mixed."""


class TrainingInputSettings(ConfigModel):
    """Loader, order and augmentation of the images that a training reads."""

    augmentation: Augmentation = "simple"
    """none: the centre crop, as for evaluation, or the unchanged image if it has the size already; simple: a random
    crop after resizing, or after padding by an eighth if the image has the size already, and a random flip; full: a
    random crop of 8 to 100 % of the area, of aspect ratio 3/4 to 4/3, resized, and a random flip, as for ImageNet."""
    flip: bool = True
    """Whether half of the images are mirrored, with simple and full; turn it off for digits or text."""
    randaugment: RandAugment | None = None
    """RandAugment in addition; None: no RandAugment."""
    augmix: AugMix | None = None
    """AugMix in addition; None: no AugMix."""
    loader: Literal["indexed", "imagefolder", "webdataset"] = "indexed"
    """Loader of the images: this project's reader of shards, the loose files that the shards were made of, or
    webdataset on the shards."""
    shuffle: Literal["exact", "buffer", "resampled", "stored"] = "exact"
    """exact: another permutation of all samples in each epoch; buffer: shards permuted, then samples through a buffer,
    for shards at URLs; resampled: shards drawn with replacement, then the buffer; stored: the order in the shards."""
    buffer_samples: int = Field(default=5_000, ge=1, le=10_000_000)
    """Number of samples in the buffer, with buffer and resampled."""
    epoch_samples: int | None = Field(default=None, ge=1, le=MAX_COUNT)
    """Number of samples in an epoch, with resampled, as in webdataset's `with_epoch`; None: as many as there are."""

    @model_validator(mode="after")
    def _combination_that_exists(self) -> Self:
        if self.epoch_samples is not None and self.shuffle != "resampled":
            raise ValueError(
                f"found epoch_samples with shuffle {self.shuffle}, where an epoch has each sample once; expected "
                "shuffle: resampled, or no epoch_samples"
            )
        if self.loader == "webdataset" and self.shuffle == "exact":
            raise ValueError(
                "found loader webdataset with shuffle exact; expected buffer, resampled or stored, since webdataset "
                "reads shards front to back: choose one of them, or the loader indexed"
            )
        if self.loader == "imagefolder" and self.shuffle in ("buffer", "resampled"):
            raise ValueError(
                f"found loader imagefolder with shuffle {self.shuffle}, an order of shards; expected exact or stored"
            )
        if self.randaugment is not None and self.augmix is not None:
            raise ValueError("found randaugment and augmix; expected one of them")
        return self

    @property
    def draws_from_torch(self) -> bool:
        """Whether torchvision draws from torch's global generator, which the threads of a process share."""
        return self.randaugment is not None or self.augmix is not None
