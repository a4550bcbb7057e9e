"""What lies in shards is what lay in the source, for torchvision and for GNU tar."""

import subprocess
from pathlib import Path

import numpy as np
from torchvision.datasets import ImageFolder

from tta_pipeline.data.images.folder_tree import FolderTree
from tta_pipeline.loading.reader import Stream
from tta_pipeline.loading.stream_order import stored_order
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline_tests.interop.samples import Samples, sample
from tta_pipeline_tests.shards.cell import CELL


def labelled_bytes(root: Path) -> dict[str, tuple[int, bytes]]:
    """Return label and bytes of every image that torchvision finds under *root*, by name."""
    return {
        str(Path(path).relative_to(root)): (label, Path(path).read_bytes()) for path, label in ImageFolder(root).samples
    }


def test_torchvision_reads_the_same_images_with_the_same_labels(shard_set: ShardSet, tree: FolderTree, tmp_path: Path):
    """Once GNU tar has unpacked the shards, its ImageFolder finds the source, name for name and byte for byte."""
    (tmp_path / "unpacked").mkdir()
    for shard in shard_set.manifest.shards:
        subprocess.run(["tar", "xf", shard_set.folder / shard.name, "-C", tmp_path / "unpacked"], check=True)

    found = labelled_bytes(tmp_path / "unpacked")

    assert labelled_bytes(tree.folder(CELL)) == found
    assert {row["source_name"]: row["label"] for row in shard_set.index.table.to_pylist()} == {
        name: label for name, (label, _) in found.items()
    }


def test_our_pixels_and_labels_are_those_of_torchvision(shard_set: ShardSet, tree: FolderTree):
    """What the evaluation reads from shards is what ImageFolder reads from the folders they were made of."""
    theirs = ImageFolder(tree.folder(CELL))
    names = [str(Path(path).relative_to(tree.folder(CELL))) for path, _ in theirs.samples]
    position = {name: number for number, name in enumerate(names)}

    (batch,) = Stream(shard_set=shard_set, order=stored_order(shard_set.index), batch_size=64, image_size=32)

    assert len(theirs) == len(batch.images)
    for name, image, label in zip(
        shard_set.index.table["source_name"].to_pylist(), batch.images.numpy(), batch.labels.tolist(), strict=True
    ):
        pixels, expected_label = theirs[position[name]]
        assert expected_label == label
        assert np.array_equal(np.asarray(pixels), image)


def test_gnu_tar_lists_and_extracts_every_member(labelled: ShardSet, expected: Samples, tmp_path: Path):
    """Without a warning, and each image beside its label."""
    (tmp_path / "unpacked").mkdir()
    listed: list[str] = []
    for shard in labelled.manifest.shards:
        path = labelled.folder / shard.name
        for action in (["-tf", path], ["-xf", path, "-C", tmp_path / "unpacked"]):
            done = subprocess.run(["tar", *action], check=True, capture_output=True, text=True)
            assert not done.stderr
            listed += done.stdout.split()

    images = [name for name in listed if name.endswith(".JPEG")]
    found = [
        sample(
            name.removesuffix(".JPEG"),
            int((tmp_path / "unpacked" / name).with_suffix(".cls").read_text()),
            (tmp_path / "unpacked" / name).read_bytes(),
        )
        for name in images
    ]

    assert expected == sorted(found)
    assert len(listed) == 3 * len(images) == len(set(listed))
