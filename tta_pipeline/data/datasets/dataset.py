"""A dataset: the shifts of a robustness dataset, and facts about its publication."""

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tta_pipeline.domain.locations import RESULT_FOLDERS
from tta_pipeline.util.config_model import ConfigModel, Name
from tta_pipeline.util.nearest_names import name_choices

FILE_PATTERN = r"^[^/.][^/]*$"
"""Pattern of a file's name without a folder."""
SHIFT_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_+-]*(\.[A-Za-z0-9_+-]+)*$"
"""Pattern of shift names, which are folders and parts of partition keys: letters, digits, `_ + -` and single dots."""
MAX_SEVERITY = 100
ShiftName = Annotated[str, Field(pattern=SHIFT_PATTERN, max_length=100)]
SeverityNumber = Annotated[int, Field(ge=1, le=MAX_SEVERITY)]
RESERVED_SHIFTS = frozenset({"clean", "train"})
"""Names of clean and training images, which no shift may have."""


class PublishedArchive(ConfigModel):
    """A published archive of a dataset."""

    url: str | None = None
    """URL of the download."""
    md5: Annotated[str, Field(pattern="^[0-9a-f]{32}$")] | None = None
    """The publisher's md5, if known."""
    size_bytes: int | None = Field(default=None, gt=0)
    """Published size in bytes."""
    shifts: tuple[ShiftName, ...] = ()
    """Shifts in the archive. Empty: all shifts of the dataset, or unknown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShiftFacts:
    """Facts about a shift in a result record."""

    dataset: str
    shift_position: int
    """Position in the dataset, from 1; 0 for clean images."""
    shift_family: str | None
    shift_group: str | None
    counts_in_mean: bool


class Dataset(ConfigModel):
    """The shifts of one dataset, in the order in which papers stream them."""

    name: Name
    """Name of the dataset, as in the column `dataset`."""
    title: str = ""
    """Name of the dataset in tables and plots."""
    names: tuple[ShiftName, ...] = Field(min_length=1)
    """Shifts in order: corruptions, splits, or a single name for an undivided dataset."""
    severities: tuple[SeverityNumber, ...] = ()
    """Severities, ascending. Empty if the dataset has none; its cells then have severity 0."""
    families: dict[str, tuple[ShiftName, ...]] = Field(default_factory=dict)
    """Shifts by family, such as noise and blur."""
    held_out: tuple[ShiftName, ...] = ()
    """Shifts reserved for tuning. Means don't include them."""
    classes: str | None = None
    """List of classes that comes with the project, such as `imagenet`. Default: the images' class folders."""
    num_classes: int | None = Field(default=None, gt=0)
    """Number of published classes, if `classes` names no list."""
    images_per_cell: int | None = Field(default=None, gt=0)
    """Number of published images per cell. A cell with another number is an error, unless the benchmark file sets
    `subset`."""
    image_size: int | None = Field(default=None, gt=0)
    """Height and width of the published images in pixels, if all are equal."""
    class_folders: Literal["names", "numbers"] = "names"
    """Names of class folders: class names, or their positions in `classes`, from 0."""
    folders: dict[ShiftName, str] = Field(default_factory=dict)
    """Published folder names of shifts, if they differ from the shifts' names."""
    severity_folder: Annotated[str, Field(pattern=r"^[^/.{}][^/{}]*\{\}$|^\{\}$")] = "{}"
    """Published folder name of a severity, with `{}` for its number, such as `intensity_level_{}`."""
    archives: dict[str, PublishedArchive] = Field(default_factory=dict)
    """Published archives by file name."""
    split: Annotated[str, Field(pattern=FILE_PATTERN)] | None = None
    """Name of the published file that lists the test images and their classes, such as `split_zhou_Food101.json`.
    Default: all images belong to the dataset, and their folders are the classes."""
    split_classes: Annotated[str, Field(pattern=FILE_PATTERN)] | None = None
    """Name of the file next to `split` with one class per line in label order, if `split` is a text file."""
    group: Name | None = None
    """Group of datasets over which papers average, such as `natural`, `fine_grained` or `corruption`."""
    templates: tuple[str, ...] = ()
    """Prompts for CLIP with `{}` for the class name, if the model's section has none. Default: `a photo of a {}.`."""
    citation: str = ""
    """Reference of the dataset's paper."""
    homepage: str = ""
    """URL of the dataset's page."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if "__" in self.name or self.name in RESULT_FOLDERS:
            raise ValueError(
                f"the dataset's name is {self.name!r}; expected a name without `__` that is not also a folder of "
                "results, such as tunings: rename it"
            )
        if len(set(self.names)) < len(self.names) or RESERVED_SHIFTS.intersection(name.lower() for name in self.names):
            raise ValueError(
                f"names is {list(self.names)}; expected unique names other than clean and train: correct them"
            )
        if len({name.lower() for name in self.names}) < len(self.names):
            raise ValueError(
                f"names is {list(self.names)}, and two of them differ only in their capitals; expected names that "
                "every file system tells apart: rename one"
            )
        if list(self.severities) != sorted(set(self.severities)):
            raise ValueError(
                f"severities is {list(self.severities)}; expected unique severities in ascending order: correct them"
            )
        for field, named in self._shifts_named().items():
            if unknown := sorted(set(named) - set(self.names)):
                choices = name_choices(unknown, self.names, listed_in="its field names")
                raise ValueError(
                    f"{field} lists {', '.join(unknown)}, which the dataset does not have; expected any of {choices}: "
                    "correct the names"
                )
        for folder in self.folders.values():
            if PurePosixPath(folder).is_absolute() or ".." in PurePosixPath(folder).parts:
                raise ValueError(
                    f"folders names {folder!r}, which is outside the root; expected a path inside the root"
                )
        if self.class_folders == "numbers" and self.classes is None:
            raise ValueError(
                "`class_folders: numbers` needs a list of classes; expected `classes`: add the list to which the "
                "numbers refer"
            )
        return self

    @model_validator(mode="after")
    def _can_have_a_split(self) -> Self:
        if self.split is not None and not self.is_undivided:
            raise ValueError(
                f"split is {self.split}, but the dataset has {len(self.names)} names and {len(self.severities)} "
                "severities; expected one name and no severity, since a split lists the images of a single cell: "
                "leave split out"
            )
        if self.split_classes is not None and self.split is None:
            raise ValueError(
                f"split_classes is {self.split_classes}, but split is missing; expected both or neither: add split"
            )
        if not all("{}" in text for text in self.templates):
            raise ValueError(
                f"templates is {list(self.templates)}; expected text with {{}} in place of the class name: add it"
            )
        return self

    def _shifts_named(self) -> dict[str, tuple[str, ...]]:
        """Return the shifts that each field names."""
        return {
            "families": tuple(name for names in self.families.values() for name in names),
            "held_out": self.held_out,
            "folders": tuple(self.folders),
            "archives": tuple(name for archive in self.archives.values() for name in archive.shifts),
        }

    @property
    def is_undivided(self) -> bool:
        """Whether the dataset is a single cell."""
        return len(self.names) == 1 and not self.severities

    @property
    def in_mean(self) -> tuple[str, ...]:
        """Shifts in the dataset's mean, in order."""
        return tuple(name for name in self.names if name not in self.held_out)

    @property
    def cell_severities(self) -> tuple[int, ...]:
        """Severities of the dataset's cells: 0 if it has none."""
        return self.severities or (0,)

    def family_of(self, shift: str) -> str | None:
        """Return the family of *shift*; None if it has none."""
        return next((family for family, names in self.families.items() if shift in names), None)

    def facts_of(self, shift: str) -> ShiftFacts:
        """Return the facts for a record about *shift*, one of the names or clean images."""
        return ShiftFacts(
            dataset=self.name,
            shift_position=self.names.index(shift) + 1 if shift in self.names else 0,
            shift_family=self.family_of(shift),
            shift_group=self.group,
            counts_in_mean=shift in self.in_mean,
        )

    def folder_of(self, shift: str) -> str:
        """Return the folder of *shift* in the published dataset."""
        return self.folders.get(shift, shift)

    def folder_of_cell(self, shift: str, severity: int) -> str:
        """Return the folder of *shift* at *severity* in the published dataset; severity 0 has no separate folder."""
        published = self.severity_folder.format(severity)
        return f"{self.folder_of(shift)}/{published}" if severity else self.folder_of(shift)

    def severity_of_folder(self, folder: str, shift_folder: str) -> str:
        """Return the number in the *folder* of a severity in *shift_folder*; *folder* itself if it is not one."""
        number = folder.removeprefix(self.severity_folder.removesuffix("{}"))
        return number if self.shift_of_folder(shift_folder) in self.names and number.isdecimal() else folder

    def shift_of_folder(self, folder: str) -> str:
        """Return the shift with the published *folder*; *folder* itself if no shift renames its folder to it."""
        return next((shift for shift, published in self.folders.items() if published == folder), folder)
