"""Benchmark files over every kind of source, materialized by the command line."""

import tarfile
from pathlib import Path

import numpy as np
import pytest

from tta_pipeline.partitions import CLEAN, Cell
from tta_pipeline.shards.manifest import ShardSet
from tta_pipeline_tests.conftest import Project, write_tree

REST = """
title: Any source
corruptions: [fog, contrast]
severities: [1, 5]
image_size: 32
shards: {num_shards: 2}
models:
  r18: {kind: torchvision, architecture: resnet18}
experiments:
  source: {model: r18, method: source}
source: """
CELLS = [Cell(corruption=corruption, severity=severity) for corruption in ("fog", "contrast") for severity in (1, 5)]
RANGE = ("--partition-range", "fog|1...contrast|5")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder tree of four cells with two classes of three images."""
    for cell in CELLS:
        write_tree(tmp_path / "tree" / cell.path, classes={"n01": 3, "n02": 3})
    return tmp_path / "tree"


def archives(tree: Path) -> str:
    """Pack the corruptions of *tree* into an archive each and return the source that names them."""
    for corruption in ("fog", "contrast"):
        with tarfile.open(tree.parent / f"{corruption}.tar", "w") as tar:
            tar.add(tree / corruption, corruption)
    return f"{{kind: archive, archives: [{tree.parent}/fog.tar, {tree.parent}/contrast.tar]}}"


def arrays(tree: Path) -> str:
    """Write arrays as CIFAR-10-C has them beside *tree* and return the source that names them."""
    rng = np.random.default_rng(0)
    for corruption in ("fog", "contrast"):
        np.save(tree.parent / f"{corruption}.npy", rng.integers(0, 256, (30, 32, 32, 3), np.uint8))
    np.save(tree.parent / "labels.npy", np.tile([0, 1, 0, 1, 0, 1], 5).astype(np.uint8))
    return f"{{kind: npy, root: {tree.parent}}}"


def generated(tree: Path) -> str:
    """Return the source that makes the cells from the images of one of them."""
    return f"{{kind: generated, clean: {tree}/fog/1, severity_table: cifar_c}}"


@pytest.mark.parametrize("make", [lambda tree: f"{{kind: folder, root: {tree}}}", archives, arrays, generated],
                         ids=["folder", "archive", "npy", "generated"])  # fmt: skip
def test_every_kind_of_source_becomes_shards_in_one_run(project: Project, tree: Path, make):
    """One run over the range makes shards and manifests of all cells, and leaves no temporary file."""
    project.add_benchmark("any", REST + make(tree))

    finished = project.materialize("any/tar_shards,any/shard_manifest", *RANGE)

    assert 0 == finished.returncode, finished.stderr[-3000:]
    shard_sets = [ShardSet.open(project.locations.shards("any", cell)) for cell in CELLS]
    assert [6] * 4 == [shard_set.manifest.num_samples for shard_set in shard_sets]
    assert ("generated" in make.__name__) == shard_sets[0].manifest.source.generated
    assert not list(project.locations.root.rglob(".unpublished*"))


def test_clean_images_come_from_where_they_lie(project: Project, tree: Path, tmp_path: Path):
    """A folder and an archive of clean images become the clean shard set, beside cells from another place."""
    write_tree(tmp_path / "val", classes={"n01": 4, "n02": 4})
    with tarfile.open(tmp_path / "val.tar", "w") as tar:
        tar.add(tmp_path / "val", "val")
    for name, clean in (("one", "val"), ("two", "val.tar")):
        project.add_benchmark(name, REST + f"{{kind: folder, root: {tree}, clean: {tmp_path}/{clean}}}")

        finished = project.materialize(f"{name}/clean/tar_shards,{name}/clean/shard_manifest")

        assert 0 == finished.returncode, finished.stderr[-3000:]
        assert 8 == ShardSet.open(project.locations.shards(name, CLEAN)).manifest.num_samples


def test_a_damaged_archive_publishes_nothing(project: Project, tree: Path):
    """A cut archive ends the run with its name, and no cell of it appears."""
    text = archives(tree)
    path = tree.parent / "fog.tar"
    path.write_bytes(path.read_bytes()[:3000])
    project.add_benchmark("any", REST + text)

    finished = project.materialize("any/tar_shards", *RANGE)

    assert finished.returncode != 0
    assert "fog.tar" in finished.stderr
    assert not (project.locations.root / "any" / "shards").exists()
