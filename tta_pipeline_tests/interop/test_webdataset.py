"""Plain webdataset, with the stages that its users put together, reads every sample of our shards with its label."""

import gc
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import pytest
import webdataset

from tta_pipeline_tests.interop.samples import Sample, Samples, sample

pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # it leaves its files open
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),  # on a machine of fewer cores
]


@pytest.fixture(scope="module", autouse=True)
def close_what_is_left_open() -> Iterator[None]:
    """Have the files that webdataset leaves open closed behind the last test, while that is no error."""
    yield
    gc.collect()


def found(rows: Iterable[dict[str, Any]]) -> Samples:
    """Return the samples among *rows* of webdataset, in order of their keys."""
    return sorted(as_sample(row) for row in rows)


def as_sample(row: dict[str, Any]) -> Sample:
    """Return a sample as webdataset gives it without decoding."""
    return sample(row["__key__"], int(row["cls"]), row["jpeg"])


plain = partial(webdataset.WebDataset, shardshuffle=False, empty_check=False)


@pytest.mark.parametrize("num_workers", [0, 2, 5])
def test_its_loader_gives_every_sample_once(shards: list[str], expected: Samples, num_workers: int):
    """However its workers share the shards, also where there are more workers than shards."""
    dataset = plain(shards, workersplitter=webdataset.split_by_worker).map(as_sample)
    loader = webdataset.WebLoader(dataset, batch_size=None, num_workers=num_workers)

    assert expected == sorted(map(tuple, loader))


def test_its_batches_have_the_labels_of_their_images(shards: list[str], expected: Samples):
    """Through decode, to_tuple, batched and the loader, as its manual has it."""
    dataset = plain(shards).decode("rgb8").to_tuple("jpg;jpeg;png", "cls").batched(8)

    batches = list(webdataset.WebLoader(dataset, batch_size=None, num_workers=2))

    assert len(expected) == sum(len(labels) for _, labels in batches)
    assert sorted(label for _, label, _ in expected) == sorted(int(label) for _, labels in batches for label in labels)
    assert {(32, 32, 3)} == {tuple(images.shape[1:]) for images, _ in batches}


@pytest.mark.parametrize("world_size", [2, 3])
def test_its_nodes_share_the_samples(
    shards: list[str], expected: Samples, world_size: int, monkeypatch: pytest.MonkeyPatch
):
    """Split by node and worker, each process reads samples that no other reads, and together they read all."""
    every: Samples = []
    for rank in range(world_size):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(world_size))
        every += found(plain(shards, nodesplitter=webdataset.split_by_node))

    assert expected == sorted(every)


def test_its_resampling_draws_our_samples(shards: list[str], expected: Samples):
    """With replacement, for as long as asked."""
    dataset = webdataset.WebDataset(shards, resampled=True, shardshuffle=False, seed=3).with_epoch(70)

    drawn = found(dataset)

    assert 70 == len(drawn)
    assert set(drawn) <= set(expected)


def test_a_pipeline_of_single_stages(shards: list[str], expected: Samples):
    """The other way to put it together, with a brace expression for the shards."""
    pattern = shards[0].replace("00000.tar", "{00000..00003}.tar")
    dataset = webdataset.DataPipeline(
        webdataset.SimpleShardList(pattern),
        webdataset.split_by_node,
        webdataset.split_by_worker,
        webdataset.tarfile_to_samples(),
        webdataset.shuffle(10),
    )

    assert expected == found(dataset)
