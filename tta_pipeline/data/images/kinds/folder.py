"""The kind `folder`: images in folders."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal, Self

from tta_pipeline.data.datasets.dataset import Dataset
from tta_pipeline.data.images.choose_dataset import Place
from tta_pipeline.data.images.detect import (
    count_classes,
    find_cells_under,
    find_first_file,
    find_split_set,
    look_into_class_folders,
    read_image_sizes,
)
from tta_pipeline.data.images.folder_tree import FolderTree, discover_tree
from tta_pipeline.data.images.image_options import ImageOptions
from tta_pipeline.data.images.images_section import Cells, ConvertedSection, ImagesContext, Survey
from tta_pipeline.data.images.kinds.clean_images import ClassesOfFiles, Clean, ListedBySplit, add_clean_and_train
from tta_pipeline.data.images.listed_images import ListedImages
from tta_pipeline.data.images.listing import Source
from tta_pipeline.data.images.numbered_classes import resolve_class_numbers
from tta_pipeline.domain.cells import Cell
from tta_pipeline.errors import ImagesError


class FolderSection(ListedBySplit, ClassesOfFiles, ConvertedSection):
    """Images in folders, `<root>/<corruption>/<severity>/<class>/<name>`.

    Without severities, `<root>/<shift>/<class>/<name>`; for a set with a single shift, also `<root>/<class>/<name>`.
    """

    kind: Literal["folder"]
    root: Path
    """Folder of the images."""
    class_dir_depth: Literal[0, 1, 2, 3] = 2
    """Number of folder levels above the class folders. 0: `<root>`; 1: `<root>/<shift>`; 2:
    `<root>/<corruption>/<severity>`; 3: `<root>/<archive>/<corruption>/<severity>`."""
    clean: Clean | None = None
    """The uncorrupted images."""
    train: Clean | None = None
    """Images to train models on."""

    def open(self, at: ImagesContext) -> Source:
        """Return the images."""
        return add_clean_and_train(self._images(at), at, clean=self.clean, train=self.train)

    def problems(self, cells: Sequence[Cell], dataset: Dataset) -> Iterator[str]:
        """Yield a sentence if there is a split for several cells."""
        del cells
        yield from self.split_problems(dataset)

    def places(self, cell: Cell, dataset: Dataset) -> tuple[Path, ...]:
        """Return the folder of *cell*."""
        root = self.root.expanduser()
        if self.class_dir_depth == 3:
            return tuple(root.glob(f"*/{dataset.folder_of_cell(cell.corruption, cell.severity)}"))
        return (self._folder(cell, dataset),)

    def own_place(self, cell: Cell, dataset: Dataset) -> Path | None:
        """Return the folder of *cell*, or None at class_dir_depth 3, where its archive's folder is unknown."""
        return self._folder(cell, dataset) if self.class_dir_depth < 3 else None

    options: ClassVar[frozenset[str]] = frozenset({"class_dir_depth", *ClassesOfFiles.model_fields})

    @classmethod
    def from_options(cls, options: ImageOptions) -> Self | None:
        """Return the section of one folder."""
        if options.folder is None:
            return None
        about_classes = {name: getattr(options, name) for name in ClassesOfFiles.model_fields}
        fields = {"root": options.folder, "class_dir_depth": options.class_dir_depth, **about_classes}
        return cls.model_validate({"kind": "folder", **fields})

    @property
    def is_one_set(self) -> bool:
        """Whether the root has the class folders of a single cell."""
        return self.class_dir_depth == 0

    @contextmanager
    def opened_whole(self, at: ImagesContext, prefixes: Sequence[str] = ()) -> Iterator[tuple[Source, Cells]]:
        """Yield the source with all cells found, whatever their names are."""
        if self.is_one_set or self.has_split(at.dataset):
            yield self.open(at), at.cells
            return
        root = self.root.expanduser()
        tree = discover_tree(
            root,
            class_dir_depth=self.class_dir_depth,
            prefixes=prefixes,
            names=at.dataset.shift_of_folder,
            severities=at.dataset.severity_of_folder,
        )
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
        image_size, other_size = read_image_sizes(*(tree.folder(cell) for cell in chosen.cells))
        return Survey(
            source=cls(kind="folder", root=tree.root, class_dir_depth=3 if depth == 3 else 2),
            dataset=chosen.dataset,
            corruptions=chosen.corruptions,
            severities=chosen.severities,
            num_classes=num_classes,
            image_size=image_size,
            other_size=other_size,
            remarks=(*chosen.remarks, *remarks),
        )

    def _images(self, at: ImagesContext) -> Source:
        root = self.root.expanduser()
        split = self.read_split(at.dataset, beside=root)
        if split is None:
            return self._with_classes(self._tree(at), at)
        everywhere = tuple((cell, root) for cell in at.cells)
        tree = FolderTree(root=root, cells=at.cells, elsewhere=everywhere, classes_by_path=split.class_by_path)
        return ListedImages(source=tree, split=split)

    def _with_classes(self, tree: FolderTree, at: ImagesContext) -> Source:
        by_file = self.classes_by_file(at)
        known = replace(tree, class_pattern=self.class_pattern, classes_by_file=by_file, named=at.classes)
        return resolve_class_numbers(known, at)

    def _tree(self, at: ImagesContext) -> FolderTree:
        root = self.root.expanduser()
        if self.class_dir_depth == 3:
            return discover_tree(
                root,
                class_dir_depth=2 + bool(at.dataset.severities),
                names=at.dataset.shift_of_folder,
                severities=at.dataset.severity_of_folder,
            )
        folders = {cell: self._folder(cell, at.dataset) for cell in at.cells}
        if len(set(folders.values())) < len(folders):
            raise ImagesError(
                f"images.class_dir_depth is {self.class_dir_depth}, which gives a single folder for {len(folders)} "
                "cells; expected one folder per cell, so 2 with severities: correct class_dir_depth, or name a single "
                "cell"
            )
        elsewhere = tuple((cell, path) for cell, path in folders.items() if path != root / cell.path)
        published = at.dataset.folder_of(at.cells[0].corruption)
        is_whole = self.class_dir_depth == 2 and root in folders.values()
        missing = published if is_whole and not (root / published).is_dir() else ""
        return FolderTree(root=root, cells=at.cells, elsewhere=elsewhere, missing_folder=missing)

    def _folder(self, cell: Cell, dataset: Dataset) -> Path:
        root, shift = self.root.expanduser(), dataset.folder_of(cell.corruption)
        if self.class_dir_depth < 2:
            return root / shift if self.class_dir_depth else root
        folder = root / dataset.folder_of_cell(cell.corruption, cell.severity)
        is_alone = dataset.names == (cell.corruption,) and not cell.severity
        return root if is_alone and not folder.is_dir() else folder
