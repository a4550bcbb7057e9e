"""A benchmark file adapts a CLIP by the methods of any network, and its records say what they adapted."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.domain.locations import Locations
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline_tests.conftest import SMALL
from tta_pipeline_tests.evaluation.small import SEVERITY_5, evaluated
from tta_pipeline_tests.models.tiny_clip import describe_tiny_clip, make_tiny_clip, one_tokenizer

pytest.importorskip("open_clip")

DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
TOP = "3 of 6, tower.transformer.resblocks.1.ln_1 to tower.ln_post"


@pytest.fixture(scope="module")
def section(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """A CLIP of random weights, whose towers have 6 and 3 layer norms of 16 weights and biases."""
    folder: Path = tmp_path_factory.mktemp("clip")
    spec = describe_tiny_clip(make_tiny_clip(folder), folder)
    with one_tokenizer():
        yield {**spec.model_dump(mode="json", exclude_defaults=True), "class_names": DIGITS}


@pytest.mark.parametrize(
    ("method", "settings", "frozen", "num_adapted"),
    [
        ("zero_shot", {}, None, None),
        ("stata", {}, None, None),
        ("tent", {}, None, 6 * 32),
        ("eata", {"e_margin": 2.0, "d_margin": 1.0}, None, 6 * 32),
        ("sar", {"e_margin": 2.0}, TOP, 3 * 32),
        ("deyo", {"deyo_margin": 2.0, "plpd_threshold": -1.0}, TOP, 3 * 32),
        ("batclip", {}, None, 9 * 32),
    ],
)
def test_a_benchmark_file_names_a_method_and_a_clip(
    data: Locations,
    section: dict[str, Any],
    *,
    method: str,
    settings: dict,
    frozen: str | None,
    num_adapted: int | None,
):
    """Over a stream, predicted after the update where there is one, as in TTABC's tables."""
    experiment = {"model": "clip", "method": method, "preset": "cifar", "batch_size": 20, "subset": {"first": 40}}
    after = {"protocol": {"shift": "continual", "predict_after_update": num_adapted is not None}}
    own = {**experiment, "hyperparameters": settings, **after}
    content = {**yaml.safe_load(SMALL), "name": "small", "models": {"clip": section}, "experiments": {"own": own}}
    benchmark = Benchmark.model_validate(content)
    rows = evaluated(ExperimentResults(benchmark=benchmark, experiment_name="own", locations=data), SEVERITY_5)

    for row in rows:
        assert (40, frozen, num_adapted) == (
            row["num_samples"], row["frozen_layers"], row["num_adapted_parameters"],
        )  # fmt: skip
        assert (row["num_updates"] > 0) == (num_adapted is not None)
