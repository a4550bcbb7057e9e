"""The kind `folder`: images in folders."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal, Self

from tta_pipeline.data.shifts.shift_set import ShiftSet
from tta_pipeline.data.sources.choose_shift_set import Place
from tta_pipeline.data.sources.detect import (
    count_classes,
    find_cells_under,
    find_first_file,
    find_split_set,
    look_into_class_folders,
    read_image_sizes,
)
from tta_pipeline.data.sources.folder_tree import FolderTree, discover_tree
from tta_pipeline.data.sources.kinds.clean_images import ClassesOfFiles, Clean, ListedBySplit, add_clean_and_train
from tta_pipeline.data.sources.listed_images import ListedImages
from tta_pipeline.data.sources.listing import Source
from tta_pipeline.data.sources.numbered_classes import resolve_class_numbers
from tta_pipeline.data.sources.source_options import SourceOptions
from tta_pipeline.data.sources.source_section import Cells, ImagesSection, SourceContext, Survey
from tta_pipeline.domain.cells import Cell
from tta_pipeline.errors import SourceError


class FolderSource(ListedBySplit, ClassesOfFiles, ImagesSection):
    """Images in folders, `<root>/<corruption>/<severity>/<class>/<name>`.

    Without severities, `<root>/<shift>/<class>/<name>`; for a set with a single shift, also `<root>/<class>/<name>`.
    """

    kind: Literal["folder"]
    root: Path
    """Folder of the images."""
    group_depth: Literal[0, 1, 2, 3] = 2
    """Number of folder levels above the class folders. 0: `<root>`; 1: `<root>/<shift>`; 2:
    `<root>/<corruption>/<severity>`; 3: `<root>/<archive>/<corruption>/<severity>`."""
    clean: Clean | None = None
    """The uncorrupted images."""
    train: Clean | None = None
    """Images to train models on."""

    def open(self, at: SourceContext) -> Source:
        """Return the images."""
        return add_clean_and_train(self._images(at), at, clean=self.clean, train=self.train)

    def problems(self, cells: Sequence[Cell], shift_set: ShiftSet) -> Iterator[str]:
        """Yield a sentence if there is a split for several cells."""
        del cells
        yield from self.split_problems(shift_set)

    def places(self, cell: Cell, shift_set: ShiftSet) -> tuple[Path, ...]:
        """Return the folder of *cell*."""
        root = self.root.expanduser()
        if self.group_depth == 3:
            return tuple(root.glob(f"*/{shift_set.folder_of_cell(cell.corruption, cell.severity)}"))
        return (self._folder(cell, shift_set),)

    def own_place(self, cell: Cell, shift_set: ShiftSet) -> Path | None:
        """Return the folder of *cell*, or None at group_depth 3, where its archive's folder is unknown."""
        return self._folder(cell, shift_set) if self.group_depth < 3 else None

    options: ClassVar[frozenset[str]] = frozenset({"group_depth", *ClassesOfFiles.model_fields})

    @classmethod
    def from_options(cls, options: SourceOptions) -> Self | None:
        """Return the section of one folder."""
        if options.folder is None:
            return None
        about_classes = {name: getattr(options, name) for name in ClassesOfFiles.model_fields}
        fields = {"root": options.folder, "group_depth": options.group_depth, **about_classes}
        return cls.model_validate({"kind": "folder", **fields})

    @property
    def is_one_set(self) -> bool:
        """Whether the root has the class folders of a single cell."""
        return self.group_depth == 0

    @contextmanager
    def opened_whole(self, at: SourceContext, prefixes: Sequence[str] = ()) -> Iterator[tuple[Source, Cells]]:
        """Yield the source with all cells found, whatever their names are."""
        if self.is_one_set or self.has_split(at.shift_set):
            yield self.open(at), at.cells
            return
        root = self.root.expanduser()
        tree = discover_tree(root, group_depth=self.group_depth, prefixes=prefixes, names=at.shift_set.shift_of_folder)
        yield self._with_classes(tree, at), tree.cells

    @classmethod
    def detect(cls, place: Place) -> Survey | None:
        """Return the survey of a folder with class folders for each cell, or with a split and its images."""
        if place.folder and (listed := find_split_set(place.folder, place)) and find_first_file(place.folder):
            image_size, other_size = read_image_sizes(place.folder)
            return Survey.of_split(
                cls(kind="folder", root=place.folder), *listed, image_size=image_size, other_size=other_size
            )
        found = find_cells_under(place, look_into_class_folders) if place.folder else None
        if found is None:
            return None
        tree, chosen, depth = found
        num_classes, remarks = count_classes(tree)
        image_size, other_size = read_image_sizes(tree.folder(chosen.cells[0]))
        return Survey(
            source=cls(kind="folder", root=tree.root, group_depth=3 if depth == 3 else 2),
            shift_set=chosen.shift_set,
            corruptions=chosen.corruptions,
            severities=chosen.severities,
            num_classes=num_classes,
            image_size=image_size,
            other_size=other_size,
            remarks=(*chosen.remarks, *remarks),
        )

    def _images(self, at: SourceContext) -> Source:
        root = self.root.expanduser()
        split = self.read_split(at.shift_set, beside=root)
        if split is None:
            return self._with_classes(self._tree(at), at)
        everywhere = tuple((cell, root) for cell in at.cells)
        tree = FolderTree(root=root, cells=at.cells, elsewhere=everywhere, classes_by_path=split.class_by_path)
        return ListedImages(source=tree, split=split)

    def _with_classes(self, tree: FolderTree, at: SourceContext) -> Source:
        by_file = self.classes_by_file(at)
        known = replace(tree, class_pattern=self.class_pattern, classes_by_file=by_file, named=at.classes)
        return resolve_class_numbers(known, at)

    def _tree(self, at: SourceContext) -> FolderTree:
        root = self.root.expanduser()
        if self.group_depth == 3:
            return discover_tree(
                root, group_depth=2 + bool(at.shift_set.severities), names=at.shift_set.shift_of_folder
            )
        folders = {cell: self._folder(cell, at.shift_set) for cell in at.cells}
        if len(set(folders.values())) < len(folders):
            raise SourceError(
                f"source.group_depth is {self.group_depth} for {len(folders)} cells; expected one folder per cell, at "
                "depth 2 with severities: correct group_depth, or name a single cell"
            )
        elsewhere = tuple((cell, path) for cell, path in folders.items() if path != root / cell.path)
        published = at.shift_set.folder_of(at.cells[0].corruption)
        is_whole = self.group_depth == 2 and root in folders.values()
        missing = published if is_whole and not (root / published).is_dir() else ""
        return FolderTree(root=root, cells=at.cells, elsewhere=elsewhere, missing_folder=missing)

    def _folder(self, cell: Cell, shift_set: ShiftSet) -> Path:
        root, shift = self.root.expanduser(), shift_set.folder_of(cell.corruption)
        if self.group_depth < 2:
            return root / shift if self.group_depth else root
        folder = root / shift_set.folder_of_cell(cell.corruption, cell.severity)
        is_alone = shift_set.names == (cell.corruption,) and not cell.severity
        return root if is_alone and not folder.is_dir() else folder
