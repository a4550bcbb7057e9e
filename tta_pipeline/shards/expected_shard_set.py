"""The shard set that a folder should contain: an intact manifest may still belong to another cell."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tta_pipeline.data.datasets.dataset import MAX_SEVERITY, SHIFT_PATTERN
from tta_pipeline.data.datasets.dataset_files import is_known_shift
from tta_pipeline.data.labels.class_map import read_pinned_class_map
from tta_pipeline.domain.cells import CLEAN, TRAIN, Cell
from tta_pipeline.domain.locations import CLASS_MAP_FILE, CLASS_MAPS, SHARDS, Locations
from tta_pipeline.errors import ManifestError
from tta_pipeline.util.json_values import JsonObject

if TYPE_CHECKING:
    from tta_pipeline.shards.set_facts import SetFacts

_NAME = re.compile(SHIFT_PATTERN)
_NUM_LEVELS_OF_CELL = 2
_NUM_LEVELS_TO_CLASS_MAP = 5
"""Levels from `<benchmark>/shards/<set>/<corruption>/<severity>` up to `<benchmark>`, both included."""


@dataclass(frozen=True, kw_only=True)
class ExpectedShardSet:
    """The expected facts of a shard set; a field is None if any value is fine."""

    cell: Cell | None = None
    benchmark: str | None = None
    class_map_sha256: str | None = None
    encoding: JsonObject | None = None
    """Processing of the images, as in `StoredEncoding`, without the fields that are None."""
    order: tuple[str, int, float | None] | None = None
    """Order of the samples, its seed, and the delta of the Dirichlet order."""
    recipe: JsonObject | None = None
    """Settings with which this project generates the images."""
    source_version: str | None = None
    num_samples: int | None = None
    """Number of images of the published cell that these images are declared to be."""

    def problems(self, facts: "SetFacts") -> tuple[str, ...]:
        """Return every difference between *facts* and the expected ones."""
        return (
            *self._place_differences(facts),
            *self._setting_differences(facts),
            *self._number_differences(facts),
        )

    def require(self, facts: "SetFacts", path: Path) -> None:
        """Refuse *facts*, read from *path*, that differ from the expected ones."""
        if problems := self._place_differences(facts):
            raise ManifestError(
                f"{path}: {'; '.join(problems)}. The folder was moved, swapped or copied: move it back, or "
                "rematerialize this cell's tar_shards and shard_manifest"
            )
        if problems := self._setting_differences(facts):
            raise ManifestError(
                f"{path}: {'; '.join(problems)}, as in the current benchmark file: rematerialize this cell's "
                "tar_shards and shard_manifest, or undo the edit of the file"
            )
        if problems := self._number_differences(facts):
            raise ManifestError(
                f"{path}: {'; '.join(problems)}, as in each cell of the published dataset: for your own images, "
                f"replace the field dataset with `custom: {{names: [...], severities: [...]}}`; for a part of the "
                "published images, add `subset: true`"
            )

    def _place_differences(self, facts: "SetFacts") -> tuple[str, ...]:
        return _describe_differences(
            ("cell", facts.cell.key, self.cell and self.cell.key),
            ("benchmark", facts.benchmark, self.benchmark),
            ("class map", facts.class_map_sha256, self.class_map_sha256),
        )

    def _number_differences(self, facts: "SetFacts") -> tuple[str, ...]:
        if self.num_samples in (None, facts.num_samples):
            return ()
        return (f"the set has {facts.num_samples:,} images of {facts.cell.key}; expected {self.num_samples:,}",)

    def _setting_differences(self, facts: "SetFacts") -> tuple[str, ...]:
        encoding = facts.encoding.model_dump(mode="json", exclude_none=True)
        return _describe_differences(
            ("image encoding", encoding, self.encoding),
            ("sample order", (facts.order.name, facts.order.seed, facts.order.delta), self.order),
            ("recipe of the images", facts.source.recipe, self.recipe),
            ("source version", facts.source.version, self.source_version),
        )


def _describe_differences(*facts: tuple[str, object, object]) -> tuple[str, ...]:
    """Return a sentence for each difference; *facts* are triples of name, found value and expected value."""
    return tuple(
        f"the {name} is {found}; expected {expected}"
        for name, found, expected in facts
        if expected is not None and found != expected
    )


ANYTHING = ExpectedShardSet()


def expected_for_cell(locations: Locations, benchmark_name: str, cell: Cell) -> ExpectedShardSet:
    """Return the facts that every shard set of *cell* must have.

    Raises:
        ClassMapError: the benchmark's pinned class map is damaged.
    """
    pinned = read_pinned_class_map(locations.class_map(benchmark_name))
    return ExpectedShardSet(cell=cell, benchmark=benchmark_name, class_map_sha256=pinned.sha256 if pinned else None)


def expected_at_path(folder: Path, stated: Cell) -> ExpectedShardSet:
    """Return the facts that the path of *folder* implies for its shard set; *stated* is the cell in its manifest.

    A class map that is pinned in a folder applies to all sets under that folder.

    Raises:
        ClassMapError: the pinned class map is damaged.
    """
    folder = folder.absolute()
    cell = cell_from_path(folder, stated)
    for parent in (folder, *folder.parents)[:_NUM_LEVELS_TO_CLASS_MAP]:
        # Outside a data root, the folder of a benchmark may have any name.
        kind, *inner = folder.relative_to(parent).parts or ("",)
        is_data_root = kind == SHARDS
        if pinned := read_pinned_class_map(parent / CLASS_MAP_FILE):
            benchmark = parent.name if is_data_root else None
            return ExpectedShardSet(cell=cell, benchmark=benchmark, class_map_sha256=pinned.sha256)
        part = inner[-3] if is_data_root and len(inner) > _NUM_LEVELS_OF_CELL else None
        if part and (pinned := read_pinned_class_map(parent / CLASS_MAPS / f"{part}.json")):
            return ExpectedShardSet(cell=cell, benchmark=f"{parent.name}/{part}", class_map_sha256=pinned.sha256)
    return ExpectedShardSet(cell=cell)


def cell_from_path(folder: Path, stated: Cell) -> Cell | None:
    """Return the cell named by the last two parts of *folder*; None if they do not name a cell.

    Names that the user chose do not, such as `val/0` for a set whose manifest has *stated* clean images.
    """
    name, severity = folder.parent.name, folder.name
    if not _NAME.fullmatch(name) or not severity.isdecimal() or int(severity) > MAX_SEVERITY:
        return None
    is_chosen = not is_known_shift(name) and stated in (CLEAN, TRAIN)
    return None if is_chosen else Cell(corruption=name, severity=int(severity))
