"""A function of the user's, named by the settings of shards, is applied to every image, and the manifest says so."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tta_pipeline.benchmarks.shard_settings import ShardSettings
from tta_pipeline.data.images.folder_tree import FolderTree
from tta_pipeline.errors import ShardError
from tta_pipeline.loading.reader import Stream
from tta_pipeline.loading.stream_order import stored_order
from tta_pipeline.shards.build_manifest import publish_shard_set
from tta_pipeline.shards.conversion import ConversionResult
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.util.user_functions import load_function
from tta_pipeline_tests.shards.cell import CELL, CLASS_MAP, QUIET

INVERTED = "def change(image):\n    return 255 - image\n"
Write = Callable[..., ConversionResult]


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module of the user's in the working directory, with one function."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "users_functions.py"
    path.write_text(INVERTED)
    load_function.cache_clear()
    monkeypatch.delitem(sys.modules, "users_functions", raising=False)
    return path


def changed(**settings: object) -> ShardSettings:
    """Return settings with the function, which must be there."""
    fields = {"num_shards": 1, "order": "source", "format": "tensor", "function": "users_functions:change"}
    return ShardSettings.model_validate({**fields, **settings})


def published(tmp_path: Path) -> ShardSet:
    """Return the written shards with their manifest."""
    return publish_shard_set(tmp_path / "shards", CLASS_MAP, QUIET).shard_set


def pixels(shard_set: ShardSet, size: int) -> np.ndarray:
    """Return the decoded images in stored order."""
    (batch,) = Stream(shard_set=shard_set, order=stored_order(shard_set.index), batch_size=64, image_size=size)
    return batch.images.numpy()


def originals(tree: FolderTree) -> np.ndarray:
    """Return the source's images in their order."""
    return np.stack([np.asarray(Image.open(io.BytesIO(image.read()))) for image in tree.listing(CELL).images])


def test_what_it_returns_is_stored(write: Write, tree: FolderTree, functions: Path, tmp_path: Path):
    """The pixels are the function's, exact as tensors; its name and the hash of its code are in the manifest."""
    write(settings=changed())
    shard_set = published(tmp_path)

    np.testing.assert_array_equal(255 - originals(tree), pixels(shard_set, 32))
    assert "users_functions:change" == shard_set.manifest.encoding.function
    assert shard_set.manifest.encoding.function_sha256 is not None


def test_it_comes_before_resize_and_crop(write: Write, functions: Path, tmp_path: Path):
    """It sees the image as it is, and may return another size; stored is the size asked for."""
    functions.write_text("def change(image):\n    assert image.shape == (32, 32, 3)\n    return image[:, 8:24]\n")

    write(settings=changed(resize=8, center_crop=8))

    assert (20, 8, 8, 3) == pixels(published(tmp_path), 8).shape


def test_nothing_is_written_twice_until_it_is_edited(write: Write, tree: FolderTree, functions: Path, tmp_path: Path):
    """The same images, settings and function give the set that stands; an edited function another."""
    first, again = (write(settings=changed()) for _ in range(2))
    functions.write_text(INVERTED.replace("255 - image", "image // 2"))
    load_function.cache_clear()
    sys.modules.pop("users_functions")
    edited = write(settings=changed())

    assert [True, False, True] == [done.was_written for done in (first, again, edited)]
    np.testing.assert_array_equal(originals(tree) // 2, pixels(published(tmp_path), 32))


@pytest.mark.parametrize(
    ("fact", "edited"),
    [("encoding", {"format": "raw", "resize": 8}), ("order", {"name": "permuted", "seed": 3}), ("benchmark", "other")],
)
def test_a_record_that_says_other_than_its_fingerprint_is_written_again(
    write: Write, tmp_path: Path, fact: str, edited: object
):
    """The manifest would say of the images what an edited record says, though they were made otherwise."""
    settings = ShardSettings(num_shards=1, resize=16)
    first = write(settings=settings).record
    path = tmp_path / "shards" / "writer.json"
    record = json.loads(path.read_text())
    record[fact] = {**record[fact], **edited} if isinstance(edited, dict) else edited
    path.write_text(json.dumps(record))

    again = write(settings=settings)

    assert again.was_written
    assert first.model_copy(update={"wall_s": 0}) == again.record.model_copy(update={"wall_s": 0})


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("return image / 255", "float64 (32, 32, 3)"),
        ("return image[..., 0]", "uint8 (32, 32)"),
        ("return None", "NoneType"),
        ("return image[:0]", "(0, 32, 3)"),
        ("return 1 / 0", "ZeroDivisionError"),
    ],
)
def test_one_that_fails_is_named_with_the_image(write: Write, functions: Path, tmp_path: Path, body: str, named: str):
    """What it returned or raised and for which image is said, damaged images being allowed or not; nothing appears."""
    functions.write_text(f"def change(image):\n    {body}\n")

    for damaged in ("error", "skip"):
        with pytest.raises(ShardError) as raised:
            write(settings=changed(on_corrupt_image=damaged))
        assert "users_functions:change" in str(raised.value)
        assert named in str(raised.value)
    with pytest.raises(ShardError) as raised:
        write(settings=changed())
    assert "n01/image_000.JPEG" in str(raised.value)
    assert not (tmp_path / "shards").exists()


@pytest.mark.parametrize(
    "reference", ["change", "users_functions", "no_such_module_here:change", "a b:c", "math:floor"]
)
def test_one_that_cannot_be_found_is_refused_by_the_settings(functions: Path, reference: str):
    """Another form, a missing module and one without Python source are refused before anything is read."""
    with pytest.raises(ValueError, match="module"):
        ShardSettings(num_shards=1, function=reference)


def test_settings_are_checked_without_importing_it(functions: Path):
    """A benchmark file is read without running a user's code; what fails is said when it runs."""
    functions.write_text("raise RuntimeError('imported')")

    assert ShardSettings(num_shards=1, function="users_functions:change").changes_images
    with pytest.raises(ShardError, match="imported"):
        load_function("users_functions:change")
