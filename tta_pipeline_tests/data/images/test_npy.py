"""Arrays of CIFAR-10-C's layout become images that hold the same pixels, and leave nothing behind."""

import io
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tta_pipeline.data.image_bytes import ImageHeader, read_image_header
from tta_pipeline.data.images.kinds.npy import NpyImages
from tta_pipeline.data.images.spill import spill_folder
from tta_pipeline.domain.cells import CLEAN, Cell
from tta_pipeline.errors import ClassMapError, ImagesError
from tta_pipeline.extras.new_project.survey import survey

FOG_2, FOG_5 = Cell(corruption="fog", severity=2), Cell(corruption="fog", severity=5)
NUM_IMAGES = 6
LABELS = np.tile(np.array([3, 0, 10, 3, 1, 2], np.uint8), 5)
IMAGES = np.random.default_rng(0).integers(0, 256, (5 * NUM_IMAGES, 8, 8, 3), np.uint8)


@pytest.fixture
def source(tmp_path: Path) -> NpyImages:
    """Six images of eleven classes at five severities of fog."""
    (tmp_path / "source").mkdir()
    np.save(tmp_path / "source" / "fog.npy", IMAGES)
    np.save(tmp_path / "source" / "labels.npy", LABELS)
    return NpyImages(root=tmp_path / "source", cells=(FOG_2, FOG_5), spill_root=tmp_path / "spill")


def test_labels_for_some_of_the_images_are_refused_while_the_folder_is_surveyed(tmp_path: Path):
    """Else the file that `new-benchmark` writes fails only when its first cell is sharded."""
    np.save(tmp_path / "fog.npy", IMAGES)
    np.save(tmp_path / "labels.npy", LABELS[:9])

    with pytest.raises(ImagesError, match=r"labels\.npy has 9 labels, but .*fog\.npy has 30 images"):
        survey((tmp_path,))


def test_a_severity_is_its_block_of_rows(source: NpyImages):
    """Images keep every pixel, are named by their row within the severity, and are sorted."""
    with source.prepared([FOG_2, FOG_5]):
        found = {
            cell: {
                image.name: np.asarray(Image.open(io.BytesIO(image.read()))) for image in source.listing(cell).images
            }
            for cell in (FOG_2, FOG_5)
        }

    names = ["00/00001.png", "01/00004.png", "02/00005.png", "03/00000.png", "03/00003.png", "10/00002.png"]
    for cell in (FOG_2, FOG_5):
        assert names == list(found[cell])
        for name, image in found[cell].items():
            np.testing.assert_array_equal(IMAGES[(cell.severity - 1) * NUM_IMAGES + int(name[3:8])], image)


def test_class_names_come_in_label_order(source: NpyImages):
    """Names that a user gives keep the order of the labels; names made of labels sort as numbers."""
    named = replace(source, class_names_by_label=tuple("zyxwvutsrqp"))

    assert tuple(f"{label:02d}" for label in range(11)) == source.class_names()
    assert tuple("zyxwvutsrqp") == named.class_names()
    with named.prepared([FOG_2]):
        assert {"z", "y", "x", "w", "p"} == {image.class_name for image in named.listing(FOG_2).images}


def test_each_slice_is_a_whole_png(source: NpyImages):
    """What the shard writer looks at before it takes an image is in order."""
    with source.prepared([FOG_2]):
        headers = [read_image_header(image.read()) for image in source.listing(FOG_2).images]

    assert [ImageHeader(encoding="png", height=8, width=8)] * NUM_IMAGES == headers


def test_nothing_is_left_when_the_block_ends(source: NpyImages):
    """The spill folder is gone after success and after failure, and a listing is only there in between."""
    with source.prepared([FOG_2]):
        listing = source.listing(FOG_2)
        assert 1 == len(list(source.spill_root.iterdir()))
        with pytest.raises(ImagesError, match=r"fog\|5.*fog\|2.*prepared\(cells\)"):
            source.listing(FOG_5)
    with pytest.raises(ImagesError, match=r"fog\|2.*prepared\(cells\)"):
        source.listing(FOG_2)
    with pytest.raises(ImagesError, match=r"00/00001\.png"):
        listing.images[0].read()
    with pytest.raises(KeyError), source.prepared([FOG_2]):
        raise KeyError

    assert [] == list(source.spill_root.iterdir())


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An image that finds no room is an error with the file and the free space."""
    with spill_folder(tmp_path) as spill:
        file = spill.file(FOG_2)
        file.close()
        monkeypatch.setattr(file, "_file", Path("/dev/full").open("wb"))  # noqa: SIM115 - closed by the folder
        file.append("a", "b.png", b"data")
        with pytest.raises(ImagesError, match=r"fog-2.*\b0\.0 MiB.*\d MiB"):
            file.flush_images()


def test_the_version_changes_when_a_file_does(source: NpyImages):
    """Asking twice gives one version; touched images, touched labels and another cell give others."""
    before = source.version(FOG_2)
    assert before == source.version(FOG_2)

    os.utime(source.root / "fog.npy", ns=(1, 1))
    images_touched = source.version(FOG_2)
    os.utime(source.root / "labels.npy", ns=(1, 1))

    assert 4 == len({before, images_touched, source.version(FOG_2), source.version(FOG_5)})


def damaged(name: str, array: np.ndarray) -> Callable[[NpyImages], None]:
    """Return a function that saves *array* over the file *name*, pickled if it must be."""
    return lambda source: np.save(source.root / name, array, allow_pickle=True)


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lambda source: (source.root / "fog.npy").unlink(), r"fog\.npy.*\bErrno 2\b"),
        (lambda source: (source.root / "fog.npy").write_bytes(b""), r"fog\.npy.*b''.*NUMPY"),
        (lambda source: os.truncate(source.root / "fog.npy", 500), r"fog\.npy.*\b372\b.*\b5760\b"),
        (damaged("fog.npy", np.array([{}])), r"fog\.npy.*\bobjects\b"),
        (damaged("fog.npy", IMAGES.astype(float)), r"fog\.npy.*\bfloat64\b.*\buint8\b"),
        (damaged("fog.npy", IMAGES[:29]), r"fog\.npy.*\(29, 8, 8, 3\)"),
        (damaged("fog.npy", IMAGES[..., 0]), r"fog\.npy.*\(30, 8, 8\)"),
        (damaged("labels.npy", np.array([{}])), r"labels\.npy.*\bobjects\b"),
        (damaged("labels.npy", LABELS.astype(float)), r"labels\.npy.*\bfloat64\b"),
        (damaged("labels.npy", LABELS[:20]), r"labels\.npy.*\b20\b.*fog\.npy.*\b30\b"),
        (damaged("labels.npy", LABELS.astype(int) - 2), r"labels\.npy.*-2\b.*\b1\b.*\b10\b"),
        (damaged("labels.npy", LABELS.astype(int) + 10**15), r"labels\.npy.*\b1000000000000003\b.*\b0\b"),
    ],
)
def test_damaged_files_are_refused(source: NpyImages, damage: Callable[[NpyImages], object], found: str):
    """A file that is missing, cut, pickled, of another type or shape, or at odds with the other is named."""
    damage(source)

    with pytest.raises(ImagesError, match=f"{source.root}/{found}"), source.prepared([FOG_2]):
        pass


@pytest.mark.parametrize(
    ("names", "found"),
    [("abcdefghij", r"labels\.npy.*\b10\b.*\b2\b.*\b0\b.*\b9\b"), ("abcdefghijb", r"'b'.*\b11\b")],
)
def test_names_that_do_not_fit_the_labels_are_refused(source: NpyImages, names: str, found: str):
    """Eleven labels need eleven names, each another."""
    with pytest.raises(ImagesError, match=found):
        replace(source, class_names_by_label=tuple(names)).class_names()


def test_clean_images_are_elsewhere(source: NpyImages):
    """An array file has severities 1 to 5 and no other."""
    np.save(source.root / "clean.npy", IMAGES)

    with (
        pytest.raises(ImagesError, match=r"clean\|0.*\b1, 2, 3, 4, 5\b"),
        source.prepared([CLEAN]),
    ):
        pass


def test_labels_that_count_from_1_are_refused(source: NpyImages):
    """Without class names, a label 0 that no image has would shift every class; with names for all it may be absent."""
    np.save(source.root / "labels.npy", np.where(LABELS == 0, 1, LABELS))

    with pytest.raises(ClassMapError, match=r"labels\.npy\D*\b1\b\D*\b10\b\D*\b0\b"):
        source.class_names()
    assert tuple("zyxwvutsrqp") == replace(source, class_names_by_label=tuple("zyxwvutsrqp")).class_names()
