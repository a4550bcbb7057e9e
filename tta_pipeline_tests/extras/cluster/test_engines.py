"""The table of engines of `submit` is the one place that names them."""

import ast
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tta_pipeline.cli import main
from tta_pipeline.cli.engines import ENGINES, engine_of
from tta_pipeline.defs.resources.queued_runs import QueuedRuns
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import SubmissionError
from tta_pipeline.extras.cluster.submission import Submission

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "tta_pipeline"
TABLE = PACKAGE / "cli" / "engines.py"


def constants(path: Path) -> set[str]:
    """Return the strings in a module."""
    return {
        node.value
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def submit_help() -> str:
    """Return the help of `submit` in one line."""
    return " ".join(CliRunner().invoke(main, ["submit", "--help"], catch_exceptions=False).output.split())


def test_no_other_file_decides_by_the_name_of_an_engine():
    """So that a new engine is a file and an entry."""
    files = [*(PACKAGE / "cli").glob("*.py"), *(PACKAGE / "extras" / "cluster").glob("*.py"),
             *(PACKAGE / "defs").rglob("*.py")]  # fmt: skip
    assert [] == [path.name for path in files if path != TABLE and constants(path) & ENGINES.keys()]


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_has_its_own_class_and_the_facts_of_the_table(name: str, tmp_path: Path):
    """One that uses Dagster is started by Dagster's queue."""
    engine = ENGINES[name].open(tmp_path, None)

    assert ENGINES[name].uses_dagster is isinstance(engine, QueuedRuns)
    assert 1 == sum(type(engine) is type(each.open(tmp_path, None)) for each in ENGINES.values())
    assert f"{name}, {ENGINES[name].what}" in submit_help()
    assert f"for {name}:" in submit_help() or not ENGINES[name].config


@pytest.mark.parametrize("name", [name for name, entry in ENGINES.items() if not entry.config])
def test_a_file_that_an_engine_would_not_read_is_refused(name: str, tmp_path: Path):
    """Before, it was ignored: the pieces ran without the options in it."""
    path = tmp_path / "options.yaml"
    path.write_text("cpu: []\n")

    found = CliRunner().invoke(
        main, ["submit", "digits_c", "--engine", name, "--engine-config", str(path), "--dry-run"]
    )

    assert click.UsageError.exit_code == found.exit_code
    assert f"--engine-config is given with the engine {name}, which reads no file" in found.output


def test_a_submission_of_an_unknown_engine_is_refused_in_one_line(tmp_path: Path):
    """As that of a newer version, or of an engine that was taken out."""
    made = Submission.create(Locations(root=tmp_path), benchmark="mine", engine="local", pieces=(), compute={})

    with pytest.raises(SubmissionError, match=r" 1 .*\bmine\b.*'cloud'.*\blocal, ray, slurm\b"):
        engine_of(replace(made, engine="cloud"))


@pytest.mark.parametrize("name", [name for name, entry in ENGINES.items() if entry.uses_dagster])
def test_another_run_launcher_is_refused_with_the_one_that_is_expected(name: str, tmp_path: Path):
    """Each engine of Dagster's queue names its own, also when the launcher of `dagster.yaml` cannot be loaded."""
    engine = ENGINES[name].open(tmp_path, None)
    assert isinstance(engine, QueuedRuns)

    with pytest.raises(SubmissionError, match=rf"/home .*\bobject\b.*{engine.launcher}.*docs/how-to/machines\.md"):
        engine.require_launcher(object(), "/home")
    assert "expected" in engine.advice()
