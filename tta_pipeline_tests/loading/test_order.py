"""A stream's order is a function of samples, order and seed; threads and shard sizes never change it."""

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
    listed_order,
    returning_order,
    shuffled_order,
    stored_order,
)
from tta_pipeline.shards.build_manifest import publish_shard_set
from tta_pipeline.shards.sample_index import SAMPLES_SCHEMA, SampleIndex
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.shards.shard_set_writing import Target, write_shards
from tta_pipeline_tests.shards.cell import CELL, CLASS_MAP, QUIET

ORDERS: dict[str, Callable[[SampleIndex], StreamOrder]] = {
    "as_stored": stored_order,
    "shuffled": lambda index: shuffled_order(index, seed=3),
    "by_class": lambda index: class_order(index, seed=3),
    "dirichlet": lambda index: dirichlet_order(index, seed=4, delta=0.1),
    "few_classes": lambda index: class_order(index, seed=3, num_at_once=2),
    "listed": lambda index: listed_order(index, sorted(index.table["source_name"].to_pylist(), key=lambda n: n[::-1])),
    "returning": lambda index: returning_order(halves(index), index, num_visits=3, seed=5),
}


def halves(index: SampleIndex) -> list[StreamOrder]:
    """Return the samples of even and of odd classes, each shuffled, as two domains; a domain may be empty."""
    shuffled = shuffled_order(index, seed=2).indices
    parts = (shuffled[index.labels[shuffled] % 2 == rest] for rest in (0, 1))
    return [StreamOrder(name="half", indices=part, sha256="") for part in parts]


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

    assert classes_at_a_time(dirichlet_order(index, seed=0, delta=0.01)) < 20
    assert classes_at_a_time(dirichlet_order(index, seed=0, delta=100)) > 40
    assert 1.9 < classes_at_a_time(class_order(index, seed=0)) < 5


@given(indices, st.integers(1, 8), st.integers(0, 2**63 - 1))
def test_few_classes_are_there_at_a_time(index: SampleIndex, num_at_once: int, seed: int):
    """One group of classes is through before the next begins, and no group has more than were asked for."""
    labels = index.labels[class_order(index, seed=seed, num_at_once=num_at_once).indices].tolist()
    first = {label: labels.index(label) for label in labels}
    last = {label: len(labels) - 1 - labels[::-1].index(label) for label in labels}

    for place in range(len(labels)):
        assert len({label for label in first if first[label] <= place <= last[label]}) <= num_at_once


@given(indices, st.integers(1, 20), st.integers(0, 2**63 - 1))
def test_domains_come_back_with_their_next_samples(index: SampleIndex, num_visits: int, seed: int):
    """Each sample once, those of a domain in its own order, in no more runs than visits."""
    domains = halves(index)
    found = returning_order(domains, index, num_visits=num_visits, seed=seed).indices.tolist()

    assert list(range(len(index))) == sorted(found)
    for domain in domains:
        own = set(domain.indices.tolist())
        assert domain.indices.tolist() == [number for number in found if number in own]
        assert sum(n in own and (not at or found[at - 1] not in own) for at, n in enumerate(found)) <= num_visits


def test_the_lengths_and_the_order_of_domains_are_those_of_the_seed():
    """Another seed gives other ones; over twenty seeds the first part has every share of a domain."""
    index = index_of([0] * 100 + [1] * 100)
    found = [returning_order(halves(index), index, num_visits=3, seed=seed).indices for seed in range(20)]
    first = [int(np.argmax(np.diff(index.labels[each]) != 0)) + 1 for each in found]

    assert 15 < len(set(first))
    assert {0, 1} == {int(index.labels[each[0]]) for each in found}


def test_what_makes_no_order_is_refused(shard_set: ShardSet):
    """A delta out of range is named with what was expected."""
    with pytest.raises(StreamError, match=r"\bdelta\b\D*\b0\b"):
        dirichlet_order(shard_set.index, seed=0, delta=0)
