"""The kind `folder`: images in folders."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tta_pipeline.partitions import Cell
from tta_pipeline.shifts.shift_set import ShiftSet
from tta_pipeline.sources.kinds.clean import ClassPattern, Clean, with_clean
from tta_pipeline.sources.kinds.section import ImagesSection, SourceContext, quoted

if TYPE_CHECKING:
    from tta_pipeline.sources.folder_tree import FolderTree
    from tta_pipeline.sources.kinds.survey import Place, Survey
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

    @classmethod
    def recognised(cls, place: "Place") -> "Survey | None":
        """Return what is found in a folder of class folders for each cell."""
        from tta_pipeline.sources.kinds.looking import cells_under, first_file, num_classes_in, size_of
        from tta_pipeline.sources.kinds.survey import Survey

        found = cells_under(place) if place.folder else None
        if found is None:
            return None
        tree, chosen, depth = found
        num_classes, remarks = num_classes_in(tree)
        return Survey(
            source=cls(kind="folder", root=tree.root, group_depth=3 if depth == 3 else 2),
            shift_set=chosen.shift_set,
            corruptions=chosen.corruptions,
            severities=chosen.severities,
            num_classes=num_classes,
            image_size=size_of(first_file(tree.folder(chosen.cells[0]))),
            remarks=(*chosen.remarks, *remarks),
        )

    def lines(self, found: "Survey") -> Iterator[str]:
        """Yield the lines of a new benchmark file."""
        yield "  kind: folder"
        yield f"  root: {quoted(self.root)}"
        layout = "<corruption>/<severity>/<class>/<image>" if any(found.severities) else "<shift>/<class>/<image>"
        if self.group_depth == 3:
            yield f"  group_depth: 3  # <archive>/{layout}; 2 without the folders around them"
        else:
            yield f"  group_depth: 2  # {layout}; 3 if a folder for each archive is around them"

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
