"""Options of the command `shards make` about the source, from which each kind creates its section."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from tta_pipeline.util.json_values import JsonObject


@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """Options of the command `shards make` that describe the source."""

    sources: tuple[Path, ...]
    class_dir_depth: int = 2
    class_pattern: str | None = None
    layout: str = "corruptions"
    ground_truth: Path | None = None
    ground_truth_name: str = "ILSVRC2012_val_%08d.JPEG"
    devkit: Path | None = None
    expect_md5: Mapping[str, str] = field(default_factory=dict)
    function: str | None = None
    arguments: JsonObject = field(default_factory=dict)

    @property
    def folder(self) -> Path | None:
        """The only source, if it is a folder."""
        return self.sources[0] if len(self.sources) == 1 and self.sources[0].is_dir() else None

    @property
    def given(self) -> frozenset[str]:
        """Names of the options, except the sources, that differ from their defaults."""
        defaults = ImageOptions(sources=())
        names = (each.name for each in fields(self) if each.name != "sources")
        return frozenset(name for name in names if getattr(self, name) != getattr(defaults, name))
