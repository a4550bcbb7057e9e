"""What a section of a benchmark file needs from the other sections to check itself."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tta_pipeline.benchmarks.shard_settings import ShardSettings
from tta_pipeline.data.images.images_section import ImagesSection


@dataclass(frozen=True, kw_only=True)
class FileContext:
    """Everything that a section needs to check itself and does not contain itself."""

    benchmark: str
    images: ImagesSection
    severities: tuple[int, ...]
    is_evaluated_whole: bool
    """Whether any severities may be requested: next to datasets with severities, a dataset without them is evaluated
    whole."""
    train_shards: ShardSettings | None
    """How shards of training images are made; None for a source that consists of shards."""
    models: Collection[str]
    methods: Mapping[str, tuple[str, str]]
    """Method and preset of each experiment, by its name."""
    tunings: Collection[str]
    held_out: tuple[str, ...]
    """Shifts on which hyperparameters may be chosen."""
    why_none_held_out: str
    """If there are no such shifts: why, and what the user can do."""
