"""A user's own method, network and corruption lie in the project folder, and every verb finds them there."""

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from tta_pipeline.extras.new_project import create_project
from tta_pipeline_tests.conftest import launcher

HOW_TO = (Path(__file__).parents[1] / "docs/how-to.md").read_text()
CORRUPTION = """
import numpy as np


def darker(image: np.ndarray) -> np.ndarray:
    return (image * 0.7).astype(np.uint8)
"""
BENCHMARK = """
title: Everything of one's own
source: {{kind: digits, num_test: 60, severity_table: imagenet_c}}
corruptions: [contrast]
severities: [3, 5]
image_size: 32
shards: {{samples_per_shard: 60}}
transforms: {{dark: {{function: "my_corruption:darker"}}}}
models:
  mine:
    kind: python
    factory: "my_models:SmallResNet"
    weights: {weights}
    sha256: "{sha256}"
    mean: [0.5, 0.5, 0.5]
    std: [0.5, 0.5, 0.5]
experiments:
  tent: {{model: mine, method: tent, preset: cifar, batch_size: 20}}
  mirrored: {{model: mine, method: "my_method:MIRRORED"}}
  mirrored_dark: {{model: mine, method: "my_method:MIRRORED", shards: dark}}
"""
LEFT_OUT = re.compile(r"left out|its import raised|No module named|found 0 benchmarks|found no experiment")
READ_ONLY = {
    "results list": ("results", "list", "mine"),
    "metrics": ("metrics",),
    "metrics --format latex": ("metrics", "--format", "latex"),
    "compare": ("compare", "mirrored", "tent"),
    "metrics --sql": ("metrics", "--sql", "FROM leaderboard"),
    "why": ("why", "mine", "mirrored_dark", "contrast|5"),
    "submit --dry-run": ("submit", "mine", "--dry-run"),
    "doctor": ("doctor",),
    "models check": ("models", "check", "mine", "mine", "--limit", "20"),
    "clean --dry-run": ("clean", "--dry-run"),
    "results publish": ("results", "publish", "mine", "../published"),
    "shards publish": ("shards", "publish", "mine", "../data-set"),
    "results reproduce": ("results", "reproduce", "../published/mirrored", "--cell", "contrast|5"),
    "evaluate": ("evaluate", "data/mine/shards/contrast/5", "--model", "my_models:SmallResNet", "--weights", "none",
                 "--method", "my_method:MIRRORED"),
    "shards verify": ("shards", "verify", "data/mine/shards"),
}  # fmt: skip
"""Verbs that change nothing in the data root, as they are typed in the project folder."""


def recipe(name: str) -> str:
    """Return the Python of a recipe that contains *name*."""
    (text,) = [text for text in re.findall(r"```python\n(.*?)```", HOW_TO, re.DOTALL) if name in text]
    return text


def typed(project: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the environment in the project folder, as its user does."""
    unset = ("TTA_DATA_ROOT", "TTA_SHARDS_ROOT", "DAGSTER_HOME")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment |= {"PYTHONWARNINGS": "ignore", "DAGSTER_HOME": str(project)}
    return launcher().run(list(command), environment, timeout_s=600, folder=project)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `init` writes, the recipes' files beside it, and every experiment evaluated through Dagster."""
    folder = tmp_path_factory.mktemp("own") / "project"
    create_project(folder)
    (folder / "my_method.py").write_text(recipe("MIRRORED"))
    (folder / "my_models.py").write_text(recipe("SmallResNet"))
    (folder / "my_corruption.py").write_text(CORRUPTION)
    namespace: dict[str, type[torch.nn.Module]] = {}
    exec(recipe("SmallResNet"), namespace)
    torch.manual_seed(0)
    weights = folder / "mine.pth"
    torch.save(namespace["SmallResNet"]().state_dict(), weights)
    sha256 = hashlib.sha256(weights.read_bytes()).hexdigest()
    (folder / "data/benchmarks/mine.yaml").write_text(BENCHMARK.format(weights=weights, sha256=sha256))
    (folder / "data/benchmarks/first.yaml").unlink()
    made = typed(folder, "dagster", "asset", "materialize", "-m", "tta_pipeline.definitions", "--select", "group:mine",
                 "--partition-range", "contrast|3...contrast|5")  # fmt: skip
    assert made.returncode == 0, made.stderr[-5000:]
    return folder


@pytest.mark.parametrize("verb", READ_ONLY)
def test_every_verb_finds_what_lies_in_the_project_folder(project: Path, verb: str):
    """Nothing is left out, and every answer that should name the own experiment does."""
    done = typed(project, "tta-pipeline", *READ_ONLY[verb])

    said = done.stdout + done.stderr
    assert not LEFT_OUT.search(said), said
    assert "Traceback" not in said
    assert done.returncode == 0 or verb == "doctor", said  # the doctor may find a fault of this machine
    assert "fault  mine" not in said
    if verb in ("results list", "metrics", "metrics --format latex", "compare", "metrics --sql"):
        assert "mirrored" in said


def test_the_table_for_a_paper_has_intervals(project: Path):
    """Each row of the own method has the ends of its interval."""
    done = typed(project, "tta-pipeline", "metrics", "--format", "latex")

    rows = [line for line in done.stdout.splitlines() if "mirrored" in line]
    assert len(rows) == 2
    assert not [row for row in rows if " - & - " in row]


def test_what_is_published_is_everything(project: Path, tmp_path: Path):
    """A folder for each experiment of the file."""
    done = typed(project, "tta-pipeline", "results", "publish", "mine", str(tmp_path / "out"))

    assert done.returncode == 0, done.stderr
    assert {"tent", "mirrored", "mirrored_dark"} == {path.name for path in (tmp_path / "out").iterdir()}


def test_what_publishing_leaves_out_is_named(project: Path, tmp_path: Path):
    """A method that cannot be imported and an experiment without results are left out, and the status is 1."""
    there = Path(shutil.copytree(project, tmp_path / "there"))
    (there / "my_method.py").unlink()
    with (there / "data/benchmarks/mine.yaml").open("a") as file:
        file.write("  norm: {model: mine, method: norm}\n")

    done = typed(there, "tta-pipeline", "results", "publish", "mine", str(tmp_path / "out"))
    asked = typed(there, "tta-pipeline", "results", "publish", "mine", str(tmp_path / "other"), "--experiment", "tent",
                  "--experiment", "norm")  # fmt: skip

    assert done.returncode == 1
    assert {"tent"} == {path.name for path in (tmp_path / "out").iterdir()}
    for name in ("experiments.mirrored:", "experiments.mirrored_dark:", "norm has no results"):
        assert f"{name}" in done.stderr
    assert asked.returncode == 2
    assert "has no results of norm" in asked.stderr
    assert not (tmp_path / "other").exists()
