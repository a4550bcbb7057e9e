"""Hugging Face's `datasets`, where it is installed, reads our shards as its `webdataset`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tta_pipeline_tests.interop.samples import Samples

pytest.importorskip("datasets", reason="datasets, which is not in the extra dev, is not installed")

READER = """
import hashlib, json, sys
from datasets import Image, load_dataset

cache, streaming, *files = sys.argv[1:]
found = load_dataset(
    "webdataset", data_files={"test": files}, split="test", streaming=streaming == "True", cache_dir=cache
)
found = found.cast_column("JPEG", Image(decode=False))
rows = [(row["__key__"], row["cls"], hashlib.sha256(row["JPEG"]["bytes"]).hexdigest()) for row in found]
print(json.dumps(sorted(rows)))
"""


@pytest.mark.parametrize("is_streaming", [True, False])
def test_it_reads_every_sample(shards: list[str], expected: Samples, tmp_path: Path, is_streaming: bool):  # noqa: FBT001
    """Streaming and copied into its cache; no sample is lost, and labels are integers."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-c", READER, tmp_path / "cache", str(is_streaming), *shards]

    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)

    assert expected == [tuple(row) for row in json.loads(done.stdout)]
