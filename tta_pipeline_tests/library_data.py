"""Small data sets in the files that libraries read."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from torchvision.datasets import CIFAR10

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def draw_cifar10(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Draw a test batch of CIFAR-10 under *root*, which has not the published sums, and return *root*."""
    pixels = np.random.default_rng(0).integers(0, 256, (20, 3072), np.uint8)
    folder = root / CIFAR10.base_folder
    folder.mkdir(parents=True)
    (folder / "test_batch").write_bytes(pickle.dumps({"data": pixels, "labels": [*range(10)] * 2}))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": [*CLASSES]}))
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *_: True)
    return root
