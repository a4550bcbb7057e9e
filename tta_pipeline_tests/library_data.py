"""Small datasets in the files that libraries read."""

import json
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torchvision.datasets import CIFAR10

from tta_pipeline_tests.conftest import jpeg

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


def write_hub_folder(root: Path, split: str) -> Path:
    """Write a *split* of twenty images under *root* as `datasets` does, and return *root*."""
    kind = {"names": [*CLASSES], "_type": "ClassLabel"}
    features = {"info": {"features": {"image": {"_type": "Image"}, "label": kind}}}
    rows = [{"image": {"bytes": jpeg(number), "path": f"{number}.jpg"}, "label": number % 10} for number in range(20)]
    table = pa.Table.from_pylist(rows).replace_schema_metadata({"huggingface": json.dumps(features)})
    (root / "data").mkdir(parents=True)
    pq.write_table(table, root / "data" / f"{split}-00000-of-00001.parquet")
    return root
