"""The facts about a shard set that its writer's record and its manifest state."""

import hashlib
import json
from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from tta_pipeline.domain.cells import Cell
from tta_pipeline.util.config_model import ConfigModel
from tta_pipeline.util.short_lists import abbreviate_list

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

Count = Annotated[int, Field(ge=0)]

ShardName = Annotated[str, Field(pattern=r"^[^./][^/\x00]*\.tar$")]


class ShardFacts(ConfigModel):
    """One tar file."""

    name: ShardName
    num_samples: Count
    shard_bytes: Count
    sha256: Sha256


class SkippedImage(ConfigModel):
    """An image that was left out, and why."""

    name: str
    reason: str


class SourceFacts(ConfigModel):
    """Where the samples came from."""

    kind: str
    generated: bool
    """Whether this project generated the images; results on them are not results on a published dataset."""
    recipe: dict[str, JsonValue] | None = None
    """Settings with which this project generated the images; None for other images, or sets made from other sets."""
    version: str
    """Digest of the source's listing."""
    num_images: Count
    """Number of images in the listing, including skipped ones."""
    num_hidden: Count
    num_strays: Count
    skipped: tuple[SkippedImage, ...] = ()
    """Damaged images that were left out, as the settings allow."""
    num_foreign: Count = 0
    """Number of images of foreign classes that were left out, as the settings allow."""
    extra_classes: tuple[str, ...] = ()

    @property
    def num_taken(self) -> int:
        """Number of images that must be in the shards."""
        return self.num_images - len(self.skipped) - self.num_foreign

    @property
    def left_out(self) -> str:
        """What the source contains and the shards do not, with numbers; empty if nothing."""
        damaged = [f"{each.name}, {each.reason}" for each in self.skipped]
        found = (
            (len(damaged), "damaged", abbreviate_list(damaged, "; ")),
            (self.num_foreign, "of other classes", abbreviate_list(self.extra_classes)),
            (self.num_strays, "not named as images or outside class folders", ""),
            (self.num_hidden, "hidden or without a suffix" if self.kind == "shards" else "hidden", ""),
        )
        return ", ".join(
            f"{number:,} {why}" + (f" ({names})" if names else "") for number, why, names in found if number
        )


class StoredOrder(ConfigModel):
    """The order of the samples in the shards."""

    name: str
    seed: int
    delta: float | None = Field(default=None, exclude_if=lambda delta: delta is None)
    """Concentration of the Dirichlet order; absent for other orders. Manifests of an earlier Dirichlet order, with
    permuted slots, do not have it, so their shards do not count as being in this order."""
    sha256: Sha256
    """sha256 of the keys, one per line, in that order."""


class StoredEncoding(ConfigModel):
    """Processing of the images before they were stored; a loader does not repeat it."""

    format: Literal["raw", "tensor"] = "raw"
    resize: int | None = None
    interpolation: Literal["bilinear", "bicubic"] = Field(
        default="bilinear", exclude_if=lambda interpolation: interpolation == "bilinear"
    )
    """Filter of the resize; absent from a file if it is bilinear, the only filter of earlier versions."""
    center_crop: int | None = None
    quality: int | None = None
    function: str | None = None
    """`module:name` of the function that was applied to each decoded image, before resizing and cropping."""
    function_sha256: Sha256 | None = None
    """sha256 of the function's code without comments: its module, and the modules next to it that it imports."""


class SetFacts(ConfigModel):
    """The facts about a shard set that the writer's record and the manifest share."""

    benchmark: str
    corruption: str
    severity: Count
    source: SourceFacts
    class_map_sha256: Sha256
    order: StoredOrder
    encoding: StoredEncoding = StoredEncoding()
    shards: tuple[ShardFacts, ...]
    num_samples: Count
    payload_bytes: Count
    """Sum of the image files' sizes."""

    @property
    def cell(self) -> Cell:
        """The cell of the set."""
        return Cell(corruption=self.corruption, severity=self.severity)

    @property
    def shard_bytes(self) -> int:
        """Sum of the shards' sizes."""
        return sum(shard.shard_bytes for shard in self.shards)


class WriterRecord(SetFacts):
    """The writer's record of the shards that it wrote."""

    format: Literal["tta_pipeline/shards"] = "tta_pipeline/shards"
    version: Literal[2] = 2
    payloads_sha256: Sha256
    """sha256 of the concatenated sha256 of every image, as read from the source, in stored order."""
    fingerprint: Sha256
    """Hash of everything that determines the shards; if it is unchanged, there is nothing to write."""
    wall_s: float
    """Seconds from reading the first image to syncing the last byte to disk."""


_DECISIVE_FIELDS = {"corruption", "severity", "classes", "encoding", "shards", "labels_sha256"}
"""Fields of a manifest that decide what a model sees, and which answers are right."""


class Manifest(SetFacts):
    """The content of a shard set, as read back from the shards."""

    format: Literal["tta_pipeline/manifest"] = "tta_pipeline/manifest"
    version: Literal[3] = 3
    classes: tuple[str, ...]
    """Class names in the order of their labels."""
    labels_sha256: Sha256
    """sha256 of the key and the label of each sample in stored order."""
    samples_sha256: Sha256
    """Hash of `samples.parquet`, whose bytes also depend on the library that wrote it."""
    files: tuple[str, ...] = ()
    """Patterns of the shards' names, if the set was adopted from a folder with other tars; if empty, all tars."""

    def serialise(self) -> bytes:
        """Return the bytes of `manifest.json`."""
        return _as_json(self.model_dump(mode="json"))

    @cached_property
    def sha256(self) -> str:
        """The identity of the shard set: the hash of all that decides its samples, their labels and their order.

        Equal shards make equal sets on every machine. So the hash leaves out the benchmark's name, which can be that
        of a folder, who ordered and listed the images, and which version of Arrow wrote the index.
        """
        return hashlib.sha256(_as_json(self.model_dump(mode="json", include=_DECISIVE_FIELDS))).hexdigest()


def _as_json(content: dict[str, object]) -> bytes:
    return (json.dumps(content, sort_keys=True, indent=1, allow_nan=False) + "\n").encode()
