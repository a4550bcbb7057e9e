"""A stream's order is a function of samples, order and seed; threads and shard sizes never change it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tta_pipeline.benchmarks.protocols.mixed import Dynamic
from tta_pipeline.benchmarks.protocols.sample_orders import ByClass, Dirichlet, Listed, Shuffled
from tta_pipeline.benchmarks.protocols.stream_protocol import SampleOrder, Samples
from tta_pipeline.benchmarks.shard_settings import ShardSettings
from tta_pipeline.domain.cells import CLEAN
from tta_pipeline.domain.ordering import dirichlet
from tta_pipeline.loading.reader import Stream
from tta_pipeline.loading.stream_order import StreamOrder, order_of, shuffled_order, stored_order
from tta_pipeline.shards.build_manifest import publish_shard_set
from tta_pipeline.shards.sample_index import SAMPLES_SCHEMA, SampleIndex
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.shards.shard_set_writing import Target, write_shards
from tta_pipeline_tests.shards.cell import CELL, CLASS_MAP, QUIET

ORDERS: dict[str, Callable[[SampleIndex], StreamOrder]] = {
    "as_stored": stored_order,
    "shuffled": lambda index: shuffled_order(index, seed=3),
    "by_class": lambda index: ordered(index, ByClass(), seed=3),
    "dirichlet": lambda index: order_of(index, dirichlet(index.keys, index.labels, seed=4, delta=0.1)),
    "few_classes": lambda index: ordered(index, ByClass(classes_per_batch=2), seed=3),
    "listed": lambda index: ordered(index, Listed(), seed=0),
    "returning": lambda index: order_of(index, Dynamic(visits=3).order(halves(index), Shuffled(), seed=5)),
}


def samples_of(index: SampleIndex) -> Samples:
    """Return the samples of one cell, and a list of their names in some order."""
    return Samples(
        keys=index.keys,
        source_names=index.source_names,
        labels=index.labels,
        cells=[CELL],
        cell_numbers=np.zeros(len(index), np.int64),
        listed_names=sorted(index.source_names, key=lambda name: name[::-1]),
    )


def ordered(index: SampleIndex, order: SampleOrder, *, seed: int) -> StreamOrder:
    """Return the samples of one cell in *order*."""
    return order_of(index, order.order(samples_of(index), seed=seed))


def halves(index: SampleIndex) -> Samples:
    """Return the samples of even and of odd classes as those of two cells; a cell may be empty."""
    return replace(samples_of(index), cells=[CELL, CLEAN], cell_numbers=index.labels % 2)


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


def test_a_small_delta_brings_few_classes_at_a_time():
    """100 classes of 20: a batch of 64 has far fewer classes than under an i.i.d. order."""
    index = index_of([n % 100 for n in range(2000)])

    def classes_at_a_time(order: StreamOrder) -> float:
        labels = index.labels[order.indices]
        return float(np.mean([len(set(labels[start : start + 64].tolist())) for start in range(0, 1920, 64)]))

    assert classes_at_a_time(ordered(index, Dirichlet(delta=0.01), seed=0)) < 20
    assert classes_at_a_time(ordered(index, Dirichlet(delta=100), seed=0)) > 40
    assert 1.9 < classes_at_a_time(ordered(index, ByClass(), seed=0)) < 5


@given(indices, st.integers(1, 8), st.integers(0, 2**63 - 1))
def test_few_classes_are_there_at_a_time(index: SampleIndex, num_at_once: int, seed: int):
    """One group of classes is through before the next begins, and no group has more than were asked for."""
    labels = index.labels[ordered(index, ByClass(classes_per_batch=num_at_once), seed=seed).indices].tolist()
    first = {label: labels.index(label) for label in labels}
    last = {label: len(labels) - 1 - labels[::-1].index(label) for label in labels}

    for place in range(len(labels)):
        assert len({label for label in first if first[label] <= place <= last[label]}) <= num_at_once


def test_the_seed_draws_which_classes_come_together():
    """And not only the order of the images within a group of classes."""
    index = index_of(list(range(8)))

    drawn = [index.labels[ordered(index, ByClass(classes_per_batch=2), seed=seed).indices] for seed in range(5)]

    assert len({frozenset(labels[:2].tolist()) for labels in drawn}) > 1


@given(indices, st.integers(1, 20), st.integers(0, 2**63 - 1))
def test_domains_come_back_with_their_next_samples(index: SampleIndex, num_visits: int, seed: int):
    """Each sample once, those of a domain in its own order, in no more runs than visits."""
    cells = halves(index)
    found = Dynamic(visits=num_visits).order(cells, Shuffled(), seed=seed).tolist()

    assert list(range(len(index))) == sorted(found)
    for positions, domain in map(cells.of_cell, (0, 1)):
        own = set(positions.tolist())
        assert positions[Shuffled().order(domain, seed=seed)].tolist() == [number for number in found if number in own]
        assert sum(n in own and (not at or found[at - 1] not in own) for at, n in enumerate(found)) <= num_visits


def test_the_lengths_and_the_order_of_domains_are_those_of_the_seed():
    """Another seed gives other ones; over twenty seeds the first part has every share of a domain."""
    index = index_of([0] * 100 + [1] * 100)
    found = [Dynamic(visits=3).order(halves(index), Shuffled(), seed=seed) for seed in range(20)]
    first = [int(np.argmax(np.diff(index.labels[each]) != 0)) + 1 for each in found]

    assert 15 < len(set(first))
    assert {0, 1} == {int(index.labels[each[0]]) for each in found}
