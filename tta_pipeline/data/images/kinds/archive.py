"""The kind `archive`: tar and zip archives as downloaded."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from tta_pipeline.data.datasets.dataset import Dataset, PublishedArchive
from tta_pipeline.data.datasets.dataset_files import find_dataset, shipped_sets
from tta_pipeline.data.images.archived_images import ArchivedImages
from tta_pipeline.data.images.choose_dataset import Place, choose_dataset
from tta_pipeline.data.images.detect import Inspection, find_split_set, inspect_archive
from tta_pipeline.data.images.image_options import ImageOptions
from tta_pipeline.data.images.images_section import Cells, ConvertedSection, ImagesContext, Survey, filter_by_prefix
from tta_pipeline.data.images.kinds.clean_images import ClassesOfFiles, Clean, ListedBySplit, add_clean_and_train
from tta_pipeline.data.images.kinds.npy import NpyImages, open_arrays, survey_arrays
from tta_pipeline.data.images.listed_images import ListedImages
from tta_pipeline.data.images.listing import Source
from tta_pipeline.data.images.numbered_classes import resolve_class_numbers
from tta_pipeline.data.images.packed_arrays import first_is_array
from tta_pipeline.data.images.shard_files import is_tar_like
from tta_pipeline.data.labels.splits import Split
from tta_pipeline.domain.cells import Cell
from tta_pipeline.errors import BenchmarkFileError, ImagesError
from tta_pipeline.util.short_lists import abbreviate_list


class ArchiveSection(ListedBySplit, ClassesOfFiles, ConvertedSection):
    """Tar and zip archives as downloaded, without unpacking.

    Keep the archives until the shards are written. Compressed archives and zips are copied cell by cell while they are
    read. A single uncompressed archive of arrays, such as CIFAR-10-C.tar, works, too.
    """

    kind: Literal["archive"]
    archives: tuple[Path, ...] = Field(min_length=1)
    """Paths of the archives."""
    published: str | None = None
    """Dataset whose published md5 the archives must match, such as `imagenet_c`. Default: not checked."""
    md5: dict[str, str] = Field(default_factory=dict)
    """Expected md5 of more archives, by file name."""
    layout: Literal["corruptions", "classes", "nested", "flat"] = "corruptions"
    """Layout of the archives: `corruptions`, or one set in a layout of clean images."""
    clean: Clean | None = None
    """The uncorrupted images."""
    train: Clean | None = None
    """Images to train models on."""

    def problems(self, cells: Sequence[Cell], dataset: Dataset) -> Iterator[str]:
        """Yield a sentence if there is a split for several cells."""
        del cells
        yield from self.split_problems(dataset)

    @field_validator("published")
    @classmethod
    def _has_archives(cls, name: str | None, info: ValidationInfo) -> str | None:
        if name is None:
            return None
        try:
            found = find_dataset(name, Path((info.context or {}).get("folder", ".")))
        except BenchmarkFileError as error:
            raise ValueError(str(error)) from None
        if not found.archives:
            known = ", ".join(known for known, dataset in shipped_sets().items() if dataset.archives)
            raise ValueError(
                f"there are no known archives for {name}; expected one of {known}: correct `published`, or leave it out"
            )
        # Sums are looked up by file name, so a renamed archive would not be compared with any sum.
        if unknown := [path.name for path in info.data.get("archives", ()) if path.name not in found.archives]:
            raise ValueError(
                f"{name} has no archives named {abbreviate_list(unknown)}; expected {', '.join(found.archives)}: "
                "rename your files to their published names, or leave `published` out"
            )
        return name

    @field_validator("md5")
    @classmethod
    def _are_sums(cls, md5: dict[str, str]) -> dict[str, str]:
        for name, digest in md5.items():
            if len(digest) != 32 or set(digest.lower()) - set("0123456789abcdef"):
                raise ValueError(
                    f"the md5 of {name} is {digest!r}; expected 32 hexadecimal digits: copy it from the dataset's page"
                )
        return {name: digest.lower() for name, digest in md5.items()}

    @model_validator(mode="after")
    def _has_archives_of_sums(self) -> Self:
        names = [path.name for path in self.archives]
        if unknown := [name for name in self.md5 if name not in names]:
            raise ValueError(
                f"an md5 is given for {abbreviate_list(unknown)}, which are not among the archives; expected names of "
                f"{abbreviate_list(names)}: correct the names, or their md5 is never compared"
            )
        return self

    @model_validator(mode="after")
    def _says_classes(self) -> Self:
        self.require_classes_of_flat(self.layout)
        return self

    options: ClassVar[frozenset[str]] = frozenset(
        {"class_dir_depth", "layout", "expect_md5", *ClassesOfFiles.model_fields}
    )

    @classmethod
    def from_options(cls, options: ImageOptions) -> Self | None:
        """Return the section of one or more archives; with class_dir_depth 0 they are one set."""
        if missing := [str(path) for path in options.sources if not path.is_file()]:
            raise ImagesError(
                f"{', '.join(missing)} does not exist; expected a folder, or tar or zip archives: check the path"
            )
        is_one_set = options.class_dir_depth == 0 and options.layout == "corruptions"
        fields = {
            "archives": options.sources,
            "layout": "classes" if is_one_set else options.layout,
            "md5": dict(options.expect_md5),
            **{name: getattr(options, name) for name in ClassesOfFiles.model_fields},
        }
        return cls.model_validate({"kind": "archive", **fields})

    @property
    def is_one_set(self) -> bool:
        """Whether the archives have the layout of a single cell."""
        return self.layout != "corruptions"

    @property
    def has_arrays(self) -> bool:
        """Whether the only archive contains array files, like CIFAR-10-C.tar, judged by its first file."""
        first = self.archives[0].expanduser()
        may_have = self.layout == "corruptions" and len(self.archives) == 1 and first.is_file()
        return may_have and first_is_array(first)

    @property
    def one_pass_bytes(self) -> int:
        """Size of the archives, unless they are read in place."""
        return 0 if self.has_arrays else sum(path.stat().st_size for path in self.archives if path.exists())

    @contextmanager
    def opened_whole(self, at: ImagesContext, prefixes: Sequence[str] = ()) -> Iterator[tuple[Source, Cells]]:
        """Yield the source with the cells that one pass over the archives finds."""
        if self.has_arrays:
            packed = self._arrays(at)
            cells = tuple(cell for cell in filter_by_prefix(at.cells, prefixes) if packed.has_cell(cell))
            yield replace(packed, cells=cells), cells
            return
        wanted = at.cells if self.is_one_set else filter_by_prefix(at.cells, prefixes)
        images = self.images(replace(at, cells=wanted))
        # One pass over a single archive finds its cells; with several, the archive of each cell must be known before.
        with images.prepared(wanted if len(self.archives) == 1 else ()):
            yield self._with_names(images, at), images.find_cells()

    @classmethod
    def detect(cls, place: Place) -> Survey | None:
        """Return the survey of the given archives, or of all archives in the given folder."""
        paths = _archives_in(place.folder) if place.folder else place.paths
        place = replace(place, paths=(*paths, *place.paths))
        if paths and (source := cls(kind="archive", archives=paths)).has_arrays:
            return survey_arrays(source, paths[0], place)
        seen = Inspection(place=place)
        for path in paths:
            inspect_archive(path, seen)
        if paths and (listed := find_split_set(paths[0].parent, place)):
            return Survey.of_split(
                cls(kind="archive", archives=paths), *listed, image_size=seen.image_size, other_size=seen.other_size
            )
        if not seen.counts:
            seen.count_shifts_without_severities()
        if not seen.counts:
            return None
        found = choose_dataset(seen.counts, place, seen.cell_images)
        return Survey(
            source=cls(kind="archive", archives=paths),
            dataset=found.dataset,
            corruptions=found.corruptions,
            severities=found.severities,
            num_classes=len(seen.classes),
            image_size=seen.image_size,
            other_size=seen.other_size,
            remarks=(*found.remarks, *seen.remarks),
        )

    def find_published_set(self, dataset: Dataset) -> str | None:
        """Return the dataset whose published archives have these names; only their md5 can prove the match."""
        names = {path.name for path in self.archives}
        sets = (dataset, *shipped_sets().values())
        return next((each.name for each in sets if names <= each.archives.keys()), None)

    def open(self, at: ImagesContext) -> Source:
        """Return the images."""
        images = self._arrays(at) if self.has_arrays else self._with_names(self.images(at), at)
        return add_clean_and_train(images, at, clean=self.clean, train=self.train)

    def _arrays(self, at: ImagesContext) -> NpyImages:
        path = self.archives[0].expanduser()
        return open_arrays(path, at, expected_md5=self._md5(at.dataset).get(path.name))

    def _split(self, at: ImagesContext) -> Split | None:
        return self.read_split(at.dataset, beside=self.archives[0].expanduser().parent)

    def _with_names(self, images: ArchivedImages, at: ImagesContext) -> Source:
        """Return *images* with the classes of the split, or with class names instead of numbers."""
        split = self._split(at)
        return resolve_class_numbers(images, at) if split is None else ListedImages(source=images, split=split)

    def _md5(self, dataset: Dataset) -> dict[str, str]:
        """Return the expected md5 of each archive for which one is known, by file name."""
        return {name: found.md5 for name, found in self._published(dataset).items() if found.md5} | self.md5

    def images(self, at: ImagesContext) -> ArchivedImages:
        """Return the images of the archives, without the clean and training images."""
        published, split = self._published(at.dataset), self._split(at)
        return ArchivedImages(
            archives=tuple(path.expanduser() for path in self.archives),
            cells=at.cells,
            spill_root=at.spill_root,
            expected_md5=self._md5(at.dataset),
            known_corruptions={name: found.shifts for name, found in published.items() if found.shifts},
            layout=self.layout if split is None else "classes",
            classes_by_file=self.classes_by_file(at),
            classes_by_path=split.class_by_path if split else {},
            folders=_folders(at),
            may_be_whole=not self.is_one_set and split is None and at.dataset.is_undivided,
            class_pattern=self.class_pattern,
            named=at.classes,
            progress=at.progress,
        )

    def places(self, cell: Cell, dataset: Dataset) -> tuple[Path, ...]:
        """Return the archives that may hold *cell*, judged by their names alone, without reading them."""
        shifts = {name: found.shifts for name, found in self._published(dataset).items() if found.shifts}
        return tuple(
            path.expanduser() for path in self.archives if cell.corruption in shifts.get(path.name, (cell.corruption,))
        )

    def _published(self, dataset: Dataset) -> Mapping[str, PublishedArchive]:
        """Return the published archives by file name."""
        if self.published is None:
            return {}
        known = {**shipped_sets(), dataset.name: dataset}
        if self.published not in known:
            raise ImagesError(
                f"images.published is {self.published}, but dataset is {dataset.name}; expected the same name in "
                "both, or another name of a published dataset: correct one of them"
            )
        return known[self.published].archives


def _folders(at: ImagesContext) -> dict[Cell, str]:
    """Return the folders in archives of the cells that are not in `<shift>/<severity>`."""
    below = {cell: at.dataset.folder_of_cell(cell.corruption, cell.severity) for cell in at.cells}
    return {cell: folder for cell, folder in below.items() if folder != cell.path}


def _archives_in(folder: Path) -> tuple[Path, ...]:
    found = (path for path in folder.glob("[!.]*") if is_tar_like(path.name) or path.suffix.lower() == ".zip")
    return tuple(path for path in sorted(found) if path.is_file())
