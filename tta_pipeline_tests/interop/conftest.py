"""A shard set with label members, and the content of its source, for third-party readers."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tta_pipeline.benchmarks.shard_settings import ShardSettings
from tta_pipeline.data.images.folder_tree import FolderTree
from tta_pipeline.shards.build_manifest import publish_shard_set
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline_tests.interop.samples import Samples, sample
from tta_pipeline_tests.shards.cell import CELL, CLASS_MAP, QUIET


@pytest.fixture
def labelled(write: Callable[..., object], tmp_path: Path) -> ShardSet:
    """Four shards whose samples have a `.cls` and a `.json` member."""
    write(settings=ShardSettings(num_shards=4, seed=7, labels=True))
    return publish_shard_set(tmp_path / "shards", CLASS_MAP, QUIET).shard_set


@pytest.fixture
def shards(labelled: ShardSet) -> list[str]:
    """Paths of the shards."""
    return [str(labelled.folder / shard.name) for shard in labelled.manifest.shards]


@pytest.fixture
def expected(tree: FolderTree) -> Samples:
    """Key, label and hash of every image of the source."""
    return sorted(
        sample(image.name.rpartition(".")[0], CLASS_MAP.labels[image.class_name], Path(image.path).read_bytes())
        for image in tree.listing(CELL).images
    )
