"""Data sets of torchvision become images with the same pixels."""

import hashlib
import io
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image
from torchvision.datasets import CIFAR10

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.load_files import load_benchmark
from tta_pipeline.benchmarks.open_source import load_class_map, open_source
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import SourceError
from tta_pipeline_tests.conftest import write_tree


def benchmark(tmp_path: Path, dataset: str, arguments: dict, **fields: object) -> Benchmark:
    """Return a benchmark of one cell without severities."""
    text = {
        "title": "x", "custom": {"names": ["test"] if "names" not in fields else fields.pop("names")}, "image_size": 32,
        "shards": {"num_shards": 1}, "models": {}, "experiments": {},
        "source": {"kind": "torchvision", "dataset": dataset, "arguments": arguments}, **fields,
    }  # fmt: skip
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({name: each for name, each in text.items() if each is not None}))
    return load_benchmark(tmp_path / "mine.yaml")


def images(found: Benchmark, tmp_path: Path) -> dict[str, np.ndarray]:
    """Return the pixels of the images of the first cell by name."""
    source = open_source(found, Locations(root=tmp_path / "data"))
    with source.prepared(found.cells):
        return {
            image.name: np.asarray(Image.open(io.BytesIO(image.read())))
            for image in source.listing(found.cells[0]).images
        }


@pytest.fixture
def cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Lay four images as torchvision's CIFAR10 wants its test batch."""
    folder = tmp_path / "cifar" / CIFAR10.base_folder
    folder.mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (4, 3072), np.uint8)
    (folder / "test_batch").write_bytes(pickle.dumps({"data": pixels, "labels": [9, 0, 3, 0]}))
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": names}))
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *_: True)
    return folder.parent


def test_pixels_and_classes_stay(tmp_path: Path, cifar: Path):
    """Each image of the test set is its own pixels under the name of its class."""
    found = benchmark(tmp_path, "torchvision.datasets:CIFAR10", {"root": str(cifar), "train": False})

    made = images(found, tmp_path)

    assert ["airplane/00000001.png", "airplane/00000003.png", "cat/00000002.png", "truck/00000000.png"] == list(made)
    expected = CIFAR10(cifar, train=False)
    for name, pixels in made.items():
        np.testing.assert_array_equal(np.asarray(expected[int(name[-12:-4])][0]), pixels)
    assert 10 == len(load_class_map(found, Locations(root=tmp_path / "data")).classes)
    assert (cifar,) == found.source.places(found.cells[0], found.shift_set)


def test_arguments_may_name_the_cell(tmp_path: Path):
    """A root with `{shift}` gives each cell its own folder."""
    for number, name in enumerate(("dusk", "dawn"), start=1):
        write_tree(tmp_path / "set" / name, classes={"n01": number, "n02": 1})
    arguments = {"root": f"{tmp_path}/set/{{shift}}"}

    for names, count in ((["dusk"], 2), (["dawn", "dusk"], 3)):
        found = benchmark(tmp_path, "torchvision.datasets:ImageFolder", arguments, names=names)
        assert count == len(images(found, tmp_path))


@pytest.mark.parametrize("class_folders", ["names", "numbers"])
def test_folders_that_are_numbers_count_in_the_class_map(tmp_path: Path, class_folders: str):
    """Folders 0 to 11 of ImageNetV2: ImageFolder sorts 10 before 2, and its labels are not those of the map."""
    classes = [f"n{number:02d}" for number in range(12)]
    (tmp_path / "map.json").write_text(json.dumps(classes))
    (tmp_path / "v2.shifts.yaml").write_text(
        f"{{names: [test], classes: {tmp_path}/map.json, class_folders: {class_folders}}}"
    )
    for number in range(12):
        (tmp_path / "v2" / str(number)).mkdir(parents=True)
        Image.new("L", (32, 32), number).save(tmp_path / "v2" / str(number) / "x.png")
    found = benchmark(
        tmp_path, "torchvision.datasets:ImageFolder", {"root": f"{tmp_path}/v2"}, custom=None, shift_set="v2"
    )

    made = images(found, tmp_path)

    assert {name: number for number, name in enumerate(classes)} == {
        name[:3]: int(pixels.max()) for name, pixels in made.items()
    }


def test_classes_that_the_class_map_lacks_are_refused(tmp_path: Path):
    """Labels of goldfish and tench would otherwise be the map's 0 and 1."""
    write_tree(tmp_path / "set", classes={"goldfish": 1, "tench": 1})
    found = benchmark(tmp_path, "torchvision.datasets:ImageFolder", {"root": f"{tmp_path}/set"}, class_map="imagenet")

    with pytest.raises(SourceError, match=r"ImageFolder\D*\b2\b.*goldfish, tench"):
        images(found, tmp_path)


def test_cells_may_have_other_classes(tmp_path: Path):
    """The classes of the benchmark are those of all cells."""
    write_tree(tmp_path / "set" / "dusk", classes={"bee": 1, "cat": 1})
    write_tree(tmp_path / "set" / "dawn", classes={"ant": 1, "bee": 1})
    arguments = {"root": f"{tmp_path}/set/{{shift}}"}
    found = benchmark(tmp_path, "torchvision.datasets:ImageFolder", arguments, names=["dusk", "dawn"])

    assert ("ant", "bee", "cat") == load_class_map(found, Locations(root=tmp_path / "data")).classes
    assert ["bee", "cat"] == [name.split("/")[0] for name in images(found, tmp_path)]


OWN = """
from pathlib import Path
from PIL import Image
class Pages:
    classes = ["a", "b"]
    def __init__(self, file): self.value = int(Path(file).read_text())
    def __len__(self): return 2
    def __getitem__(self, index): return Image.new("L", (32, 32), self.value), index
"""


def test_code_and_files_decide_the_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A class of one's own, files in any argument, and files at any depth; a comment changes nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "pages_of_mine.py").write_text(OWN)
    (tmp_path / "value.txt").write_text("1")
    own = benchmark(tmp_path, "pages_of_mine:Pages", {"file": str(tmp_path / "value.txt")})
    deep = tmp_path / "set" / "x" / "y" / "z"
    write_tree(deep, classes={"n01": 1})
    folder = benchmark(tmp_path, "torchvision.datasets:ImageFolder", {"root": f"{tmp_path}/set"})

    def version(found: Benchmark) -> str:
        return open_source(found, Locations(root=tmp_path / "data")).version(found.cells[0])

    versions = [version(own), version(folder)]
    (tmp_path / "value.txt").write_text("200")
    versions.append(version(own))
    (tmp_path / "pages_of_mine.py").write_text(f"# Pages.\n{OWN}")
    assert versions[2] == version(own)
    (tmp_path / "pages_of_mine.py").write_text(OWN.replace("), index", "), 1 - index"))
    versions.append(version(own))
    next(deep.rglob("*.*")).write_bytes(b"")
    versions.append(version(folder))

    assert 5 == len(set(versions))
    assert versions[3:] == [version(own), version(folder)]
    assert 2 == len(images(own, tmp_path))
    (tmp_path / "pages_of_mine.py").write_text(OWN)
    with pytest.raises(SourceError, match=r"pages_of_mine:Pages.*/pages_of_mine\.py"):
        version(own)


@pytest.mark.parametrize(
    ("label", "is_read"),
    [("torch.tensor(index)", True), ("np.int64(index)", True), ("index + 0.5", False), ("np.eye(2)[index]", False)],
)
def test_labels_are_whole_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, label: str, *, is_read: bool):
    """Of any library; a fraction is not cut, and a one-hot vector is refused."""
    monkeypatch.syspath_prepend(tmp_path)
    module = f"labelled_pages_{hashlib.sha256(label.encode()).hexdigest()[:8]}"
    (tmp_path / f"{module}.py").write_text(f"import numpy as np\nimport torch{OWN.replace('), index', f'), {label}')}")
    (tmp_path / "value.txt").write_text("1")
    found = benchmark(tmp_path, f"{module}:Pages", {"file": str(tmp_path / "value.txt")})

    if is_read:
        assert ["a/00000000.png", "b/00000001.png"] == list(images(found, tmp_path))
    else:
        with pytest.raises(SourceError, match=rf"{module}:Pages\[0\]"):
            images(found, tmp_path)


@pytest.mark.parametrize(
    ("dataset", "arguments", "found"),
    [
        ("torchvision.datasets:CIFAR9", {}, "'CIFAR9'"),
        ("nowhere.at_all:CIFAR10", {}, "'nowhere'"),
        ("torchvision.datasets:CIFAR10", {"root": "/nonexistent"}, "RuntimeError.*{'root': '/nonexistent'}"),
        ("torchvision.datasets:CIFAR10", {"rot": "/x"}, "TypeError.*{'rot': '/x'}"),
        ("torchvision.datasets:FakeData", {"size": 2, "num_classes": 3}, r"\bclasses\b.*\bclass_map\b"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, dataset: str, arguments: dict, found: str):
    """A class that is not there, arguments that it does not take, data that is missing, classes without names."""
    with pytest.raises(SourceError, match=f"{dataset}.*{found}"):
        images(benchmark(tmp_path, dataset, arguments), tmp_path)


def test_what_is_no_image_is_named(tmp_path: Path):
    """A data set of tensors, and a label that the class map lacks."""
    (tmp_path / "map.json").write_text('["x", "y"]')
    fields = {"class_map": str(tmp_path / "map.json")}
    fake = {"size": 3, "image_size": None, "num_classes": 9}

    with pytest.raises(SourceError, match=r"FakeData\[0\].*TypeError.*\bPIL\b"):
        images(benchmark(tmp_path, "torchvision.datasets:FakeData", fake, **fields), tmp_path)
    with pytest.raises(SourceError, match=r"FakeData\[0\]\D*\b\d+\b\D*\b0\b\D*\b1\b"):
        images(
            benchmark(tmp_path, "torchvision.datasets:FakeData", {"size": 9, "num_classes": 900}, **fields), tmp_path
        )
