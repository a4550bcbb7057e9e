"""The kind `shards`: shards that others made."""

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from tta_pipeline.partitions import CLEAN, Cell
from tta_pipeline.shifts.shift_set import ShiftSet
from tta_pipeline.sources.kinds.section import SourceContext, SourceSection

if TYPE_CHECKING:
    from tta_pipeline.sources.existing_shards import ExistingShards


class ShardsSource(SourceSection):
    """Existing shards made elsewhere, `<root>/<corruption>/<severity>/*.tar`; nothing is rewritten or copied.

    A shift set without severities has `<root>/<shift>/*.tar` or `<root>/<shift>/0/*.tar`.
    """

    kind: Literal["shards"]
    root: Path
    clean: Path | None = None
    """Folder of shards with the uncorrupted images."""
    has_shards: ClassVar[bool] = True

    def open(self, at: SourceContext) -> "ExistingShards":
        """Return the shards, which are linked to and adopted."""
        from tta_pipeline.sources.existing_shards import ExistingShards

        root = self.root.expanduser()
        folders = ((cell, self.own_place(cell, at.shift_set)) for cell in at.cells)
        elsewhere = [(cell, path) for cell, path in folders if path != root / cell.path]
        elsewhere += [(CLEAN, self.clean.expanduser())] if self.clean else []
        return ExistingShards(root=root, cells=at.cells, elsewhere=tuple(elsewhere))

    def places(self, cell: Cell, shift_set: ShiftSet) -> tuple[Path, ...]:
        """Return the folder of the shards of *cell*."""
        return (self.own_place(cell, shift_set),)

    def own_place(self, cell: Cell, shift_set: ShiftSet) -> Path:
        """Return the folder of the shards of *cell*."""
        root = self.root.expanduser()
        folder = root / shift_set.folder_of_cell(cell.corruption, cell.severity)
        return root / cell.path if not cell.severity and (root / cell.path).is_dir() else folder
