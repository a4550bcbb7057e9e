"""Reads shift sets: those that come with the project, and files beside the user's benchmark files."""

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from pydantic import ValidationError

from tta_pipeline.data.shifts.shift_set import RESERVED, ShiftSet
from tta_pipeline.errors import BenchmarkFileError
from tta_pipeline.util.mistakes import mistakes
from tta_pipeline.util.partitions import Cell
from tta_pipeline.util.yaml_document import read_document

ENDING = ".shifts.yaml"
"""Ending of a file with a shift set of the user's own; it lies beside the benchmark files."""
_SHIPPED = Path(__file__).parent / "sets"


@cache
def shipped_names() -> tuple[str, ...]:
    """Return the names of the shift sets that come with the project."""
    return tuple(sorted(path.stem for path in _SHIPPED.glob("*.yaml")))


@cache
def shipped_set(name: str) -> ShiftSet:
    """Return the shift set *name* that comes with the project."""
    return read_shift_set(_SHIPPED / f"{name}.yaml", name)


def shipped_sets() -> dict[str, ShiftSet]:
    """Return the shift sets that come with the project, by name."""
    return {name: shipped_set(name) for name in shipped_names()}


def is_known_shift(name: str) -> bool:
    """Return whether *name* is that of a shift in a set that comes with the project, or of clean or training images."""
    return name in RESERVED or any(name in shift_set.names for shift_set in shipped_sets().values())


def named_cell(folder: Path, *sets: ShiftSet) -> Cell | None:
    """Return the cell of *sets*, or of the sets that come with the project, that the last two names of *folder* say."""
    shift, severity = folder.absolute().parts[-2:]
    for shift_set in (*sets, *shipped_sets().values()):
        if shift in shift_set.names and severity in map(str, shift_set.cell_severities):
            return Cell(corruption=shift, severity=int(severity))
    return None


def own_sets(folder: Path) -> Iterator[ShiftSet]:
    """Yield the shift sets of the user's own in *folder*, in the order of their names."""
    for path in sorted(folder.glob(f"[!.]*{ENDING}")):
        yield read_shift_set(path, path.name.removesuffix(ENDING))


def find_shift_set(name: str, folder: Path) -> ShiftSet:
    """Return the shift set *name*: the file of that name in *folder*, or the one that comes with the project.

    Raises:
        BenchmarkFileError: there is none, its file is faulty, or it would hide one that comes with the project.
    """
    path = folder / f"{name}{ENDING}"
    is_own = "/" not in name and os.path.exists(path)  # noqa: PTH110 - Path raises an error for a name that is too long
    if is_own and name in shipped_names():
        raise BenchmarkFileError(
            f"{path} has the name of a shift set that comes with the project; expected another name: rename it, or "
            "results on different sets would have one name"
        )
    if is_own:
        return read_shift_set(path, name)
    if name in shipped_names():
        return shipped_set(name)
    raise BenchmarkFileError(
        f"found no shift set {name!r}; expected one of {', '.join(shipped_names())}, or a file {path.name} in {folder}"
    )


def read_shift_set(path: Path, name: str) -> ShiftSet:
    """Return the shift set that the file *path* describes.

    Raises:
        BenchmarkFileError: the file is not YAML, or a field is missing, unknown or out of range.
    """
    content = read_document(path)
    try:
        return ShiftSet.model_validate({**content, "name": name})
    except ValidationError as error:
        raise BenchmarkFileError(f"{path}: " + f"\n{path}: ".join(mistakes(error, ""))) from None
