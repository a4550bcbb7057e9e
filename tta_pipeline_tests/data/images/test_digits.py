"""The generated benchmark lies on disk as a real one does, and is made only once."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tta_pipeline.data.corruptions import corrupt
from tta_pipeline.data.image_bytes import read_npy
from tta_pipeline.data.images.kinds.digits import (
    DigitsSection,
    DigitsSettings,
    LettersSettings,
    digit_tree,
    generate_cell,
)
from tta_pipeline.data.images.kinds.letters import LETTERS, drawn_letters
from tta_pipeline.domain.cells import CLEAN, TRAIN, Cell

SETTINGS = DigitsSettings(seed=3, num_test=40, jpeg_quality=85, severity_table="cifar_c")
LOSSLESS = SETTINGS.model_copy(update={"jpeg_quality": None})
CELL = Cell(corruption="contrast", severity=5)


def test_a_cell_lies_as_in_imagenet_c(tmp_path: Path):
    """Images are at <corruption>/<severity>/<class>/<name>.JPEG, 32x32 RGB, and there is nothing else in the tree."""
    generate_cell(tmp_path / "source", CELL, SETTINGS)

    paths = [path for path in (tmp_path / "source").rglob("*") if path.is_file()]
    assert 40 == len(paths)
    assert all(path.relative_to(tmp_path / "source").match("contrast/5/[0-9]/digit_*.JPEG") for path in paths)
    with Image.open(paths[0]) as image:
        assert ("JPEG", "RGB", (32, 32)) == (image.format, image.mode, image.size)


def test_lossless_digits_keep_what_the_corruption_made(tmp_path: Path):
    """As arrays whose every pixel is that of the corruption, of the same noise as the JPEG files, in the source."""
    for cell in (CLEAN, CELL):
        generate_cell(tmp_path / "source", cell, LOSSLESS)
    tree = digit_tree(tmp_path / "source", (CELL, CLEAN))
    clean, made = (
        {image.name: read_npy(image.read()) for image in tree.listing(cell).images} for cell in (CLEAN, CELL)
    )

    assert 40 == len(made)
    for name, pixels in made.items():
        key = f"{Path(name).stem}.JPEG"
        expected = corrupt(clean[name][None], "contrast", 5, keys=[key], seed=3, table="cifar_c")[0]
        np.testing.assert_array_equal(expected, pixels)


@pytest.mark.parametrize("damage", ["flipped", "record"])
def test_bytes_are_believed_and_no_time_stamps(tmp_path: Path, damage: str):
    """A flipped byte under the old size and time, and a record of nonsense: the cell is made again."""
    first = generate_cell(tmp_path / "source", CELL, SETTINGS)
    path = next((tmp_path / "source").rglob("*.JPEG"))
    status, data = path.stat(), bytearray(path.read_bytes())
    if damage == "flipped":
        data[200] ^= 1
        path.write_bytes(data)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    else:
        next((tmp_path / "source_records").iterdir()).write_text("[1, 2]")

    assert first.content_sha256 == generate_cell(tmp_path / "source", CELL, SETTINGS).content_sha256
    assert status.st_mtime_ns != path.stat().st_mtime_ns
    assert bytes(data) != path.read_bytes() or damage == "record"


def test_nothing_is_generated_twice(tmp_path: Path):
    """A second call leaves every file as it is, and a changed file brings the cell back."""
    first = generate_cell(tmp_path / "source", CELL, SETTINGS)
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "source").rglob("*.JPEG")}

    assert first == generate_cell(tmp_path / "source", CELL, SETTINGS)
    assert times == {path: path.stat().st_mtime_ns for path in times}

    next(iter(times)).write_bytes(b"damage")
    assert first.content_sha256 == generate_cell(tmp_path / "source", CELL, SETTINGS).content_sha256
    assert b"damage" != next(iter(times)).read_bytes()


def test_the_same_settings_give_the_same_bytes(tmp_path: Path):
    """Content depends on the settings alone; another seed gives another split."""
    here, there = (generate_cell(tmp_path / name / "source", CELL, SETTINGS).content_sha256 for name in "ab")
    other = generate_cell(tmp_path / "c" / "source", CELL, SETTINGS.model_copy(update={"seed": 4}))

    assert here == there
    assert here != other.content_sha256


def test_clean_images_are_the_uncorrupted_test_images(tmp_path: Path):
    """Every corrupted image has its clean counterpart of the same name, and training images are others."""
    for cell in (CELL, CLEAN, TRAIN):
        generate_cell(tmp_path / "source", cell, SETTINGS)
    names = {
        cell: {path.name for path in (tmp_path / "source" / cell.path).rglob("*.JPEG")} for cell in (CELL, CLEAN, TRAIN)
    }

    assert names[CELL] == names[CLEAN]
    assert not names[CLEAN] & names[TRAIN]
    contrasts = [
        np.std([np.asarray(Image.open(path)) for path in (tmp_path / "source" / cell.path).rglob("*.JPEG")])
        for cell in (CLEAN, CELL)
    ]
    assert contrasts[1] < contrasts[0] / 2


def test_letters_lie_as_digits_do_and_are_other_classes(tmp_path: Path):
    """In folders of letters that no one reads as a digit, with as many greys; digits keep their recipe."""
    letters = LettersSettings(**SETTINGS.model_dump(), characters="letters")

    drawn = generate_cell(tmp_path / "source", CELL, letters)
    again = generate_cell(tmp_path / "source", CELL, letters)

    folders = {path.parent.name for path in (tmp_path / "source").rglob("*.JPEG")}
    assert folders <= set(LETTERS)
    assert drawn == again
    assert drawn.settings == letters
    assert not folders & set("BGIOQSZ")
    assert list(range(17)) == np.unique(drawn_letters()[0]).tolist()
    section = {"kind": "digits", "seed": 3, "num_test": 40, "severity_table": "cifar_c"}
    assert DigitsSection.model_validate(section).recipe == LOSSLESS.model_dump()
    assert DigitsSection.model_validate({**section, "characters": "letters"}).settings.characters == "letters"
