"""What this project takes from private modules of Dagster: few names, in two files."""

import ast
from importlib import import_module
from pathlib import Path

import tta_pipeline
from tta_pipeline.defs.in_process import range_tags

PACKAGE = Path(tta_pipeline.__file__).parent


def private_names(path: Path) -> set[str]:
    """Return what the Python file at *path* imports from private modules of Dagster."""
    found, text = set(), path.read_text()
    if "dagster._" not in text:  # to parse all files takes most of a second
        return found
    for node in ast.walk(ast.parse(text)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else names
        if any(name.startswith("dagster._") for name in modules):
            found.update(names)
    return found


def test_the_private_names_of_dagster_are_few():
    """Another one needs a reason: what was tried with public names, and failed."""
    found = {path.name: names for path in PACKAGE.rglob("*.py") if (names := private_names(path))}

    assert {
        "run_launcher.py": {"CheckRunHealthResult", "WorkerStatus"},
        "reporting.py": {"AssetCheckEvaluationTargetMaterializationData"},
    } == found


def test_tags_of_a_range_are_those_of_the_installed_dagster():
    """They have no public name."""
    theirs = vars(import_module("dagster._core.storage.tags")).values()

    assert range_tags(["a", "b"]).keys() <= {value for value in theirs if isinstance(value, str)}
