"""Orders are the same for ever: shard sets and results name their hashes."""

import hashlib
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tta_pipeline.benchmarks.protocols.sample_orders import ByClass, Stored
from tta_pipeline.benchmarks.protocols.slow import Slow
from tta_pipeline.benchmarks.shard_settings import ShardSettings
from tta_pipeline.data.images.listing import ListedImage
from tta_pipeline.domain.cells import Cell
from tta_pipeline.domain.ordering import by_class, dirichlet, domain_seed, permuted, random_generator
from tta_pipeline.shards.shard_set_writing import order_images
from tta_pipeline_tests.loading.test_order import ORDERS, index_of, ordered, samples_of
from tta_pipeline_tests.shards.cell import CELL

STREAMED = {
    "as_stored": "3473a108f0c20f52",
    "shuffled": "30cb30e615ab2cb3",
    "by_class": "a06d7885169f6809",
    "dirichlet": "a7a97006444a21ab",
}
STORED = {
    ("permuted", 0): "da4fce09c07e54b2",
    ("permuted", 7): "a4c26af87324d695",
    ("by_class", 0): "dd9e14b1fa9b956a",
    ("by_class", 7): "dab28e8431237d25",
    ("dirichlet", 0): "1bbc4bf04fc78cea",
    ("dirichlet", 7): "3e07c2c2ebdae2f7",
    ("source", 0): "4fa7d735b2aeb35b",
}
NUMBERS = [n * n % 7 for n in range(200)]


def image(class_name: str, number: int) -> ListedImage:
    """Return an image that lies nowhere."""
    return ListedImage(class_name=class_name, file_name=f"{number}.JPEG", path="", size_bytes=1, modified_ns=None)


@pytest.mark.parametrize("name", STREAMED)
def test_streams_keep_their_order(name: str):
    """By the hash that stands in results, of 200 samples of 4 classes."""
    assert STREAMED[name] == ORDERS[name](index_of(NUMBERS)).sha256[:16]


@pytest.mark.parametrize(("order", "seed"), STORED)
def test_shards_keep_their_order(order: str, seed: int):
    """Of 200 images, some of them in folders whose names are not UTF-8."""
    images = [image(f"n{number:02d}" + "\udce9" * (n % 5 == 0), n) for n, number in enumerate(NUMBERS)]
    images.sort(key=lambda one: one.name)

    found = order_images(images, ShardSettings(num_shards=1, order=order, delta=0.1, seed=seed), CELL)
    names = "\n".join(one.name for one in found)
    assert STORED[order, seed] == hashlib.sha256(names.encode("utf-8", "surrogateescape")).hexdigest()[:16]


@pytest.mark.parametrize(("num_classes", "num_slots"), [(10, 10), (120, 100)])
def test_the_classes_of_a_slot_follow_one_another(num_classes: int, num_slots: int):
    """As in the sampler of RoTTA: each class is cut at Dirichlet shares, each slot draws the order of its classes."""
    labels = np.random.default_rng(1).integers(0, num_classes, 5_000)
    rng, slots, expected = np.random.default_rng(5), [dict[int, int]() for _ in range(num_slots)], list[int]()
    for label, shares in enumerate(rng.dirichlet([0.1] * num_slots, num_classes)):
        size = int((labels == label).sum())
        cuts = [0, *(int(size * share) for share in np.cumsum(shares)[:-1]), size]
        for slot, (first, last) in enumerate(pairwise(cuts)):
            slots[slot][label] = last - first
    for sizes in slots:
        for label in rng.permutation(num_classes).tolist():
            expected += [label] * sizes[label]

    found = labels[dirichlet([str(number) for number in range(5_000)], labels, seed=5, delta=0.1)]
    assert expected == found.tolist()


@pytest.mark.parametrize("delta", [0.01, 0.1, 1.0])
def test_neighbours_in_the_dirichlet_order_are_of_one_class(delta: float):
    """Of 10 classes of 1,000 images there are at most 100 runs of one class, whatever delta."""
    labels = np.repeat(np.arange(10), 1_000)
    found = labels[dirichlet([str(number) for number in range(10_000)], labels, seed=0, delta=delta)]

    assert np.mean(found[1:] == found[:-1]) >= 0.99


def test_every_cell_draws_its_own_dirichlet_order():
    """So that shards of two cells with the same images are in two orders; the other orders are one for all cells."""
    images = [image(f"c{number % 10}", number) for number in range(200)]
    cells = [CELL, replace(CELL, severity=1), replace(CELL, corruption="contrast")]
    for order, num_orders in (("permuted", 1), ("by_class", 1), ("dirichlet", 3)):
        settings = ShardSettings(num_shards=1, order=order)
        assert num_orders == len({tuple(order_images(images, settings, cell)) for cell in cells})


@pytest.mark.parametrize("seed", [1, 7, 2**32, 2**63 - 1])
def test_a_seed_and_its_negative_draw_apart(seed: int):
    """The draws between levels and between time slots differ, and those of seeds from 0 on are NumPy's of the seed."""
    positive, negative = random_generator(seed), random_generator(-seed)

    assert np.random.default_rng(seed).random(4).tolist() == positive.random(4).tolist()
    assert random_generator(seed).random(4).tolist() != negative.random(4).tolist()


def test_a_negative_seed_rises_otherwise():
    """When a stream goes from one level to the next is drawn too, and not only its images."""
    names = [f"{number % 30}.jpg" for number in range(90)]
    levels = np.repeat(np.arange(3), 30)
    cells = [Cell(corruption="fog", severity=severity) for severity in range(3)]
    samples = replace(samples_of(index_of([0] * 90)), source_names=names, cells=cells, cell_numbers=levels)

    def drawn(seed: int) -> list[int]:
        return levels[Slow().order(samples, Stored(), seed=seed)].tolist()

    assert drawn(1) != drawn(-1)


@given(st.lists(st.integers(0, 130), max_size=300), st.integers(0, 2**63 - 1), st.sampled_from([1e-6, 0.01, 0.1, 100]))
def test_the_orders_of_shards_and_streams_are_one(labels: list[int], seed: int, delta: float):
    """Of samples with the same names; each of them is there once."""
    images = sorted((image(f"c{label:03d}", n) for n, label in enumerate(labels)), key=lambda one: one.name)
    names = [one.name for one in images]
    numbers = np.array([int(one.class_name[1:]) for one in images], np.int64)
    by_name = {
        "permuted": permuted(names, seed=seed),
        "by_class": by_class(names, numbers, seed=seed),
        "dirichlet": dirichlet(names, numbers, seed=domain_seed(seed, CELL.key), delta=delta),
    }

    for order, positions in by_name.items():
        settings = ShardSettings(num_shards=1, order=order, delta=delta, seed=seed)
        assert [images[position] for position in positions] == order_images(images, settings, CELL)
        assert list(range(len(images))) == sorted(positions.tolist())


def test_a_stream_by_class_is_sorted_by_label_and_permuted_within():
    """The labels' order, not the names', decides where class names are not sorted in the class map."""
    index = index_of([3, 1, 2, 1, 3, 2])
    found = ordered(index, ByClass(), seed=5)

    assert [1, 1, 2, 2, 3, 3] == index.labels[found.indices].tolist()
    for label in (1, 2, 3):
        of_label = [p for p in permuted(index.keys, seed=5).tolist() if index.labels[p] == label]
        assert of_label == [p for p in found.indices.tolist() if index.labels[p] == label]
