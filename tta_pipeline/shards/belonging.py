"""Whose shards a folder should hold: a manifest that is sound in itself may be that of another cell."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tta_pipeline.errors import ManifestError
from tta_pipeline.labels.class_map import pinned_class_map
from tta_pipeline.locations import Locations
from tta_pipeline.partitions import CLEAN, CORRUPTIONS, SEVERITIES, TRAIN, Cell

if TYPE_CHECKING:
    from tta_pipeline.shards.manifest import SetFacts

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_KNOWN = frozenset({*CORRUPTIONS, CLEAN.corruption, TRAIN.corruption})
_NUM_LEVELS_TO_CLASS_MAP = 5
"""From `<benchmark>/transformed/<name>/<corruption>/<severity>` up to `<benchmark>`, the folder itself counted."""


@dataclass(frozen=True, kw_only=True)
class Belonging:
    """What is expected of a shard set; None is known of nothing."""

    cell: Cell | None = None
    benchmark: str | None = None
    class_map_sha256: str | None = None

    def problems(self, facts: "SetFacts") -> tuple[str, ...]:
        """Return what *facts* say otherwise."""
        pairs = (
            ("cell", facts.cell.key, self.cell and self.cell.key),
            ("benchmark", facts.benchmark, self.benchmark),
            ("class map", facts.class_map_sha256, self.class_map_sha256),
        )
        return tuple(
            f"found {name} {found}; expected {expected}"
            for name, found, expected in pairs
            if expected is not None and found != expected
        )

    def require(self, facts: "SetFacts", path: Path) -> None:
        """Refuse *facts*, read from *path*, of something else.

        Raises:
            ManifestError: they are.
        """
        if problems := self.problems(facts):
            raise ManifestError(
                f"{path}: {'; '.join(problems)}. Its folder was moved, exchanged or copied: move it back, or "
                "materialize tar_shards and shard_manifest of this cell again"
            )


ANYTHING = Belonging()


def belonging_of(locations: Locations, benchmark_name: str, cell: Cell) -> Belonging:
    """Return what is expected of every shard set of *cell*, the transformed ones included.

    Raises:
        ClassMapError: the benchmark's pinned class map is damaged.
    """
    pinned = pinned_class_map(locations.class_map(benchmark_name))
    return Belonging(cell=cell, benchmark=benchmark_name, class_map_sha256=pinned.sha256 if pinned else None)


def belonging_at(folder: Path, stated: Cell) -> Belonging:
    """Return what the place of *folder*, whose manifest has *stated* its cell, says of it.

    A class map pinned above is that of all sets below it.

    Raises:
        ClassMapError: the pinned class map is damaged.
    """
    folder = folder.absolute()
    cell = cell_at(folder, stated)
    for parent in (folder, *folder.parents)[:_NUM_LEVELS_TO_CLASS_MAP]:
        if pinned := pinned_class_map(parent / "class_map.json"):
            # Elsewhere than in a data root the folder of a benchmark may be called as people like.
            is_data_root = folder.relative_to(parent).parts[:1] in (("shards",), ("transformed",))
            benchmark = parent.name if is_data_root else None
            return Belonging(cell=cell, benchmark=benchmark, class_map_sha256=pinned.sha256)
    return Belonging(cell=cell)


def cell_at(folder: Path, stated: Cell) -> Cell | None:
    """Return the cell that the last two names of *folder* say; None if they do not look like one.

    They do not if they are of the user's choice, such as `val/0` for clean images, which the manifest has *stated*.
    """
    name, severity = folder.parent.name, folder.name
    if not _NAME.fullmatch(name) or severity not in {str(number) for number in (0, *SEVERITIES)}:
        return None
    is_chosen = name not in _KNOWN and stated in (CLEAN, TRAIN)
    return None if is_chosen else Cell(corruption=name, severity=int(severity))
