"""Classes that no folder says: from file names, from a JSON, from a list of any base name, by the devkit's numbers."""

import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError
from scipy.io import savemat

from tta_pipeline.data.datasets.dataset_files import shipped_sets
from tta_pipeline.data.images.images_section import ImagesContext
from tta_pipeline.data.images.kinds.clean_images import CleanImages
from tta_pipeline.domain.cells import CLEAN
from tta_pipeline.errors import ClassMapError
from tta_pipeline_tests.conftest import jpeg

FILES = ("cat_1.jpg", "dog_2.jpg", "ape_3.jpg")
EXPECTED = ["ape/ape_3.jpg", "cat/cat_1.jpg", "dog/dog_2.jpg"]


@pytest.fixture(params=["folder", "archive"])
def lie(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Path]:
    """Lay files without folders, in a folder or packed."""

    def laid(*names: str) -> Path:
        (tmp_path / "files").mkdir()
        for number, name in enumerate(names):
            (tmp_path / "files" / name).write_bytes(jpeg(number))
        if request.param == "folder":
            return tmp_path / "files"
        with tarfile.open(tmp_path / "files.tar", "w") as tar:
            for name in names:
                tar.add(tmp_path / "files" / name, arcname=name)
        return tmp_path / "files.tar"

    return laid


def names(tmp_path: Path, **fields: object) -> list[str]:
    """Return the names of the clean images, `<class>/<file>`."""
    context = ImagesContext(
        cells=(CLEAN,), dataset=shipped_sets()["imagenet_c"], spill_root=tmp_path / "spill",
        generated_root=tmp_path / "generated", image_size=32,
    )  # fmt: skip
    source = CleanImages.model_validate({"layout": "flat", **fields}).open(context)
    with source.prepared([CLEAN]):
        found = [image.name for image in source.listing(CLEAN).images]
        assert sorted({name.split("/")[0] for name in found}) == sorted(source.class_names())
    return found


def test_the_class_is_in_the_file_name(tmp_path: Path, lie: Callable[..., Path]):
    """By the first group of a pattern."""
    assert EXPECTED == names(tmp_path, path=lie(*FILES), class_pattern="^([a-z]+)_")


def test_a_number_in_a_file_name_is_read_in_any_form(tmp_path: Path, lie: Callable[..., Path]):
    """As `2` with a fraction of zero; with another fraction it is refused."""
    laid = lie("a_2.0_.jpg", "b_10.0_7.5_.jpg")

    assert ["10/b_10.0_7.5_.jpg", "2/a_2.0_.jpg"] == names(tmp_path, path=laid, class_pattern="_([0-9.]+)_")
    with pytest.raises(ClassMapError, match=r"7\.5"):
        names(tmp_path, path=laid, class_pattern="_([0-9.]+)_[.j]")


def test_a_list_gives_classes_without_an_image_too(tmp_path: Path, lie: Callable[..., Path]):
    """Of a part of the images, the labels are those of all."""
    path = tmp_path / "labels.json"
    path.write_text(json.dumps({"cat_1.jpg": 0, "ape_3.jpg": 2, "dog_2.jpg": 1}))
    laid = lie("cat_1.jpg", "ape_3.jpg")
    context = ImagesContext(
        cells=(CLEAN,), dataset=shipped_sets()["imagenet_c"], spill_root=tmp_path / "spill",
        generated_root=tmp_path / "generated", image_size=32,
    )  # fmt: skip
    source = CleanImages.model_validate({"layout": "flat", "path": laid, "ground_truth": path}).open(context)

    assert ("0", "1", "2") == source.class_names()
    with source.prepared([CLEAN]):
        assert ("0", "1", "2") == source.class_names()


def test_a_json_says_the_class_of_each_file(tmp_path: Path, lie: Callable[..., Path]):
    """File name to class; a file that it lacks is named."""
    path = tmp_path / "labels.json"
    path.write_text(json.dumps({f"some/{name}": name[:3] for name in FILES}))
    laid = lie(*FILES)

    assert EXPECTED == names(tmp_path, path=laid, ground_truth=path)
    path.write_text(json.dumps({FILES[0]: "cat"}))
    with pytest.raises(ClassMapError, match=r"(dog_2|ape_3)\.jpg.*\b1\b"):
        names(tmp_path, path=laid, ground_truth=path)
    path.write_text(json.dumps({FILES[0]: ["cat"]}))
    with pytest.raises(ClassMapError, match=r"labels\.json.*cat_1\.jpg.*\['cat'\]"):
        names(tmp_path, path=laid, ground_truth=path)


def test_a_line_for_each_number_of_any_base_name(tmp_path: Path, lie: Callable[..., Path]):
    """Lines count from 1; a name without a number is refused."""
    (tmp_path / "truth.txt").write_text("cat\ndog\n")

    assert ["cat/test_001.jpg", "dog/test_002.jpg"] == names(
        tmp_path, path=lie("test_001.jpg", "test_002.jpg"), ground_truth=tmp_path / "truth.txt",
        ground_truth_name="test_%03d.jpg",
    )  # fmt: skip
    with pytest.raises(ValidationError, match=r"'test_%s\.jpg'.*test_%05d\.png"):
        CleanImages(path=tmp_path, layout="flat", ground_truth=tmp_path / "truth.txt", ground_truth_name="test_%s.jpg")


def test_numbers_of_the_devkit_count_from_1_in_its_order(tmp_path: Path, lie: Callable[..., Path]):
    """Number 1 is the first of meta.mat, and not the class with label 0 or 1."""
    dtype = [("ILSVRC2012_ID", "O"), ("WNID", "O"), ("num_children", "O")]
    synsets = np.array([(1, "n09", 0), (2, "n01", 0), (3, "n05", 0)], dtype)
    savemat(tmp_path / "meta.mat", {"synsets": synsets})
    (tmp_path / "truth.json").write_text(json.dumps({"a.jpg": 1, "b.jpg": 3, "c.jpg": 2}))

    assert ["n01/c.jpg", "n05/b.jpg", "n09/a.jpg"] == names(
        tmp_path, path=lie("a.jpg", "b.jpg", "c.jpg"), ground_truth=tmp_path / "truth.json",
        devkit=tmp_path / "meta.mat",
    )  # fmt: skip


def test_two_ways_at_once_are_refused(tmp_path: Path):
    """A pattern and a ground truth could disagree."""
    with pytest.raises(ValidationError, match=r"ground_truth.*class_pattern"):
        CleanImages(path=tmp_path, layout="flat", ground_truth=tmp_path, class_pattern="(a)")
