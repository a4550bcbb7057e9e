"""The Croissant of a cell, read by mlcroissant where it is installed; and cells that are not published."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from tta_pipeline.benchmarks.shards import ShardSettings
from tta_pipeline.errors import ManifestError
from tta_pipeline.publishing.croissant import croissant
from tta_pipeline.publishing.data_set import DataSet
from tta_pipeline.publishing.published_cell import PublishedCell, proven_cell
from tta_pipeline.publishing.terms import terms_of
from tta_pipeline.shards.read_back import publish_shard_set
from tta_pipeline.shifts.loading import shipped_set
from tta_pipeline_tests.shards.cell import CLASS_MAP, QUIET, flip_sample

READER = """
import json, mlcroissant

data_set = mlcroissant.Dataset("croissant.json")
names = ("key", "label", "corruption", "severity")
rows = [[row[f"fog_5/{name}"] for name in names] + [row["fog_5/image"].size] for row in data_set.records("fog_5")]
print(json.dumps([[key.decode(), label, shift.decode(), severity, size] for key, label, shift, severity, size in rows]))
"""


@pytest.fixture
def cell(write: Callable[..., object], tmp_path: Path) -> PublishedCell:
    """A cell of three shards."""
    write(settings=ShardSettings(num_shards=3, seed=7))
    publish_shard_set(tmp_path / "shards", CLASS_MAP, QUIET)
    return proven_cell(tmp_path / "shards")


def test_mlcroissant_reads_every_sample(cell: PublishedCell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Each has its key, image, label, corruption and severity, and nothing in the file is an error."""
    pytest.importorskip("mlcroissant", reason="mlcroissant, which is not in the extra dev, is not installed")
    monkeypatch.setenv("CROISSANT_CACHE", str(tmp_path / "cache"))  # it names copies by relative addresses alone
    terms = terms_of(shipped_set("imagenet_c"), is_generated=False, stated=None)
    data_set = DataSet(name="few", title="Few", terms=terms, cells=(cell,), code_version="0")
    (tmp_path / "out" / cell.place).mkdir(parents=True)
    for path in cell.files:
        shutil.copy2(path, tmp_path / "out" / cell.place)
    (tmp_path / "out" / "croissant.json").write_text(json.dumps(croissant(data_set, date(2026, 1, 1))))

    command = [sys.executable, "-c", READER]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path / "out")

    index = cell.shard_set.index
    expected = [[key, label, "fog", 5, [32, 32]] for key, label in zip(index.keys, index.labels.tolist(), strict=True)]
    assert sorted(expected) == sorted(json.loads(done.stdout))


def test_a_damaged_shard_is_refused(cell: PublishedCell):
    """One bit is enough, and the message names the shard."""
    damaged = flip_sample(cell.shard_set, 0)

    with pytest.raises(ManifestError, match=damaged.name):
        proven_cell(cell.shard_set.folder)


@pytest.mark.parametrize(
    ("name", "is_generated", "stated", "warns"),
    [
        ("imagenet_c", False, None, False),
        ("imagenet_a", False, None, True),
        ("tiny_imagenet_c", False, None, True),
        ("imagenet_c", True, None, True),
        ("imagenet_c", True, "CC BY 4.0", False),
    ],
)
def test_a_licence_that_does_not_allow_it_is_named(name: str, is_generated: bool, stated: str | None, warns: bool):  # noqa: FBT001
    """Neither a repository's licence, nor that of a published set for images made here, allows anything."""
    assert warns == bool(terms_of(shipped_set(name), is_generated=is_generated, stated=stated).warning)
