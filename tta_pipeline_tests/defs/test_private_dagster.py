"""What this project takes from private modules of Dagster: one file names it, and assets do without it."""

import ast
from importlib import import_module
from pathlib import Path

import dagster as dg
import pytest

import tta_pipeline
from tta_pipeline.defs import private_dagster, run_tags
from tta_pipeline.errors import DagsterVersionError
from tta_pipeline_tests.conftest import run_python

PACKAGE = Path(tta_pipeline.__file__).parent
WITHOUT_PRIVATE_NAMES = """
from tta_pipeline.defs import private_dagster
private_dagster._MODULES = dict.fromkeys(private_dagster._MODULES, "_core.moved")
from tta_pipeline.definitions import assets_only
assets_only().resolve_asset_graph()
from tta_pipeline.definitions import defs
"""


def names_private_modules(path: Path) -> bool:
    """Return whether the Python file at *path* imports from a private module of Dagster."""
    for node in ast.walk(ast.parse(path.read_text())):
        imported = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        imported += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if any(name.startswith("dagster._") for name in imported):
            return True
    return False


def test_one_file_names_private_modules_of_dagster():
    """Neither other code nor the settings of a new project do."""
    code = [path.name for path in PACKAGE.rglob("*.py") if names_private_modules(path)]
    settings = [path.name for path in PACKAGE.rglob("*.yaml") if "dagster._" in path.read_text()]

    assert (["private_dagster.py"], []) == (code, settings)


@pytest.mark.parametrize("name", private_dagster._MODULES)
def test_the_installed_dagster_has_every_private_name(name: str):
    """This is what fails first with a new version of Dagster."""
    assert getattr(private_dagster, name).__name__ == name


def test_tags_are_those_of_the_installed_dagster():
    """They stand as text in `run_tags.py`, since they stand in every history."""
    ours = {value for name, value in vars(run_tags).items() if name.isupper()}

    theirs = vars(import_module("dagster._core.storage.tags")).values()
    assert ours <= {value for value in theirs if isinstance(value, str)}


def test_assets_load_whatever_dagster_renames():
    """With every private path gone, the assets alone resolve; all else names the version and the missing name."""
    finished = run_python(WITHOUT_PRIVATE_NAMES)

    assert finished.returncode == 1
    assert f"DagsterVersionError: Dagster {dg.__version__} has no dagster._core.moved.Unres" in finished.stderr


def test_a_private_name_that_was_never_taken_is_an_ordinary_mistake():
    """An error of the version is for names in the table only."""
    assert not issubclass(DagsterVersionError, AttributeError)
    with pytest.raises(AttributeError, match="'Anything'"):
        private_dagster.Anything  # noqa: B018
