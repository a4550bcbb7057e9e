"""The shipped results of many methods on the digits: whoever adds them compares a method on the same images."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tta_pipeline.domain.cells import Cell
from tta_pipeline.shards.manifest import read_manifest
from tta_pipeline_tests.conftest import new_project

ROOT = Path(__file__).parents[3]
ARCHIVE = ROOT / "docs/results/digits_baselines.tar.gz"
NAME = "digits_baselines"
CELL = Cell(corruption="fog", severity=5)


@pytest.mark.slow
def test_images_made_here_are_those_of_the_shipped_baselines(tmp_path: Path):
    """So is the network: its weights are taken as they are, and nothing is trained."""
    subprocess.run(["tar", "xzf", str(ARCHIVE)], cwd=tmp_path, check=True)
    published = tmp_path / NAME
    project = new_project(tmp_path / "project")
    project.add_benchmark(NAME, (published / "benchmark.yaml").read_text())
    weights = project.locations.source_model(NAME, "digits_cnn").parent
    shutil.copytree(published / "source_models", weights)
    before = {path: path.stat().st_mtime_ns for path in weights.iterdir()}

    done = project.run("tta-pipeline", "run", NAME, "--part", "prepare", "--cell", CELL.key)

    assert done.returncode == 0, done.stderr[-3000:]
    assert before == {path: path.stat().st_mtime_ns for path in weights.iterdir()}
    here = read_manifest(project.locations.shards(NAME, CELL))
    results = [json.loads(path.read_text()) for path in published.rglob("fog-5/*.json")]
    shared = [each["payload"]["shared"] for each in results]
    assert len({each["setup"]["method"] for each in shared}) > 30
    assert {here.sha256} == {each["cell"]["manifest_sha256"] for each in shared}
