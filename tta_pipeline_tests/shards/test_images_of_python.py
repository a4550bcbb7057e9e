"""Shards of images that Python code yields hold these images, each once, whatever they are called."""

import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tta_pipeline as tta
from tta_pipeline.errors import ClassMapError, ImagesError
from tta_pipeline_tests.conftest import jpeg

NAMES = ("a.jpg", "b.b.png", "c", "ünï cöde.JPEG", ".hidden.jpg", "..")


def images() -> Iterator[tuple[str, str, bytes]]:
    """Yield images of two classes, some with names that tar or webdataset would not keep as they are."""
    for number, name in enumerate(NAMES):
        yield ("n02", "n0/1")[number % 2], name, jpeg(number)


def contents(cell: tta.Shards) -> dict[str, tuple[str, bytes]]:
    """Return class and sha256 of each sample by the name of its image."""
    index = cell.shard_set.index
    rows = zip(index.table["source_name"].to_pylist(), index.labels, index.table["sha256"].to_pylist(), strict=True)
    return {name: (cell.classes[label], sha256) for name, label, sha256 in rows}


def test_each_image_is_there_once_byte_for_byte(tmp_path: Path):
    """With its class and its name; the cell is that of the folder, and the shards verify."""
    cell = tta.shard(images(), tmp_path / "mine/fog/5", num_shards=2)

    assert {f"{name}/{file}": (name, sha256(data).digest()) for name, file, data in images()} == contents(cell)
    assert ("fog|5", "mine", ("n0/1", "n02")) == (cell.manifest.cell.key, cell.manifest.benchmark, cell.classes)
    assert [()] == [verdict.problems for verdict in tta.verify(tmp_path / "mine")]


def test_a_path_or_a_picture_is_an_image_too(tmp_path: Path):
    """A file stays as it is, and a picture keeps its pixels in a PNG."""
    (tmp_path / "a.jpg").write_bytes(jpeg(1))
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8))

    cell = tta.shard([("n01", "a.jpg", tmp_path / "a.jpg"), ("n02", "b.png", picture)], tmp_path / "out", num_shards=1)

    assert ("n01", sha256(jpeg(1)).digest()) == contents(cell)["n01/a.jpg"]
    (pixels,) = [np.asarray(image) for image, label in cell if label == 1]
    np.testing.assert_array_equal(np.asarray(picture), pixels)


def test_the_same_images_are_not_written_again(tmp_path: Path):
    """Other pixels under the same names are."""
    first = tta.shard(images(), tmp_path / "out", num_shards=1)
    (shard,) = (tmp_path / "out").glob("*.tar")
    at = shard.stat().st_mtime_ns

    tta.shard(images(), tmp_path / "out", num_shards=1)
    assert at == shard.stat().st_mtime_ns
    changed = tta.shard(((name, file, jpeg(9)) for name, file, _ in images()), tmp_path / "out", num_shards=1)
    assert first.manifest.sha256 != changed.manifest.sha256


def test_labels_are_those_of_the_classes_that_are_named(tmp_path: Path):
    """So a set of some classes keeps the labels of all; a class that is not among them is refused."""
    few = [image for image in images() if image[0] == "n02"]
    cell = tta.shard(few, tmp_path / "few", num_shards=1, class_map=("n01", "n0/1", "n02"))

    assert {2} == set(np.unique(cell.shard_set.index.labels))
    with pytest.raises(ClassMapError, match="n02"):
        tta.shard(few, tmp_path / "none", num_shards=1, class_map=("n01",))


@pytest.mark.parametrize(
    "wrong",
    [
        ("n01", "folder/a.jpg", b"x"),
        ("n01", "", b"x"),
        ("n01", "a\0b.jpg", b"x"),
        ("", "a.jpg", b"x"),
        ("n01", "a.jpg", "text"),
        ("n01", 3, b"x"),
        ("n01", b"x"),
        ("n01", os.fsdecode(b"\xff.jpg"), b"x"),
        "n01",
        None,
    ],
)
def test_what_is_no_image_with_a_class_and_a_name_is_refused(tmp_path: Path, wrong: object):
    """By its number; nothing appears."""
    with pytest.raises(ImagesError, match=r"[Ii]mage 1"):
        tta.shard([("n01", "good.jpg", jpeg(0)), wrong], tmp_path / "out", num_shards=1)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "more",
    [[("n02", "a.jpg", jpeg(1))], [("n02", "a.png", jpeg(1))], [("n02", "cut.jpg", jpeg(1)[:300])], "none at all"],
)
def test_images_that_cannot_be_a_set_are_refused(tmp_path: Path, more: list[tuple[str, str, bytes]] | str):
    """Two of one name, a damaged one, and none at all."""
    found = [] if isinstance(more, str) else [*images(), *more]

    with pytest.raises(ImagesError):
        tta.shard(found, tmp_path / "out", num_shards=1)
    assert not (tmp_path / "out").exists()


def test_an_error_of_the_code_itself_comes_through(tmp_path: Path):
    """And leaves nothing behind, neither shards nor the images that were there."""

    def failing() -> Iterator[tuple[str, str, bytes]]:
        yield from images()
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        tta.shard(failing(), tmp_path / "out", num_shards=1)
    assert not (tmp_path / "out").exists()
