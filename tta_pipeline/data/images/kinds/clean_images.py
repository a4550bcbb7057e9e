"""Clean and training images of a source, and other fields that several kinds of source share."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, model_validator

from tta_pipeline.data.datasets.dataset import Dataset
from tta_pipeline.data.images.archived_images import ArchivedImages
from tta_pipeline.data.images.archives import SUFFIXES
from tta_pipeline.data.images.folder_tree import FolderTree
from tta_pipeline.data.images.images_section import ImagesContext
from tta_pipeline.data.images.listing import Listing, Source
from tta_pipeline.data.images.numbered_classes import NumberedClasses
from tta_pipeline.data.labels.label_files import read_devkit_ids, read_ground_truth
from tta_pipeline.data.labels.splits import Split, read_split
from tta_pipeline.domain.cells import CLEAN, TRAIN, Cell
from tta_pipeline.util.config_model import ConfigModel

MD5_BY_ARCHIVE: Mapping[str, str] = {
    "ILSVRC2012_img_train.tar": "1d675b47d978889d74fa0da5fadfb00e",
    "ILSVRC2012_img_val.tar": "29b22e2961454d5413ddabcf34fc5622",
    "ILSVRC2012_devkit_t12.tar.gz": "fa75699e90414af021442c21a62c3abf",
}
"""The md5 of each published archive of ILSVRC2012, from torchvision: datasets/imagenet.py, ARCHIVE_META."""


def _pattern_with_a_group(pattern: str) -> str:
    try:
        num_groups = re.compile(pattern).groups
    except re.error as error:
        raise ValueError(
            f"{pattern!r} is not a regular expression: {error}; expected one with a group for the class name"
        ) from None
    if not num_groups:
        raise ValueError(f"{pattern!r} has no group; expected parentheses around the class name: add them")
    return pattern


def _with_a_number(name: str) -> str:
    if not re.fullmatch(r"[^%/]*%0[1-9]d[^%/]*", name):
        raise ValueError(f"the file name {name!r} has no number of fixed width; expected one, such as in test_%05d.png")
    return name


ClassPattern = Annotated[str, AfterValidator(_pattern_with_a_group)]


class ClassesOfFiles(ConfigModel):
    """Fields with the classes of single files, for images without class folders."""

    ground_truth: Path | None = None
    """File with the class of each image: lines with a file name and its class, a table with a header such as
    `image,label`, the classes of image 1, 2 and so on line by line, or a JSON object from file name to class."""
    ground_truth_name: Annotated[str, AfterValidator(_with_a_number)] = "ILSVRC2012_val_%08d.JPEG"
    """Pattern of file names, if the ground truth has only classes; the number is the line number, from 1."""
    devkit: Path | None = None
    """The devkit's `meta.mat`. Needed if the ground truth uses the devkit's class numbers."""
    class_pattern: ClassPattern | None = None
    """Regular expression for `<folder>/<file>` whose first group is the class. Default: the folder is the class."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.ground_truth is not None and self.class_pattern is not None:
            raise ValueError(
                "both ground_truth and class_pattern are given, and each determines the classes; expected only one: "
                "leave the other out"
            )
        return self

    def require_classes_of_flat(self, layout: str) -> None:
        """Refuse the *layout* `flat` if neither ground truth nor pattern gives the classes of its files.

        Raises:
            ValueError: there is neither.
        """
        if layout == "flat" and self.ground_truth is None and self.class_pattern is None:
            raise ValueError(
                "`layout: flat` needs the classes of the files; expected ground_truth or class_pattern: add one of them"
            )

    def classes_by_file(self, at: ImagesContext) -> Mapping[str, str]:
        """Return the class of each file in the ground truth; nothing if there is no ground truth."""
        if self.ground_truth is None:
            return {}
        ids = read_devkit_ids(self.devkit.expanduser()) if self.devkit else None
        path = self.ground_truth.expanduser()
        classes = at.classes() if at.dataset.class_folders == "names" else ()  # else `NumberedClasses` does it
        return read_ground_truth(path, ids, self.ground_truth_name, classes=classes)


class ListedBySplit(ConfigModel):
    """The field with the split of a dataset, for a dataset with one name and no severity."""

    split: Path | None = None
    """File that lists the test images with their labels and class names, such as CoOp's `split_zhou_*.json`; other
    images are left out. Default: the dataset's own file next to the images, if it has one."""

    def has_split(self, dataset: Dataset) -> bool:
        """Return whether a split lists the images of *dataset*."""
        return self.split is not None or dataset.split is not None

    def read_split(self, dataset: Dataset, *, beside: Path) -> Split | None:
        """Return the split; None if there is none.

        Args:
            dataset: The dataset, whose split is looked for if the field is not set.
            beside: The folder to search.
        """
        if not self.has_split(dataset):
            return None
        path = self.split.expanduser() if self.split else beside / str(dataset.split)
        names = dataset.split_classes
        return read_split(path, path.parent / names if names else None)

    def split_problems(self, dataset: Dataset) -> Iterator[str]:
        """Yield a sentence if *dataset* cannot have a split."""
        if self.split is not None and not dataset.is_undivided:
            yield (
                f"images.split is given for the dataset {dataset.name}, which has several cells; expected a set "
                "with one name and no severity"
            )


class CleanImages(ClassesOfFiles):
    """Uncorrupted images for testing or training, in a folder or archive. A path alone is short for `{path: ...}`."""

    path: Path
    """Folder of class folders, root of torchvision's `ImageNet` (its `val` is used, or its `train` for training
    images), tar, tar.gz or zip."""
    layout: Literal["classes", "nested", "flat"] = "classes"
    """Layout of an archive or folder: class folders; a tar per class, like ILSVRC2012_img_train.tar; or only files,
    like ILSVRC2012_img_val.tar, with classes from the ground truth or the class pattern."""

    published: Literal["ilsvrc2012"] | None = None
    """`ilsvrc2012` checks the md5 of the published ILSVRC2012_img_train.tar or ILSVRC2012_img_val.tar while
    reading. Default: not checked."""

    @model_validator(mode="after")
    def _is_published(self) -> Self:
        if self.published is not None and self.path.name not in MD5_BY_ARCHIVE:
            raise ValueError(
                f"{self.published} has no archive {self.path}; expected one of {', '.join(MD5_BY_ARCHIVE)}: rename "
                "the file as it was published, or leave `published` out"
            )
        return self

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        self.require_classes_of_flat(self.layout)
        if self.layout != "flat" and self.ground_truth is not None:
            raise ValueError(
                f"ground_truth {self.ground_truth} does not apply to layout {self.layout}; expected `layout: flat` "
                "with it: correct one of them"
            )
        return self

    @property
    def is_archive(self) -> bool:
        """Whether the images are in an archive."""
        return self.path.suffix in SUFFIXES

    def open(self, at: ImagesContext, cell: Cell = CLEAN) -> Source:
        """Return the images as *cell*, `clean` or `train`; class folders may be named by numbers of the classes."""
        images = self._images(at, cell)
        is_by_folder = self.layout != "flat" and self.class_pattern is None
        return NumberedClasses(source=images, classes=at.classes, must=False) if is_by_folder else images

    def _images(self, at: ImagesContext, cell: Cell) -> Source:
        path = self.path.expanduser()
        if self.is_archive:
            return ArchivedImages(
                archives=(path,),
                cells=(cell,),
                spill_root=at.spill_root / cell.corruption,
                expected_md5=MD5_BY_ARCHIVE if self.published else {},
                layout=self.layout,
                classes_by_file=self.classes_by_file(at),
                class_pattern=self.class_pattern,
                named=at.classes,
                progress=at.progress,
            )
        # torchvision's ImageNet keeps the training images next to the validation images.
        part = path / ("train" if cell == TRAIN else "val")
        folder = part if part.is_dir() else path
        return FolderTree(
            root=folder,
            cells=(cell,),
            elsewhere=((cell, folder),),
            classes_by_file=self.classes_by_file(at),
            class_pattern=self.class_pattern,
            named=at.classes,
        )


def _as_clean_images(value: Any) -> Any:
    return {"path": value} if isinstance(value, str | Path) else value


Clean = Annotated[CleanImages, BeforeValidator(_as_clean_images, json_schema_input_type=str | CleanImages)]


@dataclass(frozen=True, kw_only=True)
class Routed:
    """*source*, except for the cells in *elsewhere*; only *source* determines the classes."""

    source: Source
    elsewhere: Mapping[Cell, Source]

    def class_names(self) -> tuple[str, ...]:
        """Return the classes of the main source."""
        return self.source.class_names()

    def version(self, cell: Cell) -> str:
        """Return the version of *cell* from the source that has it."""
        return self._of(cell).version(cell)

    def together(self, cell: Cell, among: Sequence[Cell]) -> tuple[Cell, ...]:
        """Return the cells of *among* that are best prepared with *cell*."""
        return self._of(cell).together(cell, [other for other in among if other not in self.elsewhere])

    @contextmanager
    def prepared(self, cells: Sequence[Cell]) -> Iterator[None]:
        """Prepare *cells*, each in the source that has it."""
        with ExitStack() as stack:
            for cell in cells:
                if cell in self.elsewhere:
                    stack.enter_context(self.elsewhere[cell].prepared([cell]))
            stack.enter_context(self.source.prepared([cell for cell in cells if cell not in self.elsewhere]))
            yield

    def listing(self, cell: Cell) -> Listing:
        """Return the images of *cell* from the source that has it."""
        return self._of(cell).listing(cell)

    def _of(self, cell: Cell) -> Source:
        return self.elsewhere.get(cell, self.source)


def add_clean_and_train(
    images: Source, at: ImagesContext, *, clean: CleanImages | None = None, train: CleanImages | None = None
) -> Source:
    """Return *images* together with the *clean* and the *train* images, if there are any."""
    sets = {cell: found.open(at, cell) for cell, found in ((CLEAN, clean), (TRAIN, train)) if found is not None}
    return Routed(source=images, elsewhere=sets) if sets else images
