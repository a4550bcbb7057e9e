"""A benchmark file with a model on a server is evaluated like any other."""

from collections.abc import Iterator

import pytest
import torch
import yaml
from click.testing import CliRunner

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.cli import main
from tta_pipeline.data.model_hosts import MODEL_HOSTS_VARIABLE
from tta_pipeline.errors import EvaluationError
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.extras.doctor.refusals import find_refusals
from tta_pipeline.models.trained_models import load_trained_model
from tta_pipeline.util.locations import Locations
from tta_pipeline_tests.conftest import SMALL
from tta_pipeline_tests.evaluation.small import CONTRAST_5, evaluated, runner_of
from tta_pipeline_tests.models.model_server import VERSION, ModelServer, serving


@pytest.fixture
def server(data: Locations, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    """A server of the trained model of the small benchmark."""
    network = load_trained_model("cnn", data.source_model("small", "cnn")).make().eval()

    def compute(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return network(images), images.new_zeros(len(images), 1)

    monkeypatch.setenv(MODEL_HOSTS_VARIABLE, "127.0.0.1")
    with serving(compute) as found:
        yield found


def written(data: Locations, server: ModelServer) -> Benchmark:
    """Return the small benchmark with the model as it is served, which is written under the data root."""
    content = yaml.safe_load(SMALL)
    content["models"]["served"] = {
        "kind": "http", "url": server.url, "version": VERSION, "image_size": 32, "retries": 1, "images_per_request": 50,
    }  # fmt: skip
    content["experiments"] = {name: {"model": name, "method": "source"} for name in ("cnn", "served")}
    data.benchmark_files.mkdir(exist_ok=True)
    (data.benchmark_files / "small.yaml").write_text(yaml.safe_dump(content))
    return Benchmark.model_validate({**content, "name": "small"})


def test_a_served_model_has_the_record_of_the_network(data: Locations, server: ModelServer):
    """The same predictions; a result is finished until the server answers otherwise; a broken pass leaves no record."""
    benchmark = written(data, server)
    own, served = (
        ExperimentResults(benchmark=benchmark, experiment_name=name, locations=data) for name in ("cnn", "served")
    )
    ((expected,), (found,)) = (evaluated(each, CONTRAST_5) for each in (own, served))
    for name in ("error", "num_samples", "predictions_sha256", "order_hash"):
        assert expected[name] == found[name]
    assert (expected["num_requests"], found["num_requests"], found["num_retries"]) == (None, 5, 0)

    server.compute = lambda images: (images.mean((2, 3)).repeat(1, 4)[:, :10] * 9, images.mean((2, 3)))
    server.faults.extend(["", ""] + ["nan"] * 4)
    with runner_of(served) as runner:
        assert runner.plan(CONTRAST_5)
        with pytest.raises(EvaluationError, match="no result was recorded"):
            runner.evaluate(CONTRAST_5)
    assert [found["error"]] == [dict(row.facts())["error"] for row in served.rows(CONTRAST_5)]


def test_the_verb_checks_a_served_model(data: Locations, server: ModelServer, monkeypatch: pytest.MonkeyPatch):
    """It normalises by itself, so there is nothing to compare with; doctor too names a host that is not allowed."""
    benchmark = written(data, server)
    monkeypatch.setenv("TTA_DATA_ROOT", str(data.root))

    def ask() -> tuple[int, str]:
        asked = CliRunner().invoke(
            main, ["models", "check", "small", "served", "--limit", "20"], catch_exceptions=False
        )
        return asked.exit_code, asked.output

    status, said = ask()
    assert 0 == status, said
    assert "no other normalisation was tried" in " ".join(said.split())
    monkeypatch.delenv(MODEL_HOSTS_VARIABLE)
    status, said = ask()
    assert 1 == status
    assert f"export {MODEL_HOSTS_VARIABLE}=127.0.0.1:" in " ".join(said.split())
    assert [True] == [MODEL_HOSTS_VARIABLE in str(found) for found in find_refusals(benchmark, data, ["served"])]
