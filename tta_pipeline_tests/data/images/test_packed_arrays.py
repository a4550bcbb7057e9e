"""CIFAR-10-C.tar is read where it lies: the same pixels as unpacked, and nothing is unpacked."""

import hashlib
import tarfile
from pathlib import Path

import numpy as np
import pytest
import yaml

from tta_pipeline.data.images.kinds.npy import NpyImages
from tta_pipeline.data.images.packed_arrays import first_is_array
from tta_pipeline.domain.cells import Cell
from tta_pipeline.errors import ImagesError
from tta_pipeline.extras.new_project.draft_benchmark import draft_benchmark
from tta_pipeline.util.progress import Progress, quiet_reporter

FOG_2 = Cell(corruption="fog", severity=2)


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """Arrays of fog and frost with labels, packed with a folder around them and a file before."""
    root = tmp_path / "CIFAR-10-C"
    root.mkdir()
    for seed, name in enumerate(("fog", "frost")):
        np.save(root / f"{name}.npy", np.random.default_rng(seed).integers(0, 256, (15, 32, 32, 3), np.uint8))
    np.save(root / "labels.npy", np.tile([2, 0, 9], 5))
    with tarfile.open(tmp_path / "CIFAR-10-C.tar", "w") as tar:
        tar.add(root, arcname=root.name)
    return tmp_path / "CIFAR-10-C.tar"


def images(root: Path, **changes) -> NpyImages:
    """Return the images of fog|2 in a folder or a tar."""
    return NpyImages(**{"root": root, "cells": (FOG_2,), "spill_root": root.parent / "spill", **changes})


def contents(found: NpyImages) -> dict[str, bytes]:
    """Return the images by name."""
    with found.prepared([FOG_2]):
        return {image.name: image.read() for image in found.listing(FOG_2).images}


def test_packed_and_unpacked_are_equal(packed: Path):
    """Names and bytes, labels and the arrays that are there."""
    folder = packed.with_suffix("")

    assert contents(images(folder)) == contents(images(packed))
    assert images(folder).class_names() == images(packed).class_names()
    assert ("fog", "frost") == images(folder).shifts() == images(packed).shifts()


def test_the_md5_is_compared_once(packed: Path):
    """Another md5 is refused before the first cell; the right one is not computed again for the next."""
    right = hashlib.md5(packed.read_bytes(), usedforsecurity=False).hexdigest()
    readings = []

    def reading(name: str, *_: object, **__: object) -> Progress:
        readings.append(name)
        return quiet_reporter(name, 0)

    found = images(packed, expected_md5=right, progress=reading)
    assert contents(found) == contents(found)

    assert 1 == len(readings)
    with pytest.raises(ImagesError, match=rf"CIFAR-10-C\.tar.*{right}.*0{{32}}"):
        contents(images(packed, expected_md5="0" * 32))


def test_what_cannot_be_read_in_place_is_refused(packed: Path, tmp_path: Path):
    """A compressed archive, one with two arrays of a name, and one without the array that is asked for."""
    for name, mode in (("a.tar.gz", "w:gz"), ("two.tar", "w"), ("none.tar", "w")):
        with tarfile.open(tmp_path / name, mode) as tar:
            for folder in ("x", "y")[: 2 if name == "two.tar" else 1]:
                tar.add(packed.with_suffix("") / "labels.npy", arcname=f"{folder}/labels.npy")

    for name, found in (
        ("a.tar.gz", r"x/labels\.npy"),
        ("two.tar", r"x/labels\.npy.*y/labels\.npy"),
        ("none.tar", r"labels\.npy.*fog\.npy"),
    ):
        with pytest.raises(ImagesError, match=rf"/{name}.*{found}"):
            contents(images(tmp_path / name))


def test_a_few_members_tell_whether_an_archive_has_arrays(tmp_path: Path):
    """What macOS hides before the first file counts for nothing; of an archive of hidden files, little is read."""
    for num_hidden, damaged_at, expected in ((0, None, True), (3, 8, True), (20, 8, False)):
        path = tmp_path / f"{num_hidden}.tar"
        with tarfile.open(path, "w") as tar:
            for name in [*(f"x/._{number}.npy" for number in range(num_hidden)), "x/fog.npy", *map(str, range(9))]:
                tar.addfile(tarfile.TarInfo(name))
        if damaged_at is not None:
            data = bytearray(path.read_bytes())
            data[512 * damaged_at] ^= 1
            path.write_bytes(data)

        assert expected == first_is_array(path)


def test_an_array_of_five_severities_is_not_one_of_a_single_severity(packed: Path):
    """All rows would be severity 2; classes in turn repeat more often, and a set without severities takes the array."""
    with pytest.raises(ImagesError, match=r"labels\.npy\D*\b3\b\D*\b5\b.*\b2\b"):
        contents(images(packed, severities=(2,)))

    np.save(packed.with_suffix("") / "labels.npy", np.arange(15))
    assert 15 == len(contents(images(packed.with_suffix(""), severities=(2,))))
    np.save(packed.with_suffix("") / "labels.npy", np.zeros(15, int))
    assert 15 == len(contents(images(packed.with_suffix(""), severities=(2,))))


def test_what_rows_are_taken_decides_the_version(packed: Path):
    """Other severities, another array in the tar, and one that lies elsewhere in it are other images."""
    of_frost = {"file_names": {"fog": "frost.npy"}}

    for root in (packed, packed.with_suffix("")):
        found = [images(root, **changes).version(FOG_2) for changes in ({}, {"severities": (1, 2, 3)}, of_frost)]
        assert 3 == len(set(found))
        assert found[0] == images(root).version(FOG_2)


def test_new_benchmark_knows_it(packed: Path):
    """The names are CIFAR-10-C's, and the images are not: their set is custom, and their classes numbers."""
    text = draft_benchmark("mine", [packed]).text

    assert {"custom", "class_map"} <= yaml.safe_load(text).keys() - {"dataset"}
    assert "folders" == yaml.safe_load(text)["class_map"]
    assert "# published: cifar_10_c" in text
