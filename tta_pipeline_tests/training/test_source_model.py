"""A source model learns from the images it is given, each with its own label."""

import json
from pathlib import Path

import numpy as np
import pytest

from tta_pipeline.benchmarks.models import TrainedModel
from tta_pipeline.errors import EvaluationError
from tta_pipeline.images import decode_with_pillow
from tta_pipeline.models.trained import load_source_model
from tta_pipeline.shards.manifest import ShardSet
from tta_pipeline.shards.stored_images import stored_images
from tta_pipeline.training.source_model import train_source_model, training_images
from tta_pipeline_tests.conftest import Project


def train_set(sweep: Project) -> ShardSet:
    """Return the training images of the small benchmark."""
    return ShardSet.open(sweep.locations.root / "small" / "shards" / "train" / "0")


def test_it_is_trained_on_every_image_with_its_own_label(sweep: Project):
    """More of them than a stream holds at a time, all different."""
    shard_set = train_set(sweep)
    images, labels = training_images(shard_set, 32)
    expected = np.stack([np.asarray(decode_with_pillow(image.read())) for image in stored_images(shard_set)])

    np.testing.assert_allclose(images.permute(0, 2, 3, 1).numpy() * 255, expected, atol=1e-3)
    np.testing.assert_array_equal(labels.numpy(), shard_set.index.labels)


def test_the_small_benchmark_is_learnt(sweep: Project):
    """After a few epochs hardly a training image is taken for another digit."""
    facts = json.loads((sweep.locations.root / "small" / "source_model.json").read_text())

    assert 1197 < facts["num_samples"]
    assert facts["train_error"] < 0.1


def test_the_same_training_gives_the_same_weights_and_is_not_repeated(sweep: Project, tmp_path: Path):
    """Bit for bit, and the second call only looks; other settings are another training."""
    settings = TrainedModel(kind="trained", epochs=1, width=4)
    first, again, other = (
        train_source_model(tmp_path / name, train_set(sweep), chosen, image_size=32, say=lambda _: None)
        for name, chosen in (("a", settings), ("b", settings), ("a", settings.model_copy(update={"seed": 1})))
    )

    assert first.weights_sha256 == again.weights_sha256 != other.weights_sha256
    once_more = train_source_model(tmp_path / "b", train_set(sweep), settings, image_size=32, say=lambda _: None)
    assert again == once_more


def test_weights_that_were_changed_are_not_loaded(sweep: Project, tmp_path: Path):
    """The error says what to do."""
    settings = TrainedModel(kind="trained", epochs=1, width=4)
    train_source_model(tmp_path / "model", train_set(sweep), settings, image_size=32, say=lambda _: None)
    data = bytearray((tmp_path / "model").read_bytes())
    data[-1] ^= 1
    (tmp_path / "model").write_bytes(data)

    with pytest.raises(EvaluationError, match=r"missing or damaged.*materialize the source_model"):
        load_source_model(tmp_path / "model")


def test_a_description_that_was_edited_is_not_believed(sweep: Project, tmp_path: Path):
    """Mean and std decide predictions as weights do; another number in their file is found."""
    settings = TrainedModel(kind="trained", epochs=1, width=4)
    train_source_model(tmp_path / "model", train_set(sweep), settings, image_size=32, say=lambda _: None)
    description = tmp_path / "model.json"
    content = json.loads(description.read_text())
    description.write_text(json.dumps({**content, "std": [1.347, *content["std"][1:]]}))

    with pytest.raises(EvaluationError, match="missing or damaged"):
        load_source_model(tmp_path / "model")
