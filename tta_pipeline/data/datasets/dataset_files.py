"""Load datasets: shipped with the project, or in files next to the user's benchmark files."""

import os
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from pydantic import ValidationError

from tta_pipeline.data.datasets.dataset import RESERVED_SHIFTS, Dataset
from tta_pipeline.domain.cells import Cell
from tta_pipeline.errors import BenchmarkFileError
from tta_pipeline.util.nearest_names import name_choices
from tta_pipeline.util.validation_errors import mistakes
from tta_pipeline.util.yaml_document import read_document

ENDING = ".dataset.yaml"
"""Ending of a file with the user's own dataset, which is in the folder of the benchmark files."""
_SHIPPED = Path(__file__).parent / "sets"


@cache
def shipped_set_names() -> tuple[str, ...]:
    """Return the names of the datasets that come with the project."""
    return tuple(sorted(path.stem for path in _SHIPPED.glob("*.yaml")))


@cache
def shipped_set(name: str) -> Dataset:
    """Return the dataset *name* that comes with the project."""
    return read_dataset(_SHIPPED / f"{name}.yaml", name)


def shipped_sets() -> dict[str, Dataset]:
    """Return the datasets that come with the project, by name."""
    return {name: shipped_set(name) for name in shipped_set_names()}


def is_known_shift(name: str) -> bool:
    """Return whether *name* is a shift of a shipped dataset, or names clean or training images."""
    return name in RESERVED_SHIFTS or any(name in dataset.names for dataset in shipped_sets().values())


def match_cell(folder: Path, *sets: Dataset) -> Cell | None:
    """Return the cell that the last two parts of *folder* name, in *sets* or a dataset that comes with the project."""
    shift, last = folder.absolute().parts[-2:]
    for dataset in (*sets, *shipped_sets().values()):
        severity = dataset.severity_of_folder(last, shift)
        if shift in dataset.names and severity in map(str, dataset.cell_severities):
            return Cell(corruption=shift, severity=int(severity))
    return None


def read_own_sets(folder: Path) -> Iterator[Dataset]:
    """Yield the user's own datasets in *folder*, in the order of their names."""
    for name in _own_set_names(folder):
        yield read_dataset(folder / f"{name}{ENDING}", name)


def _own_set_names(folder: Path) -> Iterator[str]:
    return (path.name.removesuffix(ENDING) for path in sorted(folder.glob(f"[!.]*{ENDING}")))


def find_dataset(name: str, folder: Path) -> Dataset:
    """Return the dataset *name*, from the file of this name in *folder* or from the project.

    Raises:
        BenchmarkFileError: there is no such dataset, its file is faulty, or it would hide a shipped dataset.
    """
    path = folder / f"{name}{ENDING}"
    is_own = "/" not in name and os.path.exists(path)  # noqa: PTH110 - Path raises an error for a name that is too long
    if is_own and name in shipped_set_names():
        raise BenchmarkFileError(
            f"{path} has the name of a published dataset; expected another name, since results on different datasets "
            "must not share one: rename the file"
        )
    if is_own:
        return read_dataset(path, name)
    if name in shipped_set_names():
        return shipped_set(name)
    known = (*shipped_set_names(), *_own_set_names(folder))
    raise BenchmarkFileError(
        f"There is no dataset named {name!r}; expected one of "
        f"{name_choices(name, known, listed_in='docs/guides/datasets.md')}, or a file {path.name} in {folder}"
    )


def dataset_of_file(content: Mapping[str, object], *, folder: Path) -> Dataset:
    """Return the dataset that *content*, the fields of a benchmark file in *folder*, names or defines.

    Raises:
        ValueError: there is no such dataset, or its definition is faulty.
    """
    named = content.get("dataset", "imagenet_c")
    if "custom" in content:
        if "dataset" in content:
            raise ValueError("the file has both dataset and custom; expected only one of them: leave the other out")
        custom = content["custom"]
        if not isinstance(custom, dict) or "name" in custom:
            raise ValueError(
                "`custom` is not a section, or has a name; expected something like {names: [dusk], severities: [1]}, "
                "since the file's name is the dataset's name"
            )
        name = str(content.get("name", "")).rpartition("/")[2]
        if name in shipped_set_names():
            raise ValueError(
                f"this dataset would be called {name}, like a published one; expected another name, since results on "
                "different datasets must not share one: rename the benchmark file"
            )
        named = {**custom, "name": name}
    if not isinstance(named, str):
        return Dataset.model_validate(named)
    try:
        return find_dataset(named, folder)
    except BenchmarkFileError as error:
        raise ValueError(str(error)) from None


def read_dataset(path: Path, name: str) -> Dataset:
    """Return the dataset that the file *path* describes."""
    content = read_document(path)
    try:
        return Dataset.model_validate({**content, "name": name})
    except ValidationError as error:
        raise BenchmarkFileError(f"{path}: " + f"\n{path}: ".join(mistakes(error, ""))) from None
