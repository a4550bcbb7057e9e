"""Each reader delivers every sample of a shard set, or of a process's share, once, with its label and its pixels."""

import gc
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision.transforms.functional import normalize, to_tensor

from tta_pipeline.benchmarks.shard_settings import ShardSettings
from tta_pipeline.errors import LoaderError
from tta_pipeline.extras.loader_bench.baseline import MEAN, STD, Baseline
from tta_pipeline.extras.loader_bench.loaders import LOADERS
from tta_pipeline.loading.stream_order import stored_order
from tta_pipeline.shards.build_manifest import publish_shard_set
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline_tests.shards.cell import CLASS_MAP, QUIET

EVERY = pytest.mark.parametrize("name", LOADERS)
# Workers are forked, whatever threads the test process has; there are more of them than cores; and webdataset leaves
# shards open.
pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:This process .* is multi-threaded:DeprecationWarning",
        "ignore:This DataLoader will create",
        "ignore:unclosed file:ResourceWarning",
    ),
]


@pytest.fixture(scope="module", autouse=True)
def close_what_is_left_open():
    """Have the files that nobody closes closed behind the last test, while that is no error."""
    yield
    gc.collect()


def loader(name: str, shard_set: ShardSet, folder: Path, **changes: object) -> Baseline:
    """Return the loader called *name* over *shard_set*, in batches of six."""
    kind = LOADERS[name].load()
    kind.prepare(shard_set, folder)
    settings = {"batch_size": 6, "image_size": 32, "num_threads": 2, "output": kind.outputs[0], **changes}
    return kind(shard_set=shard_set, order=stored_order(shard_set.index), folder=folder, **settings)


def pictures(shard_set: ShardSet, root: Path) -> list[Image.Image]:
    """Return the source images in stored order, as Pillow decodes them."""
    paths = [root / "fog/5" / f"{key}.JPEG" for key in shard_set.index.keys]
    return [Image.open(io.BytesIO(path.read_bytes())) for path in paths]


@EVERY
@pytest.mark.parametrize("num_threads", [0, 4])
def test_every_sample_comes_once_with_its_label(name: str, num_threads: int, shard_set: ShardSet, tmp_path: Path):
    """Whatever the number of workers, of which there may be more than shards, no sample is lost or doubled."""
    (tmp_path / "other").mkdir()
    batches = list(loader(name, shard_set, tmp_path / "other", num_threads=num_threads))
    indices = np.concatenate([batch.indices for batch in batches])
    labels = np.concatenate([batch.labels.numpy() for batch in batches])

    assert list(range(20)) == sorted(indices.tolist())
    np.testing.assert_array_equal(shard_set.index.labels[indices], labels)


@EVERY
def test_batches_are_full_but_for_the_last(name: str, shard_set: ShardSet, tmp_path: Path):
    """20 samples in batches of 6 are three full ones and one of two."""
    (tmp_path / "other").mkdir()

    assert [6, 6, 6, 2] == [len(batch.images) for batch in loader(name, shard_set, tmp_path / "other")]


@EVERY
def test_pixels_are_those_of_pillow(name: str, shard_set: ShardSet, tmp_path: Path, tree):
    """A batch holds what Pillow decodes from the source files: bytes, or floats normalised as torchvision does."""
    (tmp_path / "other").mkdir()
    sources = pictures(shard_set, tree.root)
    for output in LOADERS[name].load().outputs:
        for batch in loader(name, shard_set, tmp_path / "other", output=output):
            for image, index in zip(batch.images, batch.indices, strict=True):
                if output == "uint8":
                    np.testing.assert_array_equal(np.asarray(sources[index]), image)
                else:
                    np.testing.assert_array_equal(normalize(to_tensor(sources[index]), MEAN, STD), image)


@EVERY
def test_tensor_shards_are_read_too(name: str, write: Callable[..., object], tmp_path: Path, tree):
    """A reader delivers the pixels that they hold."""
    write(tmp_path / "tensors", settings=ShardSettings(num_shards=3, format="tensor"))
    shard_set = publish_shard_set(tmp_path / "tensors", CLASS_MAP, QUIET).shard_set
    sources = pictures(shard_set, tree.root)
    (tmp_path / "other").mkdir()

    for batch in loader(name, shard_set, tmp_path / "other", output="uint8"):
        np.testing.assert_array_equal(np.stack([np.asarray(sources[index]) for index in batch.indices]), batch.images)


@EVERY
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_processes_share_the_samples(name: str, num_ranks: int, shard_set: ShardSet, tmp_path: Path):
    """Over all processes each sample comes once, and every process has some."""
    keys = []
    for rank in range(num_ranks):
        share = LOADERS[name].load().share(shard_set, rank, num_ranks)
        (tmp_path / str(rank)).mkdir()
        batches = list(loader(name, share, tmp_path / str(rank)))
        assert batches
        keys += [share.index.keys[index] for batch in batches for index in batch.indices]

    assert sorted(shard_set.index.keys) == sorted(keys)


def test_webdataset_needs_a_shard_for_each_process(shard_set: ShardSet):
    """It deals whole shards, of which there are three."""
    with pytest.raises(LoaderError, match=r"/shards .* 3 .* 4 "):
        LOADERS["webdataset"].load().share(shard_set, 0, 4)
