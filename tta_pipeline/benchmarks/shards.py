"""How shards are made, as a benchmark file says: from a source, or from shards that are there."""

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from tta_pipeline.benchmarks.functions import function_file
from tta_pipeline.sections import MOST, Section, Seed

LARGEST_IMAGE = 16_384
"""Height and width in pixels: three gigabytes as the model's input."""
_LIMITS = ("num_shards", "samples_per_shard", "max_shard_bytes")


class _ShardFields(Section):
    """What can be said of shards, whatever they are made of."""

    num_shards: int | None = Field(default=None, ge=1, le=100_000)
    """At most 100,000."""
    samples_per_shard: int | None = Field(default=None, ge=1, le=MOST)
    """At most 1,000,000,000."""
    max_shard_bytes: int | None = Field(default=None, ge=10240, le=10**15)
    """10,240 to 10^15."""
    order: Literal["permuted", "by_class", "dirichlet", "source"] = "permuted"
    """Permuted is what i.i.d. streams need; by_class and dirichlet are for correlated ones; source is as listed."""
    seed: Seed = 0
    """Of the order: 0 to 2^63 - 1, as every seed."""
    delta: float = Field(default=0.1, ge=1e-6, le=1e6)
    """Concentration of the Dirichlet order, 1e-6 to 1e6: the smaller, the fewer classes at a time."""
    format: Literal["raw", "tensor"] = "raw"
    """Raw keeps the files' bytes; tensor stores decoded pixels as uint8 (H, W, 3) `.npy` members."""
    function: str | None = None
    """`module:name` of a Python function that is given each decoded image, uint8 (H, W, 3), before it is resized and
    cropped, and returns another one, uint8 (H', W', 3)."""
    resize: int | None = Field(default=None, ge=1, le=LARGEST_IMAGE)
    """Length of the shorter side after resizing, in pixels; at most 16,384."""
    center_crop: int | None = Field(default=None, ge=1, le=LARGEST_IMAGE)
    """Height and width of the crop, in pixels; at most 16,384."""
    quality: int = Field(default=95, ge=1, le=100)
    """JPEG quality of images that were resized or cropped; others are not encoded again."""
    labels: bool = False
    """Whether each sample also has a `.cls` and a `.json` member."""
    damaged: Literal["stop", "skip"] = "stop"
    """What to do with an image that is no intact image; what is skipped is named in the manifest."""
    foreign_classes: Literal["refuse", "skip"] = "refuse"
    """What to do with class folders that the class map lacks; what is skipped is counted and named in the manifest."""
    decode_all: bool = False
    """Whether every image is decoded while sharding, and not only its header and end looked at."""

    @field_validator("function")
    @classmethod
    def _found(cls, function: str | None) -> str | None:
        if function is not None:
            function_file(function)
        return function

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        if len(self.limits) > 1:
            raise ValueError(f"found limits {list(self.limits)}; expected one of {', '.join(_LIMITS)}")
        if self.max_shard_bytes and self.changes_images:
            raise ValueError(
                "found max_shard_bytes for images whose size will change; expected num_shards or samples_per_shard"
            )
        return self

    @property
    def limits(self) -> tuple[str, ...]:
        """The limits that are given, by name."""
        return tuple(name for name in _LIMITS if getattr(self, name))

    @property
    def changes_images(self) -> bool:
        """Whether the stored bytes are others than the source's."""
        return self.format == "tensor" or bool(self.function or self.resize or self.center_crop)


class ShardSettings(_ShardFields):
    """How a cell becomes shards: one of the three limits, the order, and what is done to the images."""

    @model_validator(mode="after")
    def _has_a_limit(self) -> Self:
        if not self.limits:
            raise ValueError(f"found limits none; expected one of {', '.join(_LIMITS)}")
        return self


class Transform(_ShardFields):
    """How a shard set becomes another one; without a limit, of as many shards as it has."""

    order: Literal["permuted", "by_class", "dirichlet", "source"] = "source"

    def settings(self, *, num_shards: int) -> ShardSettings:
        """Return the settings for a set that has *num_shards* shards."""
        given = self.model_dump()
        return ShardSettings(**given if self.limits else {**given, "num_shards": num_shards})

    def image_size(self, before: int) -> int:
        """Return height and width of images that had *before* pixels; of what a function returns, those given here."""
        return self.center_crop or self.resize or before
