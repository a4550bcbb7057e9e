"""A run names a model that asks for another transform before its first cell."""

import hashlib
from pathlib import Path

import pytest
import torch
import yaml
from click.testing import CliRunner

from tta_pipeline.cli import main
from tta_pipeline_tests.conftest import SMALL, Project
from tta_pipeline_tests.evaluation.conftest import copy_small

timm = pytest.importorskip("timm")

SHARDS = {"resize": 168, "center_crop": 160, "interpolation": "bilinear"}
LINES = "`image_size: 160` and `shards: {resize: 168, center_crop: 160, interpolation: bilinear}`"


def test_a_run_names_it_before_its_first_cell(sweep: Project, project: Project, tmp_path: Path):
    """With the lines to write, which then leave nothing to say; the log of each launched evaluation has it too."""
    copy_small(sweep.locations.root, project.locations.root)
    weights = tmp_path / "mine.pt"
    torch.save(timm.create_model("test_resnet", num_classes=10).state_dict(), weights)
    model = {
        "kind": "checkpoint", "library": "timm", "architecture": "test_resnet.r160_in1k", "path": str(weights),
        "sha256": hashlib.sha256(weights.read_bytes()).hexdigest(), "mean": [0.5] * 3, "std": [0.5] * 3,
    }  # fmt: skip
    own = {"own": {"model": "mine", "method": "source"}}
    content = {**yaml.safe_load(SMALL), "models": {"mine": model}, "experiments": own}
    project.add_benchmark("small", yaml.safe_dump(content))

    run = project.run("tta-pipeline", "run", "small", "--cell", "contrast|5", "--no-report")

    assert 0 == run.returncode, run.stderr[-3000:]
    noted, logged = (line for line in run.stderr.splitlines() if LINES in line)
    assert noted.startswith("note: model mine")
    assert "small/evaluation/own: model mine" in logged
    assert run.stderr.index(noted) < run.stderr.index("1 of ")

    content |= {"image_size": 160, "shards": {"num_shards": 1, **SHARDS}}
    project.add_benchmark("small", yaml.safe_dump(content))
    asked = CliRunner().invoke(main, ["run", "small", "--dry-run"], env=project.environment)
    assert (0, False) == (asked.exit_code, "note: model" in asked.stderr)
