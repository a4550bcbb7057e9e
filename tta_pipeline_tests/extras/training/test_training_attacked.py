"""What goes wrong in a training is said, or does no harm."""

import json
import resource
from pathlib import Path

import pytest
from PIL import Image

from tta_pipeline.benchmarks.model_specs import TrainedModel
from tta_pipeline.benchmarks.shard_settings import ShardSettings
from tta_pipeline.benchmarks.training_recipe import TrainingInputSettings
from tta_pipeline.domain.cells import CLEAN
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import EvaluationError
from tta_pipeline.evaluation.machine import Machine
from tta_pipeline.extras.training.initial_network import make_initial_network
from tta_pipeline.extras.training.input import TrainingInput
from tta_pipeline.extras.training.source_training import SourceTraining
from tta_pipeline.shards.write_cell import shard_split
from tta_pipeline_tests.extras.training import own_networks, test_source_model
from tta_pipeline_tests.extras.training.test_source_model import HERE, trained, training

few, data = test_source_model.few, test_source_model.data


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({}, r"OfTwo .*\(2, 2\) .*32x32.*\(2, 10\)"),
        ({"num_outputs": 1000}, r"OfTwo .*\(2, 1000\)"),
        ({"num_outputs": 10, "least_size": 64}, r"OfTwo .*\b64 .*\bimage_size\b"),
    ],
)
def test_a_network_that_does_not_suit_the_benchmark_is_refused(data: Locations, arguments: dict[str, int], found: str):
    """Before the first batch; one with too many outputs would train without a word."""
    network = {"kind": "python", "factory": f"{own_networks.__name__}:OfTwo", "arguments": arguments}
    with pytest.raises(EvaluationError, match=found):
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
    said, written = list[str](), list[Path]()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def room_at_the_end(line: str) -> None:
        said.append(line)
        if line.startswith("epoch 2 of 2: loss"):
            written.extend(own.folder.glob("*.checkpoint"))
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    own = training(data, checkpoint_s=0)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8_000, limits[1]))
    try:
        own.train(machine=HERE, say=room_at_the_end)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert any(
        f"no checkpoint could be written to {own.folder} (File too large); expected space" in line for line in said
    )
    assert not written
    run = own.require_finished()
    own.path.unlink()
    assert run.weights_sha256 == trained(data, checkpoint_s=300).weights_sha256


@pytest.mark.slow
def test_an_order_that_depends_on_processes_is_not_resumed_with_others(data: Locations):
    """Half of the samples would come twice; with as many, the weights are those of an uninterrupted training."""

    def interrupted(line: str) -> None:
        if line.startswith("epoch 1 of"):
            raise KeyboardInterrupt

    own = training(data, loader="webdataset", shuffle="buffer", checkpoint_s=0)
    with pytest.raises(KeyboardInterrupt):
        own.train(machine=HERE, say=interrupted)
    with pytest.raises(EvaluationError, match=r" 1 .* 2\b.*\bnum_threads\b.* 1\b"):
        own.train(machine=Machine(device="cpu", decode_threads=2), say=lambda _: None)
    own.train(machine=HERE, say=lambda _: None)
    resumed = own.require_finished()
    own.path.unlink()
    own.train(machine=HERE, say=lambda _: None)
    assert (1, 0) == (resumed.num_resumed, own.require_finished().num_resumed)
    assert resumed.weights_sha256 == own.require_finished().weights_sha256


def test_held_out_images_are_left_out_of_loose_files_too(data: Locations):
    """The loader imagefolder learns what the reader of shards learns."""
    by_loader = [
        trained(data, loader=loader, val_fraction=0.5, epochs=1).epochs[0] for loader in ("indexed", "imagefolder")
    ]
    for fact in ("num_samples", "train_loss", "validation_error", "validation_loss"):
        assert getattr(by_loader[0], fact) == getattr(by_loader[1], fact)


def test_a_channel_that_never_varies_is_divided_by_no_zero(tmp_path: Path):
    """Black images get the smallest deviation that pixels have."""
    for number in range(4):
        folder = tmp_path / "images" / f"n0{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32)).save(folder / f"{number}.png")
    shards = ShardSettings(num_shards=1)
    stored = shard_split(tmp_path / "images", tmp_path / "out", cell=CLEAN, settings=shards, benchmark_name="any")
    images = TrainingInput(
        shard_set=stored, settings=TrainingInputSettings(augmentation="none"), image_size=32, batch_size=2, seed=0
    )
    network = make_initial_network(TrainedModel(kind="trained"), images, num_classes=2)
    assert network.std.flatten().tolist() == pytest.approx([1 / 255] * 3)


def test_a_validation_loss_that_is_no_number_is_recorded_as_none(data: Locations):
    """The error is what it is, and the record is one that can be read."""
    own = training_of(data, {"kind": "python", "factory": f"{own_networks.__name__}:NanWhenEvaluated"})
    own.train(machine=HERE, say=lambda _: None)
    facts = json.loads(own.path.with_suffix(".json").read_text())
    assert {None} == {epoch["validation_loss"] for epoch in facts["run"]["epochs"]}
    assert facts["run"]["validation_error"] > 0.5


def test_a_second_model_leaves_the_first_as_it_is(data: Locations):
    """Each has a file and a folder of its own."""
    first = training(data, epochs=1)
    first.train(machine=HERE, say=lambda _: None)
    changed_at = first.path.stat().st_mtime_ns
    content = first.benchmark.model_dump(mode="json")
    content["models"]["other"] = {**content["models"]["cnn"], "seed": 1}
    benchmark = type(first.benchmark).model_validate(content)
    for name in ("other", "cnn"):
        own = type(first)(benchmark=benchmark, model=name, locations=data)
        own.train(machine=HERE, say=lambda _: None)
        assert own.require_finished().model == name
    assert first.path.stat().st_mtime_ns == changed_at
