"""The kind `shards`: third-party shards."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ValidationError, model_validator

from tta_pipeline.data.datasets.dataset import Dataset
from tta_pipeline.data.images.choose_dataset import CellImages, Place
from tta_pipeline.data.images.detect import Inspection, find_cells_under
from tta_pipeline.data.images.existing_shards import (
    ExistingShards,
    classes_in_label_order,
    iterate_stated_classes,
)
from tta_pipeline.data.images.images_section import ImagesContext, ImagesSection, Survey, find_shared_place
from tta_pipeline.data.images.remote_shards import RemoteShards
from tta_pipeline.data.images.shard_files import find_shard_files, list_shard_files
from tta_pipeline.data.images.shard_layouts import IMAGE_TYPES
from tta_pipeline.data.images.tar_stream import opened_tar
from tta_pipeline.data.shard_locations import ShardsLocation, is_root_of_cells, url_for
from tta_pipeline.domain.cells import CLEAN, TRAIN, Cell

_MAX_SHARD_MEMBERS = 20_000


def _as_tuple(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _names(patterns: tuple[str, ...]) -> tuple[str, ...]:
    for pattern in patterns:
        if not pattern or "/" in pattern:
            raise ValueError(
                f"{pattern!r} is not a shard name; expected a file name without folders, such as val-*.tar"
            )
    return patterns


ShardPatterns = Annotated[
    tuple[str, ...],
    BeforeValidator(_as_tuple, json_schema_input_type=str | tuple[str, ...]),
    AfterValidator(_names),
]
"""One pattern or several: `*` matches any text, and braces are lists and ranges."""


class ShardsSection(ImagesSection):
    """Shards that exist already, `<root>/<corruption>/<severity>/*.tar`. They are read in place.

    Without severities: `<root>/<shift>/*.tar` or `<root>/<shift>/0/*.tar`. Only a `.tar.gz` is unpacked, into the data
    root.
    """

    kind: Literal["shards"]
    root: ShardsLocation
    """Folder of the shards, or an http, https, s3, gs or hf URL to stream them from. URLs may also name the shards
    themselves, with `{shift}` and `{severity}` for the cell:
    `https://example.org/{shift}/{severity}/shard-{00000..00015}.tar`."""
    files: ShardPatterns = ()
    """Patterns of shard names, such as `imagenet-val-*.tar` or `val-{000..127}.tar`. Default: all tars in the
    folder."""
    devkit: Path | None = None
    """The devkit's `meta.mat`, if the numbers in `.cls` members are `ILSVRC2012_ID` instead of labels."""
    clean: ShardsLocation | None = None
    """Folder or URL of shards with the uncorrupted images."""
    train: ShardsLocation | None = None
    """Folder or URL of shards with images to train models on."""
    train_files: ShardPatterns = ()
    """Patterns of shard names for training images, as in `files`. Default: all tars in the folder."""
    has_shards: ClassVar[bool] = True

    @model_validator(mode="after")
    def _in_one_place(self) -> Self:
        for field, place in (("clean", self.clean), ("train", self.train)):
            if place is not None and isinstance(place, Path) != isinstance(self.root, Path):
                raise ValueError(
                    f"root and {field} are on different sides, one a folder and the other a URL; expected two folders "
                    "or two URLs: move one of them"
                )
        if self.train_files and self.train is None:
            raise ValueError(
                f"train_files is {list(self.train_files)}, but train is missing; expected a folder under train: add it"
            )
        if self.is_remote and (self.files or self.train_files):
            raise ValueError(
                "`files` does not apply to a URL; expected the names in the URL itself, in braces: move them there"
            )
        if self.is_remote and self.devkit:
            raise ValueError(
                "`devkit` does not apply to shards at URLs, which must contain their labels; expected a local folder: "
                "download these shards first"
            )
        return self

    @property
    def is_remote(self) -> bool:
        """Whether the shards are at URLs and are streamed."""
        return not isinstance(self.root, Path)

    def problems(self, cells: Sequence[Cell], dataset: Dataset) -> Iterator[str]:
        """Yield a sentence if several of *cells* have the same URL."""
        del dataset
        if not isinstance(self.root, Path) and not is_root_of_cells(self.root):
            yield from find_shared_place("root", ((cell, url_for(url, cell)) for cell in cells for url in self.root))

    def open(self, at: ImagesContext) -> ExistingShards | RemoteShards:
        """Return the shards: in folders, or at URLs."""
        if not isinstance(self.root, Path):
            urls = tuple((cell, place) for cell, place in self._sets if isinstance(place, tuple))
            return RemoteShards(urls=self.root, elsewhere=urls)
        root = self.root.expanduser()
        folders = ((cell, self._folder(root, cell, at.dataset)) for cell in at.cells)
        elsewhere = [(cell, path) for cell, path in folders if path != root / cell.path]
        elsewhere += [(cell, place.expanduser()) for cell, place in self._sets if isinstance(place, Path)]
        return ExistingShards(
            root=root,
            cells=at.cells,
            elsewhere=tuple(elsewhere),
            files=self.files,
            train_files=self.train_files,
            devkit=self.devkit.expanduser() if self.devkit else None,
        )

    @property
    def _sets(self) -> tuple[tuple[Cell, ShardsLocation | None], ...]:
        """The places of the clean and the training images."""
        return ((CLEAN, self.clean), (TRAIN, self.train))

    @classmethod
    def detect(cls, place: Place) -> Survey | None:
        """Return the survey of a folder with shards for each cell."""
        found = find_cells_under(place, partial(_look_into_shards, place=place)) if place.folder else None
        if found is None or not list_shard_files(found[0].folder(found[1].cells[0])):
            return None
        tree, chosen, _ = found
        num_classes, seen, remarks = _inspect_shards(tree.folder(chosen.cells[0]), place)
        return Survey(
            source=cls(kind="shards", root=tree.root),
            dataset=chosen.dataset,
            corruptions=chosen.corruptions,
            severities=chosen.severities,
            num_classes=num_classes,
            image_size=seen.image_size,
            other_size=seen.other_size,
            remarks=(*chosen.remarks, *remarks),
        )

    def places(self, cell: Cell, dataset: Dataset) -> tuple[Path, ...]:
        """Return the folder of the shards of *cell*; empty at URLs, so that no server is polled every minute."""
        place = self.own_place(cell, dataset)
        return (place,) if place else ()

    def own_place(self, cell: Cell, dataset: Dataset) -> Path | None:
        """Return the folder of the shards of *cell*; None at URLs."""
        return self._folder(self.root.expanduser(), cell, dataset) if isinstance(self.root, Path) else None

    @staticmethod
    def _folder(root: Path, cell: Cell, dataset: Dataset) -> Path:
        folder = root / dataset.folder_of_cell(cell.corruption, cell.severity)
        return root / cell.path if not cell.severity and (root / cell.path).is_dir() else folder


class _Manifest(BaseModel):
    """The fields that are read from a manifest next to the shards."""

    classes: tuple[str, ...]
    num_samples: int


def _look_into_shards(folder: Path, *, place: Place) -> CellImages:
    """Return the known facts about the images in the shards in *folder*; without a manifest, only their size."""
    if not list_shard_files(folder):
        return CellImages(num_images=None, num_classes=None, size=None)
    _, seen, _ = _inspect_shards(folder, place)
    manifest = _read_manifest(folder)
    return CellImages(
        num_images=manifest.num_samples if manifest else None,
        num_classes=len(manifest.classes) if manifest else None,
        size=seen.other_size or seen.image_size,
    )


def _read_manifest(folder: Path) -> _Manifest | None:
    try:
        return _Manifest.model_validate_json((folder / "manifest.json").read_bytes())
    except (OSError, ValidationError):
        return None


def _inspect_shards(folder: Path, place: Place) -> tuple[int, Inspection, list[str]]:
    """Return number of classes, image sizes and remarks for the shards in *folder*, from manifest or first shard."""
    path = find_shard_files(folder)[0]
    seen = Inspection(place=place)
    with opened_tar(path) as stream:
        suffixes = tuple(f".{kind}" for kind in IMAGE_TYPES)
        for entry in islice(stream, _MAX_SHARD_MEMBERS):
            seen.add_image(entry, stream, suffixes)
            if seen.other_size is not None:
                break
    if manifest := _read_manifest(folder):
        return len(manifest.classes), seen, []
    with opened_tar(path) as stream:
        stated = iterate_stated_classes(stream, path, max_members=_MAX_SHARD_MEMBERS)
        num_classes = len(classes_in_label_order((found for _, found in stated), where=None))
    remark = f"The classes were counted in {path.name} of one cell; other shards may have more."
    return num_classes, seen, [remark]
