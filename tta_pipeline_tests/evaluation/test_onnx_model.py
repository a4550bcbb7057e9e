"""The class of examples/onnx_model.py is a model of a benchmark file."""

import ast
import runpy
import sys
from hashlib import sha256
from pathlib import Path

import pytest
import yaml
from torch import nn

import tta_pipeline as tta
from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.domain.locations import Locations
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline_tests.conftest import SMALL
from tta_pipeline_tests.evaluation.small import CONTRAST_5, evaluated
from tta_pipeline_tests.models.onnx_file import write_onnx

EXAMPLE = Path(__file__).parents[2] / "examples/onnx_model.py"


def test_an_onnx_file_is_evaluated_without_adaptation(data: Locations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """By what the docstring says a benchmark file has: predictions are those of the network in torch, and finished."""
    linear, file, shards = nn.Linear(3 * 32 * 32, 10), tmp_path / "network.onnx", data.shards("small", CONTRAST_5)
    write_onnx(file, linear)
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), str(file), str(shards)])
    monkeypatch.syspath_prepend(EXAMPLE.parent)
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    docstring = ast.get_docstring(ast.parse(EXAMPLE.read_text())) or ""
    sections = yaml.safe_load(docstring.partition("In a benchmark file:\n")[2].partition("    python examples")[0])
    sections["models"]["deployed"]["arguments"]["num_bytes"] = file.stat().st_size
    sections["models"]["deployed"]["sha256"] = sha256(Path("network.pth").read_bytes()).hexdigest()
    benchmark = Benchmark.model_validate({**yaml.safe_load(SMALL), **sections, "name": "small"})
    own = ExperimentResults(benchmark=benchmark, experiment_name="source", locations=data)

    (found,) = evaluated(own, CONTRAST_5)

    expected = tta.evaluate(tta.build("source", nn.Sequential(nn.Flatten(), linear), num_classes=10), shards)
    assert (expected.error, expected.predicted.predictions_sha256) == (found["error"], found["predictions_sha256"])
