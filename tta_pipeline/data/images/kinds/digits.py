"""The kind `digits`: real handwritten digits (scikit-learn's `load_digits`), corrupted here and stored like ImageNet-C.

Or drawn letters instead, which no digit classifier has learned.

The images are generated: results on them are marked as generated and are not comparable with any published table.
"""

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image
from pydantic import Field, JsonValue

from tta_pipeline.data import corruptions
from tta_pipeline.data.datasets.dataset import Dataset
from tta_pipeline.data.images.folder_tree import FolderTree
from tta_pipeline.data.images.generated_encoding import GENERATOR_VERSION, SUFFIXES, Encoding, randomness_key
from tta_pipeline.data.images.images_section import ImagesContext
from tta_pipeline.data.images.kinds.generated_section import CorruptedSection
from tta_pipeline.data.images.kinds.letters import LETTERS, drawn_letters
from tta_pipeline.data.images.listing import Source
from tta_pipeline.domain.cells import CLEAN, TRAIN, Cell
from tta_pipeline.errors import ImagesError
from tta_pipeline.util.config_model import ConfigModel, Seed
from tta_pipeline.util.files import published_folder, write_atomically

IMAGE_SIZE = 32
"""Height and width of the enlarged digits, in pixels."""
CLASSES = tuple(map(str, range(10)))
"""Classes of the digits."""
_SUFFIXES = tuple(suffix.lower() for suffix in SUFFIXES)


class DigitsSettings(ConfigModel):
    """Settings that determine every byte of the generated images."""

    seed: int
    num_test: int
    jpeg_quality: int | None
    """JPEG quality of the images; None: lossless."""
    severity_table: str
    generator_version: int = GENERATOR_VERSION


class LettersSettings(DigitsSettings):
    """Settings that determine every byte of generated images of letters."""

    characters: Literal["letters"]


class DigitsSection(CorruptedSection):
    """Handwritten digits of scikit-learn, corrupted by this project."""

    kind: Literal["digits"]
    characters: Literal["digits", "letters"] = "digits"
    """What the images show: handwritten digits; or letters drawn here, for streams with unknown images."""
    severity_table: Literal["digits", "imagenet_c", "tiny_imagenet_c", "cifar_c"] = "digits"
    """Table of severity constants: for these digits, or for photographs of 224, 64 or 32 pixels."""
    seed: Seed = 0
    """Seed of the split into training and test images, and of the corruptions."""
    num_test: int = Field(default=600, ge=10, le=1700)
    """Number of test images. The rest is for training."""
    is_drawn: ClassVar[bool] = True

    @property
    def has_clean(self) -> bool:
        """Whether there are uncorrupted test images: always."""
        return True

    @property
    def has_loose_train(self) -> bool:
        """Whether each training image is a file: always."""
        return True

    @property
    def has_train(self) -> bool:
        """Whether there are images to train source models on: always."""
        return True

    @property
    def settings(self) -> DigitsSettings:
        """Settings with which the digits are generated."""
        plain = DigitsSettings(
            seed=self.seed,
            num_test=self.num_test,
            severity_table=self.severity_table,
            jpeg_quality=self.stored_quality,
        )
        if self.characters == "digits":
            return plain
        return LettersSettings(**plain.model_dump(), characters="letters")

    @property
    def recipe(self) -> dict[str, JsonValue]:
        """Every setting that decides a byte of the images."""
        return self.settings.model_dump(mode="json")

    def open(self, at: ImagesContext) -> Source:
        """Return the generated digits, which must have the settings of this section."""
        return GeneratedDigits(root=at.generated_root, cells=(*at.cells, CLEAN, TRAIN), settings=self.settings)

    def places(self, cell: Cell, dataset: Dataset) -> tuple[Path, ...]:  # noqa: ARG002 - drawn, and found nowhere
        """Return nothing: the digits are generated here."""
        return ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Digits:
    """Images of one split: uint8 (N, 32, 32, 3) RGB, labels int (N,), and a name without suffix for each."""

    classes: tuple[str, ...]
    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]
    names: tuple[str, ...]


class GeneratedCell(ConfigModel):
    """The settings of a generated cell, and digests of its files."""

    settings: LettersSettings | DigitsSettings
    num_images: int
    content_sha256: str
    """sha256 of the names and bytes of the written files."""
    listing_version: str
    """Digest of the files' names, sizes and modification times."""


def generate_cell(root: Path, cell: Cell, settings: DigitsSettings) -> GeneratedCell:
    """Write the images of *cell* under *root*, unless they exist unchanged, and return their record.

    Existing files are read in full, because sizes and times do not prove their content.
    """
    existing = read_generated_cell(root, cell)
    if existing is not None and existing == _describe_files(root, cell, settings):
        return existing
    digits = _split(cell, settings)
    images = _corrupt_digits(digits, cell, settings)
    encoding = Encoding(jpeg_quality=settings.jpeg_quality)
    with published_folder(root / cell.path) as folder:
        for class_name in digits.classes:
            (folder / class_name).mkdir()
        for name, label, image in zip(digits.names, digits.labels, images, strict=True):
            (folder / digits.classes[label] / f"{name}{encoding.suffix}").write_bytes(encoding.encode(image))
    generated = _describe_files(root, cell, settings)
    write_atomically(_record_path(root, cell), generated.model_dump_json(indent=1).encode())
    return generated


def read_generated_cell(root: Path, cell: Cell) -> GeneratedCell | None:
    """Return the record of the generated *cell*; None if there is none that this version can read."""
    path = _record_path(root, cell)
    if not path.is_file() or not (root / cell.path).is_dir():
        return None
    try:
        return GeneratedCell.model_validate_json(path.read_bytes())
    except (OSError, ValueError):
        return None  # damaged: the images are then generated again


@dataclass(frozen=True, kw_only=True)
class GeneratedDigits(FolderTree):
    """The generated digits of a benchmark."""

    settings: DigitsSettings
    """Settings that the images must have been generated with."""
    suffixes: tuple[str, ...] = _SUFFIXES

    def version(self, cell: Cell) -> str:
        """Return the digest of the listing of *cell*.

        Raises:
            ImagesError: the images were generated with other settings.
        """
        drawn = read_generated_cell(self.root, cell)
        if drawn is not None and drawn.settings != self.settings:
            raise ImagesError(
                f"{self.root / cell.path} was generated with {drawn.settings.model_dump()}, but the benchmark file "
                f"says {self.settings.model_dump()}; expected the same settings: rematerialize `images` for this cell"
            )
        return super().version(cell)


def digit_tree(root: Path, cells: tuple[Cell, ...]) -> FolderTree:
    """Return the source of the generated images of *cells* under *root*."""
    return FolderTree(root=root, cells=cells, suffixes=_SUFFIXES)


def _record_path(root: Path, cell: Cell) -> Path:
    # Next to the tree, which holds only the folders that ImageNet-C would have.
    return root.with_name(f"{root.name}_records") / f"{cell.corruption}-{cell.severity}.json"


def _describe_files(root: Path, cell: Cell, settings: DigitsSettings) -> GeneratedCell:
    """Return the record of the present files, as if generated with *settings*."""
    listing = digit_tree(root, (cell,)).listing(cell)
    content = hashlib.sha256()
    for image in listing.images:
        content.update(image.name.encode("utf-8", "surrogateescape") + image.read())
    return GeneratedCell(
        settings=settings,
        num_images=len(listing.images),
        content_sha256=content.hexdigest(),
        listing_version=listing.version,
    )


def _corrupt_digits(digits: Digits, cell: Cell, settings: DigitsSettings) -> npt.NDArray[np.uint8]:
    if cell in (CLEAN, TRAIN):
        return digits.images
    return corruptions.corrupt(
        digits.images,
        cell.corruption,
        cell.severity,
        keys=[randomness_key(name) for name in digits.names],
        seed=settings.seed,
        table=settings.severity_table,
    )


def _split(cell: Cell, settings: DigitsSettings) -> Digits:
    """Return the training images for the cell `train`, the test images for every other cell."""
    digits = _all_letters() if isinstance(settings, LettersSettings) else _all_digits()
    shuffled = np.random.default_rng(settings.seed).permutation(len(digits.names))
    chosen = np.sort(shuffled[settings.num_test :] if cell == TRAIN else shuffled[: settings.num_test])
    return Digits(
        classes=digits.classes,
        images=digits.images[chosen],
        labels=digits.labels[chosen],
        names=tuple(digits.names[index] for index in chosen),
    )


@cache
def _all_digits() -> Digits:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = np.stack([_enlarge(image) for image in bunch.images])
    names = tuple(f"digit_{index:04d}" for index in range(len(images)))
    return Digits(classes=CLASSES, images=images, labels=bunch.target.astype(np.int64), names=names)


@cache
def _all_letters() -> Digits:
    drawn, labels = drawn_letters()
    images = np.stack([_enlarge(image) for image in drawn])
    names = tuple(f"letter_{index:04d}" for index in range(len(images)))
    return Digits(classes=tuple(LETTERS), images=images, labels=labels, names=names)


def _enlarge(image: npt.NDArray[np.float64]) -> npt.NDArray[np.uint8]:
    """Enlarge one 8x8 image with values 0 to 16 to 32x32 RGB."""
    grey = Image.fromarray((image * (255 / 16)).astype(np.uint8))
    enlarged = grey.resize((IMAGE_SIZE, IMAGE_SIZE), Image.Resampling.BICUBIC).convert("RGB")
    return np.asarray(enlarged)
