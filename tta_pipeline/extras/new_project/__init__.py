"""Files of a new project that installs tta_pipeline, so that the user needs no clone of the repository."""

from pathlib import Path
from string import Template

from tta_pipeline import __version__
from tta_pipeline.errors import SettingsError
from tta_pipeline.util.files import advice, published_folder

__all__ = ["create_project"]

_FILES = Path(__file__).parent / "files"
_PLACES = {
    "pyproject.template": "pyproject.toml",
    "workspace.yaml": "workspace.yaml",
    "dagster.yaml": "dagster.yaml",
    "Makefile": "Makefile",
    "README.md": "README.md",
    "gitignore": ".gitignore",
    "first.yaml": "data/benchmarks/first.yaml",
}
"""Location in the project of each file of the template."""


def create_project(folder: Path) -> tuple[Path, ...]:
    """Write the files of a new project into *folder*, which must not exist yet; write all of them or none.

    Raises:
        SettingsError: *folder* exists, its name is no valid name of a project, or it cannot be written.
    """
    name = folder.absolute().name
    if not all(part.isascii() and part.isalnum() for part in name.replace("_", "-").split("-")):
        raise SettingsError(f"found the name {name!r}; expected letters and digits, with single - or _ between them")
    if folder.exists():
        raise SettingsError(f"{folder} exists already; expected a new folder: name another, or remove this one")
    values = {"name": name, "version": __version__}
    try:
        folder.absolute().parent.mkdir(parents=True, exist_ok=True)
        with published_folder(folder.absolute()) as beside:
            for source, place in _PLACES.items():
                path = beside / place
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(_Text((_FILES / source).read_text()).substitute(values))
    except OSError as error:
        raise SettingsError(
            f"{folder} cannot be written ({error.strerror}); expected a place to write to: {advice(error)}"
        ) from error
    return tuple(folder / place for place in _PLACES.values())


class _Text(Template):
    """Text with placeholders @@name and @@version, since the dollar sign has a meaning in a Makefile."""

    delimiter = "@@"
