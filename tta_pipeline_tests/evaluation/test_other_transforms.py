"""A run names a model that asks for another transform before its first cell."""

from pathlib import Path

import pytest
import yaml

from tta_pipeline_tests.conftest import Project, write_tree
from tta_pipeline_tests.models.tiny_clip import TINY, describe_tiny_clip, make_tiny_clip

pytest.importorskip("open_clip")

SAID = "interpolation bicubic instead of bilinear"
LINE = "`shards: {resize: 32, center_crop: 32, interpolation: bicubic}`"


def test_a_run_names_it_before_its_first_cell(project: Project, tmp_path: Path):
    """With the line to write, which then leaves nothing to say; the log of each launched evaluation has it too."""
    write_tree(tmp_path / "images/fog/5", classes={"cat": 3, "dog": 3}, size=40)
    spec = describe_tiny_clip(make_tiny_clip(tmp_path), tmp_path).model_copy(
        update={"architecture": str(tmp_path / "tiny.json")}
    )
    content = {
        "title": "Mine", "images": {"kind": "folder", "root": str(tmp_path / "images")},
        "custom": {"names": ["fog"], "severities": [5]}, "image_size": TINY["vision_cfg"]["image_size"],
        "shards": {"num_shards": 1, "resize": 36, "center_crop": 32},
        "models": {"clip": spec.model_dump(mode="json", exclude_defaults=True)},
        "experiments": {"a": {"model": "clip", "method": "source"}},
    }  # fmt: skip
    project.add_benchmark("mine", yaml.safe_dump(content))

    run = project.run("tta-pipeline", "run", "mine")

    assert 0 == run.returncode, run.stderr[-3000:]
    noted, logged = (line for line in run.stderr.splitlines() if SAID in line)
    assert noted.startswith("note: model clip")
    assert LINE in noted
    assert "mine/evaluation/a: model clip" in logged
    assert run.stderr.index(noted) < run.stderr.index("1 of ")

    content["shards"] = {"num_shards": 1, "resize": 32, "center_crop": 32, "interpolation": "bicubic"}
    project.add_benchmark("mine", yaml.safe_dump(content))
    assert "note: model" not in project.run("tta-pipeline", "run", "mine", "--dry-run").stderr
