"""The lists of classes that come with the project are those of the datasets."""

from itertools import pairwise
from pathlib import Path

import pytest

from tta_pipeline.data.labels import shipped_lists
from tta_pipeline.data.labels.class_map import ClassMap
from tta_pipeline.data.labels.shipped_lists import (
    SHA256_BY_LIST,
    SHA256_BY_OUTPUT_MAP,
    shipped_classes,
    shipped_list_names,
    shipped_output_map,
)
from tta_pipeline.errors import ClassMapError

SIZES = {
    "cifar_10": 10, "cifar_100": 100, "imagenet": 1000, "imagenet_a": 200, "imagenet_r": 200, "tiny_imagenet": 200,
    "laion_c": 16, "objectnet": 113,
}  # fmt: skip


def test_every_file_is_a_list_and_every_list_a_file():
    """Nothing in the folder is without a pinned hash, and none of the sizes above is out of date."""
    files = {path.stem for path in Path(shipped_lists.__file__).parent.glob("lists/*")}

    assert set(SIZES) == set(shipped_list_names()) == files


@pytest.mark.parametrize(("name", "size"), SIZES.items())
def test_a_list_has_each_class_once_in_the_order_of_labels(name: str, size: int):
    """All orders are those of text, as `ImageFolder` sorts, so a list without repetition ascends strictly."""
    classes = shipped_classes(name)

    assert size == len(classes)
    assert all(one < other for one, other in pairwise(classes))
    if name in SHA256_BY_LIST:
        assert ClassMap(classes=classes).sha256 == SHA256_BY_LIST[name]


@pytest.mark.parametrize(("name", "rule", "num_outputs"), [("laion_c", "mean", 285), ("objectnet", "max", 125)])
def test_a_class_of_several_outputs_has_some_of_imagenet(name: str, rule: str, num_outputs: int):
    """With the rule of the field; no output is in two classes."""
    found = shipped_output_map(name)
    outputs = [output for members in found.outputs.values() for output in members]

    assert (rule, num_outputs, found.sha256) == (found.rule, len(set(outputs)), SHA256_BY_OUTPUT_MAP[name])
    assert len(outputs) == num_outputs
    assert set(outputs) < set(shipped_classes("imagenet"))


@pytest.mark.parametrize("name", ["imagenet_a", "imagenet_r", "tiny_imagenet"])
def test_a_class_subset_is_one_of_imagenet(name: str):
    """A head of 1,000 classes has an output for each class of the subset."""
    assert set(shipped_classes(name)) < set(shipped_classes("imagenet"))


def test_known_labels_are_what_models_say():
    """A few labels that every user knows: tench, tabby cat, toilet tissue; frog; aquarium fish."""
    imagenet = shipped_classes("imagenet")

    assert ("n01440764", "n02123045", "n15075141") == (imagenet[0], imagenet[281], imagenet[999])
    assert "frog" == shipped_classes("cifar_10")[6]
    assert "aquarium_fish" == shipped_classes("cifar_100")[1]


@pytest.mark.parametrize("name", ["imagenet_x", "", "../lists/imagenet", "imagenet.txt", "ImageNet"])
def test_an_unknown_list_is_refused_with_the_known_ones(name: str):
    """Whatever the name is, only names of lists are looked up."""
    with pytest.raises(ClassMapError) as raised:
        shipped_classes(name)

    assert all(value in str(raised.value) for value in (repr(name), *SHA256_BY_LIST))


@pytest.mark.parametrize("damage", ["swapped", "shorter", "binary", "gone"])
def test_a_list_that_was_changed_is_refused(tmp_path: Path, damage: str):
    """Other labels would be other numbers: the file is named."""
    path, classes = tmp_path / "imagenet.txt", list(shipped_classes("imagenet"))
    contents = {
        "swapped": "\n".join([classes[1], classes[0], *classes[2:]]).encode(),
        "shorter": "\n".join(classes[:-1]).encode(),
        "binary": b"\xff\xfe",
    }
    if damage in contents:
        path.write_bytes(contents[damage])

    with pytest.raises(ClassMapError, match=r"imagenet\.txt"):
        shipped_lists._read(path, SHA256_BY_LIST["imagenet"])
