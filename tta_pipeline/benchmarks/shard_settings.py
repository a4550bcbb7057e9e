"""The settings of shards in a benchmark file."""

import re
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from tta_pipeline.util.config_model import MAX_COUNT, ConfigModel, Seed
from tta_pipeline.util.user_functions import find_function_file

LARGEST_IMAGE = 16_384
"""Largest height and width in pixels; such an image takes three gigabytes as the model's input."""
_SHARD_NAME = re.compile(r"[A-Za-z0-9][\w.-]*%0[1-9]d[\w.-]*\.tar|%0[1-9]d[\w.-]*\.tar", re.ASCII)
Interpolation = Literal["bilinear", "bicubic"]
_LIMITS = ("num_shards", "samples_per_shard", "max_shard_bytes")


class ShardSettings(ConfigModel):
    """How a cell becomes shards: a number of shards or the limits of each, the order, and changes to the images."""

    num_shards: int | None = Field(default=None, ge=1, le=100_000)
    """Number of shards per cell, at most 100,000."""
    samples_per_shard: int | None = Field(default=None, ge=1, le=MAX_COUNT)
    """Maximum number of samples per shard, at most 1,000,000,000."""
    max_shard_bytes: int | None = Field(default=None, ge=10240, le=10**15)
    """Maximum size of a shard in bytes, 10,240 to 10^15."""
    order: Literal["permuted", "by_class", "dirichlet", "source"] = "permuted"
    """Order of samples: permuted for i.i.d. streams; by_class and dirichlet for correlated streams; source for the
    order of the source's listing."""
    seed: Seed = 0
    """Seed of the order: 0 to 2^63 - 1, as for every seed."""
    delta: float = Field(default=0.1, ge=1e-6, le=1e6)
    """Concentration of the Dirichlet order, 1e-6 to 1e6: the smaller, the fewer classes at a time."""
    format: Literal["raw", "tensor"] = "raw"
    """raw keeps the files' bytes; tensor stores decoded pixels as uint8 (H, W, 3) `.npy` members, which is faster
    to read and larger."""
    function: str | None = None
    """`module:name` of a Python function that gets each decoded image, uint8 (H, W, 3), before resizing and cropping,
    and returns another image, uint8 (H', W', 3)."""
    resize: int | None = Field(default=None, ge=1, le=LARGEST_IMAGE)
    """Length of the shorter side after resizing, in pixels; at most 16,384."""
    interpolation: Interpolation = "bilinear"
    """Filter of `resize`, antialiased: `bilinear`, as for most ResNets and ImageNet-C, or `bicubic`, as for most models
    of timm and open_clip."""
    center_crop: int | None = Field(default=None, ge=1, le=LARGEST_IMAGE)
    """Height and width of the crop, in pixels; at most 16,384."""
    quality: int = Field(default=95, ge=1, le=100)
    """JPEG quality of images that were resized or cropped; others are not encoded again."""
    labels: bool = False
    """Add a `.cls` and a `.json` member to each sample, for other programs."""
    on_corrupt_image: Literal["error", "skip"] = "error"
    """What to do with a damaged image. The manifest lists skipped images."""
    extra_classes: Literal["error", "skip"] = "error"
    """What to do with class folders that are not in the class map. The manifest lists skipped folders."""
    shard_name: str | None = None
    """Pattern of shard names with a number of fixed width, such as `validation-%06d.tar`. Default:
    `<shift>-<severity>-%05d.tar`."""
    suffix: Literal["jpg"] | None = None
    """`jpg` renames JPEG files to `.jpg`, and other suffixes to lower case, for readers that look only for
    `jpg;png`. Default: names stay as in the source."""
    decode_all: bool = False
    """Decode every image while sharding, to find damaged ones. Otherwise only header and end are checked."""

    @field_validator("function")
    @classmethod
    def _found(cls, function: str | None) -> str | None:
        if function is not None:
            find_function_file(function)
        return function

    @field_validator("shard_name")
    @classmethod
    def _has_a_number(cls, shard_name: str | None) -> str | None:
        if shard_name is not None and not _SHARD_NAME.fullmatch(shard_name):
            raise ValueError(
                f"{shard_name!r} is not a pattern of shard names; expected letters, digits, _, - and ., one number of "
                "fixed width and the ending .tar, such as validation-%06d.tar"
            )
        return shard_name

    @model_validator(mode="after")
    def _limits_that_agree(self) -> Self:
        limits = [name for name in _LIMITS if getattr(self, name)]
        if not limits:
            raise ValueError(f"no limit is set for the shards; expected one of {', '.join(_LIMITS)}")
        if len(limits) > 1 and "num_shards" in limits:
            raise ValueError(
                f"the limits {limits} cannot be combined; expected one of {', '.join(_LIMITS)}, or the last two "
                "together"
            )
        if self.interpolation != "bilinear" and self.resize is None:
            raise ValueError(
                f"interpolation is {self.interpolation}, but resize is not set; expected interpolation only with "
                "resize: set resize, or remove interpolation"
            )
        if self.max_shard_bytes and self.changes_images:
            raise ValueError(
                "max_shard_bytes is set, but the images will change in size; expected num_shards or samples_per_shard"
            )
        return self

    @property
    def changes_images(self) -> bool:
        """Whether the stored bytes differ from the source's."""
        return self.format == "tensor" or bool(self.function or self.resize or self.center_crop)

    def for_training(self) -> Self:
        """Return the settings for shards of training images: in random order, with unchanged images."""
        usual = ("order", "format", "function", "resize", "interpolation", "center_crop")
        return self.model_copy(update={name: type(self).model_fields[name].default for name in usual})
