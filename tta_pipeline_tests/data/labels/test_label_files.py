"""Files that say what the classes are yield them in label order, or an error that says where they do not."""

import json
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from tta_pipeline.benchmarks.load_files import load_benchmark
from tta_pipeline.benchmarks.open_images import load_class_map
from tta_pipeline.data.labels.label_files import (
    class_by_file,
    class_by_pattern,
    read_classes,
    read_devkit_ids,
    read_ground_truth,
    read_output_map,
)
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import ClassMapError
from tta_pipeline_tests.conftest import SMALL

DEVKIT = [(1, "n02119789", 0), (2, "n02100735", 0), (3, "n01440764", 0), (4, "n00001740", 2)]
"""Number, WordNet id and number of children; the numbers do not follow the alphabet, as in the real kit."""


def write_devkit(path: Path, synsets: list[tuple[object, object, int]]) -> Path:
    """Write a `meta.mat` with the fields of the real one."""
    names = (
        "ILSVRC2012_ID",
        "WNID",
        "words",
        "gloss",
        "num_children",
        "children",
        "wordnet_height",
        "num_train_images",
    )
    array = np.zeros((len(synsets), 1), [(name, object) for name in names])
    for row, (number, wnid, num_children) in enumerate(synsets):
        children = np.arange(1.0, num_children + 1)
        array[row, 0] = (number, wnid, "words", "a gloss", num_children, children, 0, 1300)
    savemat(path, {"synsets": array}, do_compression=True)
    return path


@pytest.mark.parametrize(
    "content",
    [
        ["tench", "goldfish", "crane"],
        {"crane": 2, "tench": 0, "goldfish": 1},
        {"0": "tench", "1": "goldfish", "2": "crane"},
        {"0": ["tench", "a fish"], "2": ["crane", "a bird"], "1": ["goldfish", "a fish"]},
    ],
)
def test_json_of_four_forms_gives_the_label_order(tmp_path: Path, content: object):
    """A list, names with labels, labels with names and torchvision's form mean the same."""
    (tmp_path / "classes.json").write_text(json.dumps(content))

    assert ("tench", "goldfish", "crane") == read_classes(tmp_path / "classes.json")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", r"line 1\b"),
        ('"tench"', "'tench'"),
        ("[]", ""),
        ("{}", ""),
        ('["tench", 1]', r"\b1\b"),
        ('["tench", ""]', "''"),
        ('["tench", "tench"]', "'tench'"),
        ('{"tench": 1, "tench": 0}', "'tench'"),
        ('{"tench": 0, "crane": 0}', r"\b0\b"),
        ('{"tench": 0, "crane": 2}', r"'crane'.*\b2\b.*\b1\b"),
        ('{"tench": -1, "crane": 0}', r"'tench'.*-1\b"),
        ('{"tench": true}', "'tench'.*True"),
        ('{"tench": "0"}', "'tench'.*'0'"),
        ('{"1": "tench"}', r"'tench'.*\b1\b"),
        ('{"0": []}', r"\[\]"),
    ],
)
def test_json_that_is_no_class_list_is_refused(tmp_path: Path, text: str, found: str):
    """Gaps, repetitions and wrong types are named together with the file."""
    (tmp_path / "classes.json").write_text(text)

    with pytest.raises(ClassMapError, match=rf"classes\.json.*{found}"):
        read_classes(tmp_path / "classes.json")


def test_several_outputs_may_stand_for_a_class(tmp_path: Path):
    """The classes are labelled in the order of the file, which says by which rule their outputs are combined."""
    path = tmp_path / "classes.json"
    path.write_text('{"rule": "max", "outputs": {"fish": ["tench", "goldfish"], "bird": ["crane"]}}')

    found = read_output_map(path)

    assert ("fish", "bird") == read_classes(path) == found.classes
    assert ("max", ("tench", "goldfish")) == (found.rule, found.outputs["fish"])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"rule": "sum", "outputs": {"fish": ["tench"]}}', r"sum.*\bmean or max\b"),
        ('{"outputs": {"fish": ["tench"]}}', r"\bmean or max\b"),
        ('{"rule": "max", "outputs": {"fish": []}}', r"fish.*\[\]"),
        ('{"rule": "max", "outputs": {"fish": [1]}}', r"fish.*\[1\]"),
        ('{"rule": "max", "outputs": {"fish": ["tench"], "food": ["tench"]}}', "tench.*more than once"),
        ('{"rule": "max", "outputs": {}}', "no class"),
    ],
)
def test_classes_without_a_rule_or_outputs_are_refused(tmp_path: Path, text: str, found: str):
    """An unknown rule, an empty class and an output in two classes are named together with the file."""
    (tmp_path / "classes.json").write_text(text)

    with pytest.raises(ClassMapError, match=rf"classes\.json.*{found}"):
        read_classes(tmp_path / "classes.json")


def test_devkit_labels_are_not_devkit_numbers(tmp_path: Path):
    """Classes are the sorted ids of the leaves; numbers keep the kit's own order and serve the ground truth alone."""
    path = write_devkit(tmp_path / "meta.mat", DEVKIT)

    assert ("n01440764", "n02100735", "n02119789") == read_classes(path)
    assert {1: "n02119789", 2: "n02100735", 3: "n01440764"} == read_devkit_ids(path)


@pytest.mark.parametrize(
    ("synsets", "found"),
    [
        ([(1, "n1", 0), (2, "n2", 0), (2, "n3", 0)], r"\b2\b"),
        ([(1, "n1", 0), (2, "n1", 0)], "'n1'"),
        ([(1, "n1", 0), (3, "n2", 0)], r"'n2'.*\b3\b.*\b2\b"),
        ([(1, "n1", 4), (2, "n2", 4)], ""),
        ([("one", "n1", 0), (2, "n2", 0)], "'one'"),
    ],
)
def test_a_wrong_devkit_is_refused(tmp_path: Path, synsets: list[tuple[object, object, int]], found: str):
    """Repeated, missing and impossible numbers are named."""
    with pytest.raises(ClassMapError, match=rf"meta\.mat.*{found}"):
        read_classes(write_devkit(tmp_path / "meta.mat", synsets))


def test_other_files_are_no_devkit(tmp_path: Path):
    """A cut file, another array, a missing file and another suffix are refused, each with its path."""
    path = write_devkit(tmp_path / "meta.mat", DEVKIT)
    path.write_bytes(path.read_bytes()[:200])
    savemat(tmp_path / "other.mat", {"values": np.arange(3)})

    for name, expected in {
        "meta.mat": "synsets",
        "other.mat": "synsets",
        "none.mat": "",
        "wnids.pkl": r"\.json.*\.mat",
    }.items():
        with pytest.raises(ClassMapError, match=rf"{re.escape(name)}.*{expected}"):
            read_classes(tmp_path / name)


def test_a_ground_truth_in_json_maps_names_to_classes(tmp_path: Path):
    """A list has no names, and no class is made of what is none."""
    for content in (["cat"], {"a.jpg": True}, {"a.jpg": ""}, {"a.jpg": 1.5}):
        (tmp_path / "truth.json").write_text(json.dumps(content))
        with pytest.raises(ClassMapError, match=r"truth\.json"):
            read_ground_truth(tmp_path / "truth.json")


def test_numbers_of_a_ground_truth_are_read_in_any_form(tmp_path: Path):
    """As numbers of the devkit, and as names that are numbers; digits keep the zeros in front of them."""
    (tmp_path / "truth.txt").write_text("tensor(1)\n2.0\n[3]\n")
    (tmp_path / "truth.json").write_text('{"a.png": "np.int64(10)", "b.png": 2, "c.png": "03"}')

    assert ["x", "y", "z"] == [*read_ground_truth(tmp_path / "truth.txt", {1: "x", 2: "y", 3: "z"}).values()]
    assert ["1", "2", "3"] == [*read_ground_truth(tmp_path / "truth.txt").values()]
    assert ["10", "2", "03"] == [*read_ground_truth(tmp_path / "truth.json").values()]


def test_the_ground_truth_names_each_validation_image(tmp_path: Path):
    """Line i is the class of image i, looked up by the devkit's number or given as a name."""
    (tmp_path / "numbers.txt").write_bytes(b"3\r\n1\r\n3\r\n")
    (tmp_path / "names.txt").write_text("n01440764\nn02119789\nn01440764\n\n")
    expected = {
        "ILSVRC2012_val_00000001.JPEG": "n01440764",
        "ILSVRC2012_val_00000002.JPEG": "n02119789",
        "ILSVRC2012_val_00000003.JPEG": "n01440764",
    }

    ids = read_devkit_ids(write_devkit(tmp_path / "meta.mat", DEVKIT))
    assert expected == read_ground_truth(tmp_path / "numbers.txt", ids)
    assert expected == read_ground_truth(tmp_path / "names.txt")


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("val/a b.JPEG n02\nval_1.png n01\n", None),
        ("val/a b.JPEG\tn02\t0\t0\t62\t62\nval_1.png\tn01\t9\t9\t50\t51\n", None),
        ("\ufeffval/a b.JPEG 1\nval_1.png 0\n", {0: "n01", 1: "n02"}),
        ("a b.JPEG,n02\r\nval_1.png,n01\r\n", None),
        ('"val/a b.JPEG"; "n02"\n"val_1.png"; "n01"\n', None),
        ("val\\a b.JPEG\tn02\nval\\val_1.png\tn01\n", None),
        ("filename,label,box\na b.JPEG,n02,\nval_1.png,n01,\n", None),
        ('label;path\nn02;"val/a b.JPEG"\nn01;val/val_1.png\n', None),
        ("ImageId,PredictionString\na b.JPEG,n02 1 2 3 4 n02 5 6 7 8\nval_1.png,n01 1 2 3 4\n", None),
    ],
)
def test_lines_may_name_their_file(tmp_path: Path, text: str, ids: dict[int, str] | None):
    """File and class in one line, Tiny ImageNet's further columns and labels in place of names are understood."""
    (tmp_path / "val.txt").write_text(text)

    assert {"a b.JPEG": "n02", "val_1.png": "n01"} == read_ground_truth(tmp_path / "val.txt", ids)


def test_a_list_may_name_files_without_their_suffix(tmp_path: Path):
    """As Kaggle's list of ImageNet does."""
    (tmp_path / "val.csv").write_text("ImageId,PredictionString\nval_1,n01 1 2 3 4\n")

    assert "n01" == class_by_file(read_ground_truth(tmp_path / "val.csv"), "val_1.JPEG", where="val")


def test_numbers_from_0_are_labels(tmp_path: Path):
    """The devkit's begin with 1 and have another order, so without a 0 they stay what they are."""
    for name, first in (("from_0", 0), ("from_1", 1)):
        (tmp_path / name).write_text(f"a.png {first}\nb.png {first + 1}\n")

    assert ["n01", "n02"] == [*read_ground_truth(tmp_path / "from_0", classes=["n01", "n02", "n03"]).values()]
    assert ["1", "2"] == [*read_ground_truth(tmp_path / "from_1", classes=["n01", "n02", "n03"]).values()]


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", ""),
        (b"1\n\n2\n", r"\b2\b.*''"),
        (b"1\na.png 2\n", r"\b2\b.*'a\.png 2'"),
        (b"a.png 1\n2\n", r"\b2\b.*'2'"),
        (b"file,label,box\na.png,1\n", r"\b2\b.*'a\.png,1'.*\b3\b"),
        (b"a.png 1\na.png 2\n", r"\b2\b.*a\.png"),
        (b"1\n0\n", r"\b2\b.*'0'.*\b1\b.*\b2\b"),
        (b"1\n-1\n", r"\b2\b.*-1"),
        (b"1\n1.5\n", r"entry 2 .*1\.5"),
        (b"1\n[0, 1]\n", r"entry 2 .*\[0, 1\]"),
        (b"1\n\xff\n", "0xff"),
    ],
)
def test_a_wrong_ground_truth_is_refused(tmp_path: Path, data: bytes, found: str):
    """The line, what it holds and what it should are named."""
    (tmp_path / "val.txt").write_bytes(data)

    with pytest.raises(ClassMapError, match=rf"val\.txt.*{found}"):
        read_ground_truth(tmp_path / "val.txt", {1: "n01", 2: "n02"})


@pytest.mark.parametrize(
    "text",
    [
        "n01,a.png\nn02,b.png\nn01,c.png\n",  # a class and a file name
        "n01/a.png\nn02/b.png\n",
        "0,a.png,n01\n1,b.png,n02\n",
        "a.png|n01\nb.png|n02\n",
        "val_1 n01\nval_2 n02\n",
        "1 n01\n2 n02\n3 n01\n",
        "label\nn01\nn02\nn01\n",
        "# classes\nn01\nn02\nn01\n",
        "a.png class_9\nb.png class_10\n",
        "a.png 0\nb.png 2\n",  # the label 2 would be 1
        "image,label_of_a,label_of_b\na.png,n01,n02\nb.png,n01,n01\n",
    ],
)
def test_a_list_that_is_no_list_of_classes_is_refused(tmp_path: Path, text: str):
    """Each line would be a class of its own, or every label another one."""
    (tmp_path / "val.csv").write_text(text)

    with pytest.raises(ClassMapError, match="val"):
        read_ground_truth(tmp_path / "val.csv")


@pytest.mark.parametrize("heading", ["image,predicted_class,true_class", "image,true_class,prediction"])
def test_predictions_in_a_table_are_no_labels(tmp_path: Path, heading: str):
    """The other column has the classes."""
    values = {"image": "a.png", "true_class": "n01"}
    row = ",".join(values.get(name, "n02") for name in heading.split(","))
    (tmp_path / "val.csv").write_text(f"{heading}\n{row}\n")

    assert {"a.png": "n01"} == read_ground_truth(tmp_path / "val.csv")


def test_a_pattern_finds_the_class_in_a_path():
    """The first group is the class, wherever it stands in the path."""
    assert "n01440764" == class_by_pattern(r"(n\d{8})", "train/n01440764/n01440764_10026.JPEG")
    assert "cat" == class_by_pattern(r"^([a-z]+)_\d+\.(png|jpg)$", "cat_0012.png")


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        (r"(n\d{8}", ()),
        (r"n\d{8}", ()),
        (r"(x)", ("'a/n01440764.JPEG'", "None")),
        (r"(x)?a", ("'a/n01440764.JPEG'", "None")),
        (r"(x*)", ("'a/n01440764.JPEG'", "''")),
    ],
)
def test_a_pattern_that_finds_no_class_is_refused(pattern: str, found: tuple[str, ...]):
    """A wrong pattern and a path without a class are told apart."""
    with pytest.raises(ClassMapError) as raised:
        class_by_pattern(pattern, "a/n01440764.JPEG")

    assert all(value in str(raised.value) for value in (repr(pattern), *found))
    assert bool(found) == ("n01440764" in str(raised.value))


def test_a_class_file_that_was_changed_after_it_was_pinned_is_refused(tmp_path: Path):
    """Classes in another order would be other labels; the file may be gone, since what was pinned proves itself."""
    path, names = tmp_path / "small.yaml", tmp_path / "names.json"
    path.write_text(SMALL + f"class_map: {names}\n")
    names.write_text(json.dumps(["b", "a", "c"]))
    benchmark, locations = load_benchmark(path), Locations(root=tmp_path / "data")
    assert ("b", "a", "c") == load_class_map(benchmark, locations).classes

    for changed, found in (
        (["a", "b", "c"], r"\b0\b.*'a'.*'b'"),
        (["b", "a"], r"\b2\b.*None.*'c'"),
    ):
        names.write_text(json.dumps(changed))
        with pytest.raises(ClassMapError, match=rf"names\.json.*{found}"):
            load_class_map(benchmark, locations)

    names.unlink()
    assert ("b", "a", "c") == load_class_map(benchmark, locations).classes


def test_an_archive_in_place_of_the_file_in_it_is_named_as_such(tmp_path: Path):
    """The kit as it is downloaded is no damaged text: the error says what it is, and which file of it is meant."""
    with tarfile.open(tmp_path / "ILSVRC2012_devkit_t12.tar.gz", "w:gz") as kit:
        kit.add(write_devkit(tmp_path / "meta.mat", DEVKIT), "ILSVRC2012_devkit_t12/data/meta.mat")

    for read in (read_ground_truth, read_classes, read_devkit_ids):
        with pytest.raises(ClassMapError, match=r"t12\.tar\.gz is an archive"):
            read(tmp_path / "ILSVRC2012_devkit_t12.tar.gz")
