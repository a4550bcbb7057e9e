"""What the pipeline predicts is what the loop predicts that everyone has written once."""

import hashlib

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import ToTensor

from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline_tests.evaluation.test_evaluator import evaluated, evaluator


def model_of_many_minds() -> nn.Module:
    """Return a model that predicts each of its three classes for some images."""
    torch.manual_seed(0)
    last = nn.Linear(48, 3, bias=False)
    last.weight.data -= last.weight.data.mean(1, keepdim=True)
    return nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), last)


@torch.inference_mode()
def plain_predictions(shard_set: ShardSet, root) -> np.ndarray:
    """Return what torchvision's ImageFolder and a plain loop predict, in the order of the stream."""
    folder = ImageFolder(root, transform=ToTensor())
    model = model_of_many_minds().eval()
    predictions = torch.cat([model(images).argmax(1) for images, _ in DataLoader(folder, batch_size=5)])
    by_name = {path.removeprefix(f"{root}/"): p for (path, _), p in zip(folder.samples, predictions, strict=True)}
    return np.array([by_name[row["source_name"]] for row in shard_set.index.table.to_pylist()])


def test_predictions_are_those_of_image_folder_and_a_plain_loop(shard_set: ShardSet, tree):
    """Of every image, and so is the count of right ones."""
    expected = plain_predictions(shard_set, tree.root / "fog" / "5")

    result = evaluated(evaluator("source", make=model_of_many_minds), shard_set)

    assert hashlib.sha256(expected.astype("<i8").tobytes()).hexdigest() == result.predicted.predictions_sha256
    assert (expected == shard_set.index.labels).sum() == result.scores.num_correct
    assert 3 == len(set(expected.tolist()))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_lower_precision_predicts_nearly_the_same(shard_set: ShardSet, precision: str):
    """And the result says what it was."""
    expected = evaluated(evaluator("source"), shard_set)
    result = evaluated(evaluator("source", precision=precision), shard_set)

    assert precision == result.machine.precision
    np.testing.assert_allclose(
        expected.predicted.first_samples.confidences, result.predicted.first_samples.confidences, atol=0.02
    )
