"""A training reads every sample once an epoch, and its pixels depend on nothing but seed, epoch and key."""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pydantic import ValidationError

from tta_pipeline.benchmarks.shard_settings import ShardSettings
from tta_pipeline.benchmarks.training_recipe import TrainingInputSettings
from tta_pipeline.domain.cells import CLEAN
from tta_pipeline.errors import StreamError
from tta_pipeline.extras.training.input import TrainingInput, cut_into_batches
from tta_pipeline.shards.build_manifest import publish_shard_set
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.shards.write_cell import shard_split
from tta_pipeline_tests.conftest import jpeg
from tta_pipeline_tests.shards.cell import CLASS_MAP, QUIET, flip_sample

Read = dict[str, np.ndarray]


def opened(shard_set: ShardSet, *, settings: dict[str, object] | None = None, **changes: object) -> TrainingInput:
    """Return a training's input of batches of 6 images of 32 pixels."""
    fields = {"image_size": 32, "batch_size": 6, "seed": 3, **changes}
    return TrainingInput(shard_set=shard_set, settings=TrainingInputSettings(**(settings or {})), **fields)


def read(source: TrainingInput, epoch: int = 0, *, skip_batches: int = 0) -> list[Read]:
    """Return keys, labels and pixels of each batch."""
    keys = np.array(source.shard_set.index.keys)
    return [
        {"keys": keys[batch.indices], "labels": batch.labels.numpy(), "images": batch.images.numpy().copy()}
        for batch in source.epoch(epoch, skip_batches=skip_batches)
    ]


def by_key(batches: list[Read]) -> dict[str, np.ndarray]:
    """Return the pixels of each sample."""
    return {str(key): image for batch in batches for key, image in zip(batch["keys"], batch["images"], strict=True)}


def assert_same(expected: list[Read], found: list[Read]) -> None:
    """Both have the same samples, labels and pixels in the same batches."""
    assert len(expected) == len(found)
    for one, other in zip(expected, found, strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


@given(count=st.integers(1, 500), batch_size=st.integers(1, 600), num_ranks=st.integers(1, 3))
def test_batches_have_every_sample_once_over_all_ranks(count: int, batch_size: int, num_ranks: int):
    """Sizes differ by one at most, none is larger than asked, and the ranks share each batch."""
    order = np.random.default_rng(0).permutation(count)
    batches = cut_into_batches(order, batch_size)
    sizes = [len(batch) for batch in batches]
    shares = [batch[rank::num_ranks] for batch in batches for rank in range(num_ranks)]

    np.testing.assert_array_equal(np.arange(count), np.sort(np.concatenate(shares)))
    assert max(sizes) <= batch_size
    assert max(sizes) - min(sizes) <= 1
    assert len(batches) == -(-count // batch_size)


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_ranks_together_read_the_batches_of_one_process(shard_set: ShardSet, num_ranks: int):
    """Each batch is dealt over the ranks, with its labels, and the pixels are the same."""
    alone = read(opened(shard_set))
    ranks = [read(opened(shard_set, rank=rank, num_ranks=num_ranks)) for rank in range(num_ranks)]

    assert (5, 5, 5, 5) == opened(shard_set).batch_sizes
    assert len(alone) == len(opened(shard_set).batch_sizes)
    for number, batch in enumerate(alone):
        for rank in range(num_ranks):
            for name, values in batch.items():
                np.testing.assert_array_equal(values[rank::num_ranks], ranks[rank][number][name])


def test_epochs_and_seeds_have_other_orders_and_other_crops(shard_set: ShardSet):
    """The same epoch of the same seed is the same."""
    first = read(opened(shard_set))

    assert_same(first, read(opened(shard_set)))
    for other in (read(opened(shard_set), 1), read(opened(shard_set, seed=4))):
        assert [*by_key(first)] != [*by_key(other)]
        assert sorted(by_key(first)) == sorted(by_key(other))
        same = [np.array_equal(image, by_key(other)[key]) for key, image in by_key(first).items()]
        assert sum(same) < 5


@pytest.mark.parametrize("augmentation", ["none", "simple", "full"])
@pytest.mark.parametrize("num_threads", [0, 1, 4])
def test_threads_change_nothing(shard_set: ShardSet, augmentation: str, num_threads: int):
    """Nor does it matter who decodes a sample."""
    settings = {"augmentation": augmentation}

    assert_same(
        read(opened(shard_set, settings=settings)), read(opened(shard_set, settings=settings, num_threads=num_threads))
    )


def test_the_cut_into_shards_changes_nothing(shard_set: ShardSet, write: Callable[..., object], tmp_path: Path):
    """Samples in three shards or in seven, and in another order: the same batches of the same pixels."""
    write(tmp_path / "more", ShardSettings(num_shards=7, seed=8, order="by_class"))
    more = publish_shard_set(tmp_path / "more", CLASS_MAP, QUIET).shard_set

    assert [*shard_set.index.keys] != [*more.index.keys]
    assert_same(read(opened(shard_set)), read(opened(more)))


@pytest.mark.parametrize("skip_batches", [0, 1, 3, 4])
def test_an_epoch_is_resumed_at_any_batch(shard_set: ShardSet, skip_batches: int):
    """What is left of the epoch is what an uninterrupted one would have read."""
    assert_same(read(opened(shard_set), 2)[skip_batches:], read(opened(shard_set), 2, skip_batches=skip_batches))


def test_labels_are_those_of_the_samples(shard_set: ShardSet):
    """In whatever order they come."""
    batches = read(opened(shard_set))
    expected = dict(zip(shard_set.index.keys, shard_set.index.labels.tolist(), strict=True))

    assert expected == {
        str(key): label for batch in batches for key, label in zip(batch["keys"], batch["labels"].tolist(), strict=True)
    }


def test_half_of_the_images_are_mirrored(shard_set: ShardSet):
    """Over 40 epochs of 20 samples, and none of them where the file says so."""
    plain = opened(shard_set, settings={"augmentation": "full", "flip": False})
    flipped = opened(shard_set, settings={"augmentation": "full"})
    mirrored = []
    for epoch in range(40):
        straight = by_key(read(plain, epoch))
        for key, image in by_key(read(flipped, epoch)).items():
            mirrored.append(not np.array_equal(straight[key], image))
            np.testing.assert_array_equal(straight[key][:, ::-1] if mirrored[-1] else straight[key], image)

    assert 0.43 < np.mean(mirrored) < 0.57


def test_a_damaged_sample_is_named(shard_set: ShardSet):
    """Each is compared with the manifest when it is read."""
    flip_sample(shard_set, 7)
    expected = shard_set.sample_check().known[7].tobytes().hex()

    with pytest.raises(StreamError, match=rf"\b{shard_set.index.keys[7]}\b.* byte \d+.*{expected}"):
        read(opened(shard_set))


@pytest.mark.parametrize("num_ranks", [6, 100])
def test_a_batch_that_is_too_small_for_the_ranks_is_refused(shard_set: ShardSet, num_ranks: int):
    """Every process has a part of every batch."""
    with pytest.raises(StreamError, match=f" 5 .* {num_ranks} "):
        opened(shard_set, num_ranks=num_ranks)


@pytest.mark.parametrize("shuffle", ["buffer", "resampled"])
def test_other_orders_are_those_of_shards(shard_set: ShardSet, shuffle: str):
    """A buffer of one reads whole shards; with replacement, some samples come twice."""
    source = opened(shard_set, settings={"shuffle": shuffle, "buffer_samples": 1, "augmentation": "none"})
    positions = np.concatenate([batch.indices for batch in source.epoch(0)])
    shards = shard_set.index.shards[positions]

    assert 20 == len(positions)
    if shuffle == "buffer":
        np.testing.assert_array_equal(np.arange(20), np.sort(positions))
        assert 2 == np.count_nonzero(np.diff(shards))
    others = np.concatenate([batch.indices for batch in source.epoch(1)])
    assert not np.array_equal(positions, others)


def test_a_buffer_mixes_shards_and_keeps_every_sample(shard_set: ShardSet):
    """A buffer as large as the set is a permutation of it."""
    source = opened(shard_set, settings={"shuffle": "buffer", "buffer_samples": 8})
    positions = np.concatenate([batch.indices for batch in source.epoch(0)])

    np.testing.assert_array_equal(np.arange(20), np.sort(positions))
    assert np.count_nonzero(np.diff(shard_set.index.shards[positions])) > 2


@pytest.mark.parametrize("epoch_samples", [3, 20, 50])
def test_an_epoch_of_drawn_shards_has_the_length_that_is_asked(shard_set: ShardSet, epoch_samples: int):
    """Shorter or longer than the set."""
    source = opened(shard_set, settings={"shuffle": "resampled", "epoch_samples": epoch_samples})

    assert list(source.batch_sizes) == [len(batch.labels) for batch in source.epoch(0)]
    assert epoch_samples == sum(source.batch_sizes)


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"epoch_samples": 9}, "epoch_samples .*exact"),
        ({"loader": "webdataset"}, "exact.*webdataset"),
        ({"loader": "imagefolder", "shuffle": "buffer"}, "imagefolder .*buffer"),
        ({"randaugment": {}, "augmix": {}}, "randaugment .*augmix"),
    ],
)
def test_what_cannot_be_combined_is_refused(fields: dict[str, object], found: str):
    """Before anything is read."""
    with pytest.raises(ValidationError, match=found):
        TrainingInputSettings(**fields)


@pytest.mark.parametrize("augmentation", ["none", "simple", "full"])
def test_stored_images_may_have_any_size(tmp_path: Path, augmentation: str):
    """Originals of several sizes, larger and smaller than asked, and not only JPEG, become batches of one size."""
    sizes = [(32, 32), (20, 24), (90, 64), (200, 301), (33, 32)]
    for number, (height, width) in enumerate(sizes):
        (tmp_path / "images" / f"n0{number % 2}").mkdir(parents=True, exist_ok=True)
        image = Image.open(io.BytesIO(jpeg(number))).resize((width, height))
        image.save(tmp_path / "images" / f"n0{number % 2}" / f"{number}.{'png' if number == 2 else 'JPEG'}")
    shards = ShardSettings(num_shards=2)
    stored = shard_split(tmp_path / "images", tmp_path / "out", cell=CLEAN, settings=shards, benchmark_name="any")

    (batch,) = read(opened(stored, settings={"augmentation": augmentation}))

    assert (5, 32, 32, 3) == batch["images"].shape
    assert_same([batch], read(opened(stored, settings={"augmentation": augmentation}, num_threads=0)))
