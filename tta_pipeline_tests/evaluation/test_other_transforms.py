"""A run names a model that asks for another transform before its first cell."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from click.testing import CliRunner

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.cli import main
from tta_pipeline.domain.locations import Locations
from tta_pipeline_tests.conftest import SMALL
from tta_pipeline_tests.evaluation.small import CONTRAST_5, results_of, run_at

timm = pytest.importorskip("timm")

SHARDS = {"resize": 168, "center_crop": 160, "interpolation": "bilinear"}
LINES = "`image_size: 160` and `shards: {resize: 168, center_crop: 160, interpolation: bilinear}`"


def test_a_run_names_it_before_its_first_cell(data: Locations, tmp_path: Path):
    """With the lines to write, which then leave nothing to say; the log of each launched evaluation has it too."""
    weights = tmp_path / "mine.pt"
    torch.save(timm.create_model("test_resnet", num_classes=10).state_dict(), weights)
    model = {
        "kind": "checkpoint", "library": "timm", "architecture": "test_resnet.r160_in1k", "path": str(weights),
        "sha256": hashlib.sha256(weights.read_bytes()).hexdigest(), "mean": [0.5] * 3, "std": [0.5] * 3,
    }  # fmt: skip
    own = {"own": {"model": "mine", "method": "source"}}
    content = {**yaml.safe_load(SMALL), "models": {"mine": model}, "experiments": own}
    data.benchmark_files.mkdir()

    def dry_run(**changes: Any) -> str:
        (data.benchmark_files / "small.yaml").write_text(yaml.safe_dump(content | changes))
        done = CliRunner().invoke(main, ["run", "small", "--dry-run"], env={"TTA_DATA_ROOT": str(data.root)})
        assert 0 == done.exit_code, done.output
        return done.stderr

    logged = list[str]()
    benchmark = Benchmark.model_validate({**content, "name": "small"})
    run_at(replace(results_of(data), benchmark=benchmark), CONTRAST_5, tell=logged.append)

    said = dry_run()
    assert said.startswith("note: model mine: ")
    assert LINES in said
    assert logged[0].startswith("model mine: ")
    assert "note: model" not in dry_run(image_size=160, shards={"num_shards": 1, **SHARDS})
