"""What `tta-pipeline init` writes."""

import re
import socket
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from tta_pipeline import __version__
from tta_pipeline.benchmarks.load_files import load_benchmark
from tta_pipeline.cli import main
from tta_pipeline.errors import SettingsError
from tta_pipeline.extras.new_project import create_project

ROOT = Path(__file__).parents[1]


def test_a_new_project_says_what_ours_says(tmp_path: Path):
    """Dagster's settings and where its definitions are; its benchmark is right, and its version is this one."""
    done = CliRunner().invoke(main, ["init", str(tmp_path / "my-project")], catch_exceptions=False)

    folder = tmp_path / "my-project"
    assert done.exit_code == 0
    assert set(done.output.split()) >= {str(path) for path in folder.rglob("*") if path.is_file()}
    assert (ROOT / "dagster.yaml").read_text() == (folder / "dagster.yaml").read_text()
    (code,) = yaml.safe_load((folder / "workspace.yaml").read_text())["load_from"]
    names = {"module_name": "project.definitions", "location_name": "tta_pipeline.definitions"}
    assert {**names, "working_directory": "."} == code["python_module"]
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text())
    its = tomllib.loads((folder / "pyproject.toml").read_text())
    assert "project" == its["tool"]["dg"]["project"].pop("root_module")
    assert "tta_pipeline" == ours["tool"]["dg"]["project"].pop("root_module")
    assert ours["tool"]["dg"] == its["tool"]["dg"]
    assert [f"tta_pipeline=={__version__}"] == its["project"]["dependencies"]
    assert ours["project"]["requires-python"] == its["project"]["requires-python"]
    assert {"source", "norm", "tent"} == set(load_benchmark(folder / "data/benchmarks/first.yaml").experiments)
    assert "@@" not in "".join(path.read_text() for path in folder.rglob("*") if path.is_file())


def test_a_taken_port_ends_make_ui_before_dagster_starts(tmp_path: Path):
    """Dagster alone would say that it serves the page, and go on without it."""
    folder = tmp_path / "mine"
    create_project(folder)
    makefile = folder / "Makefile"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        makefile.write_text(makefile.read_text().replace("3000", port))
        command = ["make", "-o", ".dagster/.initialised", "ui"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)

    assert done.returncode != 0
    assert done.stderr.startswith(f"port {port} is taken")


def test_nothing_is_overwritten(tmp_path: Path):
    """A folder that is there is refused, and stays as it is."""
    (tmp_path / "mine").mkdir()

    with pytest.raises(SettingsError, match=re.escape(str(tmp_path / "mine"))):
        create_project(tmp_path / "mine")

    assert not list((tmp_path / "mine").iterdir())


@pytest.mark.parametrize("name", ["my project", "a--b", "-a", "projekt-ü", "a.b", "_"])
def test_a_name_that_no_package_can_have_is_refused(tmp_path: Path, name: str):
    """It becomes the name in pyproject.toml."""
    with pytest.raises(SettingsError, match=re.escape(repr(name))):
        create_project(tmp_path / name)


def test_the_first_benchmark_is_written_where_data_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With TTA_DATA_ROOT, `make demo` finds it there; a file of this name is kept, and no project is made beside it."""
    monkeypatch.setenv("TTA_DATA_ROOT", str(tmp_path / "data"))
    first = tmp_path / "data" / "benchmarks" / "first.yaml"

    done = CliRunner().invoke(main, ["init", str(tmp_path / "mine")])
    again = CliRunner().invoke(main, ["init", str(tmp_path / "other")])

    assert (0, 1) == (done.exit_code, again.exit_code), done.output
    assert str(first) in done.output.split()
    assert load_benchmark(first).experiments
    assert not (tmp_path / "mine" / "data").exists()
    assert f"{first} already exists, in TTA_DATA_ROOT" in again.output
    assert not (tmp_path / "other").exists()


def test_a_relative_data_root_begins_in_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """There the user works next."""
    monkeypatch.setenv("TTA_DATA_ROOT", "results")

    done = CliRunner().invoke(main, ["init", str(tmp_path / "mine")])

    assert 0 == done.exit_code
    assert (tmp_path / "mine/results/benchmarks/first.yaml").is_file()
