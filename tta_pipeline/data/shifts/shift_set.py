"""A shift set: the shifts that a robustness data set has, and what is known of its publication."""

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tta_pipeline.util.locations import RESULT_KINDS
from tta_pipeline.util.naming import Name
from tta_pipeline.util.sections import Section

SHIFT_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_+-]*(\.[A-Za-z0-9_+-]+)*$"
"""Names of shifts are folders and parts of partition keys: letters, digits and `_ + - .`, without two dots in a row."""
HIGHEST_SEVERITY = 100
ShiftName = Annotated[str, Field(pattern=SHIFT_PATTERN, max_length=100)]
SeverityNumber = Annotated[int, Field(ge=1, le=HIGHEST_SEVERITY)]
RESERVED = frozenset({"clean", "train"})
"""Names of the sets of images beside the shifts."""


class PublishedArchive(Section):
    """An archive of a shift set as it is published."""

    url: str | None = None
    """Where it can be downloaded; None: no direct address is known."""
    md5: Annotated[str, Field(pattern="^[0-9a-f]{32}$")] | None = None
    """The md5 that its publisher gives; None: none was found."""
    size_bytes: int | None = Field(default=None, gt=0)
    """Size that its publisher gives."""
    shifts: tuple[ShiftName, ...] = ()
    """Shifts in the archive; empty: all of the set, or not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShiftFacts:
    """What a record says of a shift."""

    shift_set: str
    shift_position: int
    """Position in the set, from 1; 0 for clean images."""
    shift_family: str | None
    in_mean: bool


class ShiftSet(Section):
    """The shifts of one data set, in the order in which papers stream them."""

    name: Name
    """Name of the set, as in the column `shift_set`."""
    title: str = ""
    """Name of the data set in print."""
    names: tuple[ShiftName, ...] = Field(min_length=1)
    """Shifts in order: corruptions, splits, or one name for a set that is a whole."""
    severities: tuple[SeverityNumber, ...] = ()
    """Severities, ascending; none if the set has none, and its cells then have severity 0."""
    families: dict[str, tuple[ShiftName, ...]] = Field(default_factory=dict)
    """Shifts by family, such as noise and blur."""
    held_out: tuple[ShiftName, ...] = ()
    """Shifts that the authors keep for tuning; they enter no mean."""
    normaliser: Literal["alexnet"] | None = None
    """Model whose published errors normalise the mean corruption error; None: the mean is of plain errors."""
    classes: str | None = None
    """Shipped list of the classes, such as `imagenet`; None: the classes are those found in the images."""
    class_folders: Literal["names", "numbers"] = "names"
    """What class folders are named by: the classes, or their numbers in `classes`, from 0."""
    folders: dict[ShiftName, str] = Field(default_factory=dict)
    """Folders of shifts that have another name where the set is published."""
    archives: dict[str, PublishedArchive] = Field(default_factory=dict)
    """Published archives by file name."""
    citation: str = ""
    licence: str = ""
    """Licence of the images, as the publisher states it; empty: none was found."""
    homepage: str = ""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if "__" in self.name or self.name in RESULT_KINDS:
            raise ValueError(f"name is {self.name!r}; expected no two underscores in a row, and no kind of result")
        if len(set(self.names)) < len(self.names) or RESERVED.intersection(name.lower() for name in self.names):
            raise ValueError(f"names is {list(self.names)}; expected each once, and neither clean nor train")
        if len({name.lower() for name in self.names}) < len(self.names):
            raise ValueError(f"names is {list(self.names)}; expected names that differ on any file system")
        if list(self.severities) != sorted(set(self.severities)):
            raise ValueError(f"severities is {list(self.severities)}; expected each once, ascending")
        for field, named in self._shifts_named().items():
            if unknown := sorted(set(named) - set(self.names)):
                raise ValueError(f"{field} has {', '.join(unknown)}; expected some of {', '.join(self.names)}")
        for folder in self.folders.values():
            if PurePosixPath(folder).is_absolute() or ".." in PurePosixPath(folder).parts:
                raise ValueError(f"folders has {folder!r}; expected a path inside the root")
        if self.class_folders == "numbers" and self.classes is None:
            raise ValueError("found class_folders numbers without classes; expected the list that the numbers count in")
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
    def in_mean(self) -> tuple[str, ...]:
        """Shifts that the set's mean is over, in order."""
        return tuple(name for name in self.names if name not in self.held_out)

    @property
    def cell_severities(self) -> tuple[int, ...]:
        """Severities of the set's cells: 0 where the set has none."""
        return self.severities or (0,)

    def family_of(self, shift: str) -> str | None:
        """Return the family of *shift*; None if it has none."""
        return next((family for family, names in self.families.items() if shift in names), None)

    def facts_of(self, shift: str) -> ShiftFacts:
        """Return what a record says of *shift*, one of the names or clean images."""
        return ShiftFacts(
            shift_set=self.name,
            shift_position=self.names.index(shift) + 1 if shift in self.names else 0,
            shift_family=self.family_of(shift),
            in_mean=shift in self.in_mean,
        )

    def folder_of(self, shift: str) -> str:
        """Return the folder of *shift* where the set is published."""
        return self.folders.get(shift, shift)

    def folder_of_cell(self, shift: str, severity: int) -> str:
        """Return the folder of *shift* at *severity* where the set is published; severity 0 has none of its own."""
        return f"{self.folder_of(shift)}/{severity}" if severity else self.folder_of(shift)

    def shift_at(self, folder: str) -> str:
        """Return the shift whose published *folder* it is; the name of the folder, if it is none's."""
        return next((shift for shift, published in self.folders.items() if published == folder), folder)
