"""The loaders of a training read the same pixels; what draws from torch's generator does not depend on who runs it."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from tta_pipeline.data.images.folder_tree import FolderTree
from tta_pipeline.errors import StreamError
from tta_pipeline.extras.training.listed_files import find_loose_files
from tta_pipeline.loading.dataset import open_shards
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline_tests.conftest import jpeg
from tta_pipeline_tests.extras.training.test_input import assert_same, by_key, opened, read
from tta_pipeline_tests.loading.servers import web_server
from tta_pipeline_tests.shards.cell import CELL, flip, flip_sample


@pytest.fixture
def loose(shard_set: ShardSet, tree: FolderTree) -> tuple[Path, ...]:
    """The files that the shards were made of."""
    return find_loose_files(shard_set, tree.listing(CELL))


@pytest.mark.parametrize(("augmentation", "num_threads"), [("none", 0), ("simple", 0), ("full", 0), ("full", 2)])
def test_loose_files_give_the_same_batches(
    shard_set: ShardSet, loose: tuple[Path, ...], augmentation: str, num_threads: int
):
    """The same pixels in the same order as from shards, bit for bit, and the global generator is left alone."""
    settings = {"augmentation": augmentation}
    theirs = opened(shard_set, settings={**settings, "loader": "imagefolder"}, loose=loose, num_threads=num_threads)
    state = torch.get_rng_state()

    assert_same(read(opened(shard_set, settings=settings)), read(theirs))
    assert_same(read(opened(shard_set, settings=settings), 1)[2:], read(theirs, 1, skip_batches=2))
    assert torch.equal(state, torch.get_rng_state())
    assert (20, 3) == (theirs.num_inodes, opened(shard_set).num_inodes)


@pytest.mark.parametrize("num_threads", [0, 2])
def test_webdataset_goes_on_where_it_was_interrupted(shard_set: ShardSet, num_threads: int):
    """From the middle of an epoch on, bit for bit, and with the pixels that any loader gives."""
    settings = {"shuffle": "buffer", "augmentation": "full"}
    theirs = opened(shard_set, settings={**settings, "loader": "webdataset"}, num_threads=num_threads)
    whole, expected = read(theirs, 1), by_key(read(opened(shard_set, settings=settings), 1))

    assert_same(whole[2:], read(theirs, 1, skip_batches=2))
    assert sorted(expected) == sorted(by_key(whole))
    for key, image in by_key(whole).items():
        np.testing.assert_array_equal(expected[key], image)


def test_webdataset_reads_every_sample_once_through_its_buffer(shard_set: ShardSet):
    """In an order of its own, which the seed determines, and with the pixels that any loader gives."""
    settings = {"shuffle": "buffer", "buffer_samples": 5, "loader": "webdataset"}
    batches = read(opened(shard_set, settings=settings), 1)
    expected = by_key(read(opened(shard_set), 1))

    assert_same(batches, read(opened(shard_set, settings=settings), 1))
    found = by_key(batches)
    assert sorted(expected) == sorted(found)
    assert [*shard_set.index.keys] != [*found]
    for key, image in found.items():
        np.testing.assert_array_equal(expected[key], image)


def test_webdataset_draws_shards_for_each_rank(shard_set: ShardSet):
    """An epoch has the asked length, every rank draws for itself, and a run of the same seed draws the same."""
    settings = {"shuffle": "resampled", "epoch_samples": 30, "loader": "webdataset"}
    by_two = {"settings": settings, "num_ranks": 2, "num_threads": 1}  # a thread draws on until it is stopped
    ranks = [read(opened(shard_set, rank=rank, **by_two)) for rank in (0, 1)]

    assert [[3] * 5, [3] * 5] == [[len(batch["labels"]) for batch in batches] for batches in ranks]
    assert [*by_key(ranks[0])] != [*by_key(ranks[1])]
    assert_same(ranks[0], read(opened(shard_set, rank=0, **by_two)))


@pytest.mark.parametrize("operation", ["randaugment", "augmix"])
def test_operations_of_torchvision_depend_on_no_process(shard_set: ShardSet, loose: tuple[Path, ...], operation: str):
    """Whatever the number of processes, ranks and loaders, and the global generator is left alone."""
    settings = {operation: {}}
    state = torch.get_rng_state()
    alone = read(opened(shard_set, settings=settings, num_threads=0))
    plain = by_key(read(opened(shard_set)))

    assert torch.equal(state, torch.get_rng_state())
    assert_same(alone, read(opened(shard_set, settings=settings, num_threads=2)))
    assert_same(alone, read(opened(shard_set, settings={**settings, "loader": "imagefolder"}, loose=loose)))
    (first, *_) = read(opened(shard_set, settings=settings, num_threads=1, num_ranks=2))
    np.testing.assert_array_equal(alone[0]["images"][::2], first["images"])
    assert sum(np.array_equal(plain[key], image) for key, image in by_key(alone).items()) < 10


def test_worker_processes_read_from_a_server(shard_set: ShardSet, tmp_path: Path):
    """The reader of blocks has locks, which cannot be sent."""
    shutil.copytree(shard_set.folder, tmp_path / "web" / "fog" / "5")
    with web_server(tmp_path / "web") as server:
        far = open_shards(f"{server.url}/fog/5").shard_set
        found = read(opened(far, settings={"randaugment": {}}, num_threads=1))

    assert far.remote is not None
    assert_same(read(opened(shard_set, settings={"randaugment": {}}, num_threads=0)), found)


def test_a_damaged_sample_is_named_by_every_loader(shard_set: ShardSet, loose: tuple[Path, ...]):
    """Whether it is damaged in a shard or in a loose file."""
    flip_sample(shard_set, 7)
    flip(loose[7], 300)
    key, expected = shard_set.index.keys[7], shard_set.sample_check().known[7].tobytes().hex()

    with pytest.raises(StreamError, match=re.escape(str(loose[7]))):
        read(opened(shard_set, settings={"loader": "imagefolder"}, loose=loose))
    with pytest.raises(StreamError, match=rf"\b{key}\b.*{expected}"):
        read(opened(shard_set, settings={"loader": "webdataset", "shuffle": "buffer"}))
    with pytest.raises(StreamError, match=rf"\b{key}\b.* byte \d+.*{expected}"):
        read(opened(shard_set, settings={"augmix": {}}))


def test_a_loose_file_that_is_gone_is_named(shard_set: ShardSet, loose: tuple[Path, ...]):
    """When it is read."""
    loose[3].unlink()
    with pytest.raises(StreamError, match=re.escape(str(loose[3]))):
        read(opened(shard_set, settings={"loader": "imagefolder"}, loose=loose))


def test_a_sample_without_its_loose_file_is_refused_before_the_training(shard_set: ShardSet, tree: FolderTree):
    """A file that is gone, or has another size, is named when the files are listed."""
    key, size = shard_set.index.keys[3], shard_set.index.sizes[3]
    path = tree.folder(CELL) / f"{key}.JPEG"
    path.unlink()
    with pytest.raises(StreamError, match=rf"\b{key}\b.* {size} "):
        find_loose_files(shard_set, tree.listing(CELL))

    path.write_bytes(jpeg(1, size=64))
    with pytest.raises(StreamError, match=rf"{re.escape(str(path))}.* {path.stat().st_size} .* {size} "):
        find_loose_files(shard_set, tree.listing(CELL))


def test_webdataset_is_refused_where_processes_would_get_different_numbers(shard_set: ShardSet):
    """It deals whole shards over the processes."""
    with pytest.raises(StreamError, match=r"\bbuffer\b.*\bwebdataset\b.* 2 "):
        opened(shard_set, settings={"loader": "webdataset", "shuffle": "buffer"}, num_ranks=2)
