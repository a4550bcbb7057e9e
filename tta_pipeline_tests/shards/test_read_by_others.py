"""What lies in shards is what lay in the source, for programs that know nothing of this one."""

import subprocess
from pathlib import Path

from torchvision.datasets import ImageFolder

from tta_pipeline.shards.manifest import ShardSet


def labelled_bytes(root: Path) -> dict[str, tuple[int, bytes]]:
    """Return label and bytes of every image that torchvision finds under *root*, by name."""
    return {
        str(Path(path).relative_to(root)): (label, Path(path).read_bytes()) for path, label in ImageFolder(root).samples
    }


def test_torchvision_reads_the_same_images_with_the_same_labels(shard_set: ShardSet, tree, tmp_path: Path):
    """Once GNU tar has unpacked the shards, its ImageFolder finds the source, name for name and byte for byte."""
    (tmp_path / "unpacked").mkdir()
    for shard in shard_set.manifest.shards:
        subprocess.run(["tar", "xf", shard_set.folder / shard.name, "-C", tmp_path / "unpacked"], check=True)

    found = labelled_bytes(tmp_path / "unpacked")

    assert labelled_bytes(tree.root / "fog" / "5") == found
    assert {row["source_name"]: row["label"] for row in shard_set.index.table.to_pylist()} == {
        name: label for name, (label, _) in found.items()
    }
