"""The section `watch` of a benchmark file: a folder where images arrive, and the experiments that evaluate them."""

from datetime import date
from pathlib import Path

from pydantic import Field

from tta_pipeline.util.config_model import ConfigModel
from tta_pipeline.util.identifiers import Name

STREAM = "stream"
"""Name of the shift set whose shifts are the days of arrival."""


class Watch(ConfigModel):
    """A folder that is watched: images that come on a day are the shard set of that day, and have no labels."""

    root: Path
    """Folder where images arrive, also in folders of their own. Not the URL of a bucket: mount it, or copy from it."""
    since: date
    """First day, such as 2026-11-01, in UTC as all days of arrival."""
    experiments: tuple[Name, ...] = Field(min_length=1)
    """Experiments that evaluate each day."""
    settle_s: float = Field(default=60.0, ge=0, le=86_400)
    """Seconds for which a file must not have changed before it is taken in: it may still be written."""
