"""The kind `folder`: images in folders."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tta_pipeline.partitions import Cell
from tta_pipeline.shifts.shift_set import ShiftSet
from tta_pipeline.sources.kinds.clean import ClassPattern, Clean, with_clean
from tta_pipeline.sources.kinds.section import ImagesSection, SourceContext

if TYPE_CHECKING:
    from tta_pipeline.sources.folder_tree import FolderTree
    from tta_pipeline.sources.listing import Source


class FolderSource(ImagesSection):
    """Images in folders, `<root>/<corruption>/<severity>/<class>/<name>`.

    Without severities, `<root>/<shift>/<class>/<name>`; of a set with a single shift, `<root>/<class>/<name>` as well.
    """

    kind: Literal["folder"]
    root: Path
    group_depth: Literal[2, 3] = 2
    """Depth of the severity folders; 3 for archives unpacked into one folder each,
    `<root>/<archive>/<corruption>/<severity>/...`."""
    class_pattern: ClassPattern | None = None
    """Regular expression for `<folder>/<file>`, whose first group is the class; None: the folder is the class."""
    clean: Clean | None = None
    """The uncorrupted images."""

    def open(self, at: SourceContext) -> "Source":
        """Return the images."""
        from tta_pipeline.sources.numbered import numbered

        tree = replace(self._tree(at), class_pattern=self.class_pattern)
        return with_clean(numbered(tree, at), self.clean, at)

    def places(self, cell: Cell, shift_set: ShiftSet) -> tuple[Path, ...]:
        """Return the folder of *cell*."""
        root = self.root.expanduser()
        if self.group_depth == 3:
            return tuple(root.glob(f"*/{shift_set.folder_of_cell(cell.corruption, cell.severity)}"))
        return (_folder(root, cell, shift_set),)

    def own_place(self, cell: Cell, shift_set: ShiftSet) -> Path | None:
        """Return the folder of *cell*, if its place is known."""
        return _folder(self.root.expanduser(), cell, shift_set) if self.group_depth == 2 else None

    def _tree(self, at: SourceContext) -> "FolderTree":
        from tta_pipeline.sources.folder_tree import FolderTree, discover

        root = self.root.expanduser()
        if self.group_depth == 3:
            return discover(root, group_depth=2 + bool(at.shift_set.severities), names=at.shift_set.shift_at)
        folders = ((cell, _folder(root, cell, at.shift_set)) for cell in at.cells)
        elsewhere = tuple((cell, path) for cell, path in folders if path != root / cell.path)
        return FolderTree(root=root, cells=at.cells, elsewhere=elsewhere)


def _folder(root: Path, cell: Cell, shift_set: ShiftSet) -> Path:
    folder = root / shift_set.folder_of_cell(cell.corruption, cell.severity)
    is_alone = shift_set.names == (cell.corruption,) and not cell.severity
    return root if is_alone and not folder.is_dir() else folder
