"""A stream's order is a function of samples, order and seed; threads, ranks and shard sizes never change it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tta_pipeline.benchmarks.shard_settings import ShardSettings
from tta_pipeline.errors import StreamError
from tta_pipeline.loading.reader import Stream
from tta_pipeline.loading.stream_order import (
    StreamOrder,
    class_order,
    dirichlet_order,
    rank_slice,
    shuffled_order,
    stored_order,
    windowed_order,
)
from tta_pipeline.shards.build_manifest import publish_shard_set
from tta_pipeline.shards.sample_index import SAMPLES_SCHEMA, SampleIndex
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.shards.shard_set_writing import Target, write_shards
from tta_pipeline_tests.shards.cell import CELL, CLASS_MAP, QUIET

ORDERS: dict[str, Callable[[SampleIndex], StreamOrder]] = {
    "as_stored": stored_order,
    "shuffled": lambda index: shuffled_order(index, seed=3),
    "windowed": lambda index: windowed_order(index, seed=3, window=7),
    "by_class": lambda index: class_order(index, seed=3),
    "dirichlet": lambda index: dirichlet_order(index, seed=4, delta=0.1),
}


def index_of(labels: list[int]) -> SampleIndex:
    """Return the index of samples with *labels*."""
    import pyarrow as pa

    rows = [
        {"key": f"c{label}/{n}", "source_name": f"c{label}/{n}.jpg", "label": label, "shard": 0, "offset": 1024 * n,
         "size_bytes": 9, "sha256": bytes(32)}
        for n, label in enumerate(labels)
    ]  # fmt: skip
    return SampleIndex(table=pa.Table.from_pylist(rows, schema=SAMPLES_SCHEMA))


indices = st.lists(st.integers(0, 5), min_size=1, max_size=200).map(index_of)


@given(indices, st.sampled_from(sorted(ORDERS)))
def test_every_order_has_each_sample_once(index: SampleIndex, name: str):
    """Whatever the classes, nothing is lost or doubled."""
    assert list(range(len(index))) == sorted(ORDERS[name](index).indices.tolist())


@given(indices, st.integers(1, 5), st.booleans())
def test_the_slices_of_all_ranks_are_the_stream(index, num_ranks, padded):
    """Each sample is in one slice, once; padding makes lengths equal and is marked."""
    order = shuffled_order(index, seed=1)
    slices = [rank_slice(order, rank=rank, num_ranks=num_ranks, padded=padded) for rank in range(num_ranks)]

    counted = np.concatenate([part.indices[~part.is_padding] for part in slices])
    assert sorted(order.indices.tolist()) == sorted(counted.tolist())
    assert not padded or 1 == len({len(part.indices) for part in slices})
    assert max(len(part.indices) for part in slices) - min(len(part.indices) for part in slices) <= 1


def test_the_order_hash_does_not_depend_on_shards(tree, tmp_path: Path):
    """A cell in 1, 3 or 20 shards gives one stream by every order."""
    hashes: dict[str, set[str]] = {name: set() for name in ORDERS}
    for num_shards in (1, 3, 20):
        folder = tmp_path / str(num_shards)
        settings = ShardSettings(num_shards=num_shards, seed=7)
        target = Target(folder=folder, benchmark_name="test", source_kind="folder")
        write_shards(tree.listing(CELL), target, version="1", class_map=CLASS_MAP, settings=settings, progress=QUIET)
        index = publish_shard_set(folder, CLASS_MAP, QUIET).shard_set.index
        for name, order in ORDERS.items():
            hashes[name].add(order(index).sha256)

    assert {1} == {len(found) for found in hashes.values()}
    assert len(ORDERS) == len(set.union(*hashes.values()))


@pytest.mark.parametrize("name", sorted(ORDERS))
def test_threads_deliver_the_order(shard_set: ShardSet, name: str):
    """With 0, 1, 2 and 4 threads the same labels come in the same order."""
    order = ORDERS[name](shard_set.index)
    for num_threads in (0, 1, 2, 4):
        stream = Stream(shard_set=shard_set, order=order, batch_size=3, image_size=32, num_threads=num_threads)
        labels = np.concatenate([batch.labels.numpy() for batch in stream])
        np.testing.assert_array_equal(shard_set.index.labels[order.indices], labels)


def test_a_seed_is_an_order(shard_set: ShardSet):
    """The same seed gives the same one, another seed another one."""
    assert shuffled_order(shard_set.index, seed=1).sha256 == shuffled_order(shard_set.index, seed=1).sha256
    assert shuffled_order(shard_set.index, seed=1).sha256 != shuffled_order(shard_set.index, seed=2).sha256


def test_a_window_keeps_samples_near(shard_set: ShardSet):
    """No sample leaves its window, so that reads stay in few blocks."""
    order = windowed_order(shard_set.index, seed=3, window=5)

    np.testing.assert_array_equal(np.arange(20) // 5, order.indices // 5)
    assert order.indices.tolist() != list(range(20))


def test_a_small_delta_brings_few_classes_at_a_time():
    """100 classes of 20: a batch of 64 has far fewer classes than under an i.i.d. order."""
    index = index_of([n % 100 for n in range(2000)])

    def classes_at_a_time(order: StreamOrder) -> float:
        labels = index.labels[order.indices]
        return float(np.mean([len(set(labels[start : start + 64].tolist())) for start in range(0, 1920, 64)]))

    assert classes_at_a_time(dirichlet_order(index, seed=0, delta=0.01)) < 20
    assert classes_at_a_time(dirichlet_order(index, seed=0, delta=100)) > 40
    assert 1.9 < classes_at_a_time(class_order(index, seed=0)) < 5


def test_what_makes_no_order_is_refused(shard_set: ShardSet):
    """A delta, a window or a rank out of range is named with what was expected."""
    with pytest.raises(StreamError, match="delta is 0; expected a number above 0"):
        dirichlet_order(shard_set.index, seed=0, delta=0)
    with pytest.raises(StreamError, match="window is 0; expected at least one"):
        windowed_order(shard_set.index, seed=0, window=0)
    with pytest.raises(StreamError, match="rank is 2 of 2; expected 0 to 1"):
        rank_slice(stored_order(shard_set.index), rank=2, num_ranks=2)
