"""Images that are made lossless stay so on every road that a sample can take."""

import gc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tta_pipeline.benchmarks.shard_settings import ShardSettings
from tta_pipeline.data.corruptions import corrupt
from tta_pipeline.data.images.folder_tree import FolderTree
from tta_pipeline.data.images.generated_encoding import Encoding
from tta_pipeline.data.images.generated_images import GeneratedImages
from tta_pipeline.domain.cells import CLEAN
from tta_pipeline.extras.loader_bench.loaders import LOADERS
from tta_pipeline.loading.dataset import open_shards
from tta_pipeline.loading.decode import decode_into
from tta_pipeline.loading.reader import Stream
from tta_pipeline.loading.stream_order import stored_order
from tta_pipeline.report.pictures import sample_row
from tta_pipeline.report.tables import name_class
from tta_pipeline.results.evaluation_parts import FirstSamples
from tta_pipeline.shards.build_manifest import publish_shard_set
from tta_pipeline.shards.conversion import Conversion, convert
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.shards.verification import find_shard_problems
from tta_pipeline_tests.conftest import write_tree
from tta_pipeline_tests.flat_facts import changed
from tta_pipeline_tests.results.database.made import evaluation
from tta_pipeline_tests.shards.cell import CELL, CLASS_MAP, LIMITS, QUIET

# Workers are forked, whatever threads the test process has, and webdataset leaves shards open.
pytestmark = pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded:DeprecationWarning",
    "ignore:This DataLoader will create",
    "ignore:unclosed file:ResourceWarning",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the images and the shards of all tests lie."""
    return tmp_path_factory.mktemp("lossless")


@pytest.fixture(scope="module")
def source(folder: Path) -> GeneratedImages:
    """Fog over twenty clean images, stored lossless."""
    write_tree(folder / "clean" / CLEAN.path, classes={"n01": 9, "n02": 6, "n03": 5})
    return GeneratedImages(
        clean=FolderTree(root=folder / "clean", cells=(CLEAN,)),
        cells=(CELL,),
        table="cifar_c",
        seed=0,
        encoding=Encoding(jpeg_quality=None),
        image_size=32,
        spill_root=folder / "spill",
    )


def sharded(source: GeneratedImages, folder: Path, settings: ShardSettings = LIMITS) -> ShardSet:
    """Return the shards of fog that *settings* give."""
    conversion = Conversion(
        source=source, source_kind="generated", generated=True, benchmark_name="test", class_map=CLASS_MAP,
        settings=lambda _: settings, folder=lambda _: folder, progress=lambda *_: QUIET,
    )  # fmt: skip
    with conversion.session([CELL]) as session:
        convert(session.task(CELL), conversion.progress)
    return publish_shard_set(folder, CLASS_MAP, QUIET).shard_set


@pytest.fixture(scope="module")
def shard_set(source: GeneratedImages, folder: Path) -> ShardSet:
    """The shards of fog, which no test changes."""
    return sharded(source, folder / "shards")


@pytest.fixture(scope="module")
def fog(source: GeneratedImages) -> dict[str, np.ndarray]:
    """What the corruption makes of each clean image, by the name of its sample."""
    found = {}
    for image in source.clean.listing(CLEAN).images:
        pixels = np.empty((1, 32, 32, 3), np.uint8)
        decode_into(image.read(), pixels[0])
        found[image.name.removesuffix(".JPEG")] = corrupt(pixels, "fog", 5, keys=[image.name], seed=0, table="cifar_c")[
            0
        ]
    return found


@pytest.fixture(scope="module", autouse=True)
def close_what_is_left_open() -> Iterator[None]:
    """Have the shards that webdataset leaves open closed behind the last test, while that is no error."""
    yield
    gc.collect()


def streamed(shard_set: ShardSet) -> dict[str, np.ndarray]:
    """Return the pixels that the stream delivers, by key."""
    (batch,) = Stream(shard_set=shard_set, order=stored_order(shard_set.index), batch_size=64, image_size=32)
    return dict(zip(shard_set.index.keys, batch.images.numpy(), strict=True))


def test_the_stream_delivers_what_the_corruption_made(shard_set: ShardSet, fog: dict[str, np.ndarray]):
    """Every pixel of every image, and verification finds nothing wrong."""
    assert () == find_shard_problems(shard_set)
    found = streamed(shard_set)

    assert fog.keys() == found.keys()
    for key, pixels in found.items():
        np.testing.assert_array_equal(fog[key], pixels)


def test_a_dataset_of_torch_delivers_it_too(shard_set: ShardSet, fog: dict[str, np.ndarray]):
    """As Pillow images."""
    for key, (image, _) in zip(shard_set.index.keys, open_shards(shard_set.folder), strict=True):
        np.testing.assert_array_equal(fog[key], np.asarray(image))


@pytest.mark.parametrize("name", LOADERS)
def test_other_loaders_deliver_it_too(name: str, shard_set: ShardSet, tmp_path: Path, fog: dict[str, np.ndarray]):
    """Every pixel of every image."""
    kind = LOADERS[name].load()
    (tmp_path / "other").mkdir()
    kind.prepare(shard_set, tmp_path / "other")
    loader = kind(
        shard_set=shard_set, order=stored_order(shard_set.index), folder=tmp_path / "other", batch_size=6,
        image_size=32,
        num_threads=0, output="uint8",
    )  # fmt: skip
    for batch in loader:
        for image, index in zip(batch.images, batch.indices, strict=True):
            np.testing.assert_array_equal(fog[shard_set.index.keys[index]], image)


def test_settings_that_change_images_read_it(source: GeneratedImages, tmp_path: Path, fog: dict[str, np.ndarray]):
    """As tensors it has the same pixels, and cropped it has other ones."""
    tensors = sharded(source, tmp_path / "tensors", LIMITS.model_copy(update={"format": "tensor"}))
    cropped = sharded(source, tmp_path / "cropped", LIMITS.model_copy(update={"center_crop": 24}))

    for key, pixels in streamed(tensors).items():
        np.testing.assert_array_equal(fog[key], pixels)
    (batch,) = Stream(shard_set=cropped, order=stored_order(cropped.index), batch_size=64, image_size=24)
    assert (20, 24, 24, 3) == batch.images.shape


def test_previews_show_it(shard_set: ShardSet):
    """The picture of the first samples is drawn from arrays as from files."""
    first = FirstSamples(positions=(0, 1), predictions=(0, 1), confidences=(0.5, 0.5))

    assert sample_row(shard_set.folder, changed(evaluation(), first_samples=first), image_size=32).width > 100


def test_previews_show_a_class_that_only_the_model_has(shard_set: ShardSet):
    """By its number, as the pages of the cells do: a model may have more classes than the shards."""
    first = FirstSamples(positions=(0, 1), predictions=(999, -1), confidences=(0.5, 0.5))

    assert sample_row(shard_set.folder, changed(evaluation(), first_samples=first), image_size=32).width > 100
    assert ("0", "class 999", "class -1") == tuple(name_class(("0",), number) for number in (0, 999, -1))
