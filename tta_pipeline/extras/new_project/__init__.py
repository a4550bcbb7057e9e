"""Files of a new project that installs tta_pipeline, so that the user needs no clone of the repository."""

from pathlib import Path
from string import Template

from tta_pipeline import __version__
from tta_pipeline.benchmarks.load_files import FIRST_FILE
from tta_pipeline.domain.locations import BENCHMARK_FILES
from tta_pipeline.errors import SettingsError
from tta_pipeline.util.files import advice, published_folder, write_once

__all__ = ["create_project"]

_FILES = Path(__file__).parent / "files"
_PLACES = {
    "pyproject.template": "pyproject.toml",
    "package.template": "project/__init__.py",
    "definitions.template": "project/definitions.py",
    "defs.template": "project/defs/__init__.py",
    "workspace.yaml": "workspace.yaml",
    "dagster.yaml": "dagster.yaml",
    "Makefile": "Makefile",
    "README.md": "README.md",
    "gitignore": ".gitignore",
}
"""Location in the project of each file of the template, except the benchmark file."""


def create_project(folder: Path, *, data_root: str = "data") -> tuple[Path, ...]:
    """Write the files of a new project into *folder*, which must not exist yet; write all of them or none.

    Args:
        folder: Folder of the project.
        data_root: `TTA_DATA_ROOT`, for the first benchmark file; a relative path starts in *folder*, where the user
            works next.
    """
    name = folder.absolute().name
    if not all(part.isascii() and part.isalnum() for part in name.replace("_", "-").split("-")):
        raise SettingsError(
            f"The project's name is {name!r}; expected letters and digits, with single - or _ between them: choose "
            "another"
        )
    if folder.exists():
        raise SettingsError(
            f"{folder} already exists; expected a new folder: choose another name, or remove this folder"
        )
    values = {"name": name, "version": __version__}
    first = folder.absolute() / data_root / BENCHMARK_FILES / FIRST_FILE.name
    try:
        folder.absolute().parent.mkdir(parents=True, exist_ok=True)
        with published_folder(folder.absolute()) as beside:
            for source, place in _PLACES.items():
                path = beside / place
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(_Text((_FILES / source).read_text()).substitute(values))
            is_inside = first.is_relative_to(folder.absolute())
            _write_first(beside / first.relative_to(folder.absolute()) if is_inside else first)
    except OSError as error:
        raise SettingsError(
            f"{folder} cannot be written ({error.strerror}); expected a writable place: {advice(error)}"
        ) from error
    return (*(folder / place for place in _PLACES.values()), folder / data_root / BENCHMARK_FILES / FIRST_FILE.name)


def _write_first(path: Path) -> None:
    """Write the first benchmark file to *path*, which must not exist yet."""
    if not write_once(path, FIRST_FILE.read_bytes()):
        raise SettingsError(
            f"{path} already exists, in TTA_DATA_ROOT; expected no benchmark with this name: rename it, or unset "
            "TTA_DATA_ROOT for a project with its own data"
        )


class _Text(Template):
    """Text with placeholders @@name and @@version, since the dollar sign has a meaning in a Makefile."""

    delimiter = "@@"
