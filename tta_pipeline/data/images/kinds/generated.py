"""The kind `generated`: corruptions made by this project."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from tta_pipeline.data.datasets.dataset import Dataset
from tta_pipeline.data.datasets.dataset_files import shipped_sets
from tta_pipeline.data.images.choose_dataset import Place, is_shift
from tta_pipeline.data.images.class_folders import WRAPPERS
from tta_pipeline.data.images.detect import Inspection, find_first_file, inspect_archive, read_image_size
from tta_pipeline.data.images.folder_tree import discover_tree
from tta_pipeline.data.images.generated_encoding import Encoding
from tta_pipeline.data.images.generated_images import GeneratedImages
from tta_pipeline.data.images.images_section import ImagesContext, Survey
from tta_pipeline.data.images.kinds.clean_images import Clean, CleanImages, add_clean_and_train
from tta_pipeline.data.images.kinds.generated_section import CorruptedSection
from tta_pipeline.data.images.listing import Source
from tta_pipeline.domain.cells import Cell
from tta_pipeline.errors import ImagesError
from tta_pipeline.util.processes import MAX_PROCESSES


class GeneratedSection(CorruptedSection):
    """Corruptions made on your machine from clean images. Don't compare the results with published tables.

    Even the encoding matters: for a ResNet-20 on 1,000 images of CIFAR-10 at severity 5, JPEG of quality 85 instead of
    lossless storage raised the mean error from 58.1 to 59.8 % (source) and from 37.7 to 41.2 % (norm). The difference
    from the published images is not known.
    """

    kind: Literal["generated"]
    severity_table: Literal["imagenet_c", "tiny_imagenet_c", "cifar_c"]
    """Table of severity constants: for images of 224, 64 or 32 pixels."""
    clean: Clean
    """The uncorrupted images."""
    train: Clean | None = None
    """Images to train models on."""
    jobs: int = Field(default=1, ge=1, le=MAX_PROCESSES)
    """Number of processes that generate images."""

    @classmethod
    def detect(cls, place: Place) -> Survey | None:
        """Return the survey of uncorrupted images in class folders, or in one archive of class folders."""
        found = _in_folder(place) if place.folder else _in_archive(place)
        if found is None:
            return None
        num_classes, image_size = found
        return survey_clean_images(place.paths[0], num_classes, image_size)

    def open(self, at: ImagesContext) -> Source:
        """Return the generated images."""
        made = GeneratedImages(
            clean=self.clean.open(at),
            cells=at.cells,
            table=self.severity_table,
            seed=self.seed,
            encoding=Encoding(jpeg_quality=self.stored_quality),
            image_size=at.image_size,
            spill_root=at.spill_root,
            jobs=self.jobs,
        )
        return add_clean_and_train(made, at, train=self.train)

    def places(self, cell: Cell, dataset: Dataset) -> tuple[Path, ...]:  # noqa: ARG002 - all are made of the same
        """Return the clean images."""
        return (self.clean.path.expanduser(),)


def survey_clean_images(path: Path, num_classes: int, image_size: tuple[int, int] | None) -> Survey:
    """Return the survey of uncorrupted images at *path*."""
    dataset = shipped_sets()["imagenet_c"]
    is_square = image_size is not None and image_size[0] == image_size[1]
    size = image_size[0] if image_size and is_square else 224
    table: Literal["imagenet_c", "tiny_imagenet_c", "cifar_c"]
    table = "cifar_c" if size <= 48 else "tiny_imagenet_c" if size <= 128 else "imagenet_c"
    return Survey(
        source=GeneratedSection(kind="generated", clean=CleanImages(path=path), severity_table=table),
        dataset=dataset,
        corruptions=dataset.in_mean,
        severities=dataset.severities,
        num_classes=num_classes,
        image_size=image_size,
        remarks=("There are only uncorrupted images; the corruptions are made here, and results are marked so.",),
    )


def _in_folder(place: Place) -> tuple[int, tuple[int, int] | None] | None:
    """Return the number of classes and the size of uncorrupted images in class folders."""
    root = place.paths[0]
    folder = root / "val" if (root / "val").is_dir() else root
    image = find_first_file(folder)
    levels = [part for part in image.relative_to(folder).parts if part not in WRAPPERS] if image else []
    if len(levels) != 2:
        return None
    for name in (root.name, root.parent.name):
        if is_shift(name, place.sets):
            raise ImagesError(
                f"{root} contains the class folders of {name}; expected the folder above all corruptions: name the "
                "folder above"
            )
    return len(discover_tree(folder, class_dir_depth=0).class_names()), read_image_size(image) if image else None


def _in_archive(place: Place) -> tuple[int, tuple[int, int] | None] | None:
    """Return the number of classes and the size of uncorrupted images in the class folders of one archive."""
    if len(place.paths) > 1:
        return None
    seen = Inspection(place=place)
    inspect_archive(place.paths[0], seen)
    return (len(seen.loose_classes), seen.image_size) if seen.loose_classes and not seen.counts else None
