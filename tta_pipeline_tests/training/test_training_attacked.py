"""What goes wrong in a training is said, or does no harm."""

import json
import resource

import pytest
import torch
from torch import nn

from tta_pipeline.errors import EvaluationError
from tta_pipeline.locations import STOP_FILE, Locations
from tta_pipeline.training.source_model import SourceTraining
from tta_pipeline_tests.training import test_source_model
from tta_pipeline_tests.training.test_source_model import HERE, trained, training

data = test_source_model.data
FACTORY = f"{__name__}:OfTwo"


class OfTwo(nn.Module):
    """A network with as many outputs as it likes."""

    def __init__(self, num_outputs: int = 2, least_size: int = 1) -> None:
        super().__init__()
        self.least_size = least_size
        self.head = nn.Linear(3, num_outputs)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return as many numbers for each of *images*."""
        assert images.shape[-1] >= self.least_size, f"images are smaller than {self.least_size} pixels"
        return self.head(images.mean((2, 3)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, r"OfTwo returned \(2, 2\) for images \(2, 3, 32, 32\); expected logits \(2, 10\), one for each class"),
        ({"num_outputs": 1000}, r"returned \(2, 1000\)"),
        ({"num_outputs": 10, "least_size": 64}, r"images are smaller than 64 pixels.*another image_size"),
    ],
)
def test_a_network_that_does_not_suit_the_benchmark_is_refused(
    data: Locations, arguments: dict[str, int], message: str
):
    """Before the first batch; one with too many outputs would train without a word."""
    network = {"kind": "python", "factory": FACTORY, "arguments": arguments}
    with pytest.raises(EvaluationError, match=message):
        training_of(data, network).train(machine=HERE, say=lambda _: None)
    assert not training(data).path.exists()


def training_of(data: Locations, network: dict[str, object]) -> SourceTraining:
    """Return the training of *network*, in place of the small one."""
    own = training(data)
    content = own.benchmark.model_dump(mode="json")
    content["models"]["cnn"]["network"] = network
    return type(own)(benchmark=type(own.benchmark).model_validate(content), model="cnn", locations=data)


def test_a_full_disk_costs_checkpoints_and_not_the_training(data: Locations):
    """It is said, and the weights are those of any other run."""
    said: list[str] = []
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def room_at_the_end(line: str) -> None:
        said.append(line)
        if line.startswith("epoch 2 of 2: loss"):
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    own = training(data, checkpoint_s=0)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8_000, limits[1]))
    try:
        own.train(machine=HERE, say=room_at_the_end)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert any(f"{own.folder} takes no checkpoint (File too large); expected room" in line for line in said)
    facts = own.require_finished()
    assert 0 == facts.run["num_checkpoints"]
    own.path.unlink()
    assert facts.weights_sha256 == trained(data, checkpoint_s=300).weights_sha256


class NanWhenEvaluated(nn.Module):
    """A network whose logits are numbers only while it learns."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(3, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        logits = self.head(images.mean((2, 3)))
        return logits if self.training else logits * float("nan")


def test_a_validation_loss_that_is_no_number_is_recorded_as_none(data: Locations):
    """The error is what it is, and the record is one that can be read."""
    own = training_of(data, {"kind": "python", "factory": f"{__name__}:NanWhenEvaluated"})
    own.train(machine=HERE, say=lambda _: None)
    facts = json.loads(own.path.with_suffix(".json").read_text())
    assert {None} == {epoch["validation_loss"] for epoch in facts["run"]["epochs"]}
    assert facts["validation_error"] > 0.5


def test_a_request_to_an_earlier_run_does_not_stop_the_next(data: Locations):
    """A stop file that was left over is removed at the beginning."""
    own = training(data)
    own.folder.mkdir(parents=True)
    (own.folder / STOP_FILE).touch()
    own.train(machine=HERE, say=lambda _: None)
    assert 2 == own.require_finished().run["num_epochs_done"]


def test_a_second_model_leaves_the_first_as_it_is(data: Locations):
    """Each has a file and a folder of its own."""
    first = training(data)
    first.train(machine=HERE, say=lambda _: None)
    changed_at = first.path.stat().st_mtime_ns
    content = first.benchmark.model_dump(mode="json")
    content["models"]["other"] = {**content["models"]["cnn"], "seed": 1}
    benchmark = type(first.benchmark).model_validate(content)
    for name in ("other", "cnn"):
        own = type(first)(benchmark=benchmark, model=name, locations=data)
        own.train(machine=HERE, say=lambda _: None)
        assert own.require_finished().run["model"] == name
    assert first.path.stat().st_mtime_ns == changed_at
