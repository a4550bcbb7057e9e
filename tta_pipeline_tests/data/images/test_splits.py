"""A fine-grained set is one YAML, a published split and the images where their publisher put them."""

import json
import tarfile
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.load_files import load_benchmark
from tta_pipeline.benchmarks.open_images import load_class_map, open_images
from tta_pipeline.cli import main
from tta_pipeline.data.datasets.dataset_files import shipped_sets
from tta_pipeline.data.labels.splits import read_split
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import BenchmarkFileError, ClassMapError, ImagesError
from tta_pipeline.extras.new_project.draft_benchmark import draft_benchmark
from tta_pipeline.shards.manifest import read_manifest
from tta_pipeline_tests.conftest import jpeg

CARS = ("2012 Ram C/V Cargo Van", "1994 Audi 100")
FINE_GRAINED = sorted(name for name, each in shipped_sets().items() if each.group == "fine_grained")
FILES = {"cars_test/1.jpg": 0, "cars_test/2.jpg": 1, "cars_test/3.jpg": 1}
"""Test images of a made set of cars, with their labels."""


def split_of(files: dict[str, int]) -> dict[str, list[list[object]]]:
    """Return a split in CoOp's form whose test images are *files*."""
    test = [[file, label, CARS[label]] for file, label in files.items()]
    return {"train": [["cars_train/9.jpg", 0, CARS[0]]], "val": [], "test": test}


def lay(root: Path, *, below: str = "", content: object = None) -> Path:
    """Write the images of `FILES` into the folder *below* of *root*, one that the split leaves out, and the split."""
    for number, file in enumerate((*FILES, "cars_train/9.jpg", "masks/5.png")):
        path = root / below / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(number))
    (root / "split_zhou_StanfordCars.json").write_text(json.dumps(content or split_of(FILES)))
    return root


def pack(root: Path, kind: str) -> Path:
    """Pack the images in *root* into an archive beside the split, and remove them."""
    files = [path for path in sorted(root.rglob("*")) if path.suffix in (".jpg", ".png")]
    archive = root / f"cars.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(archive, "w") as packed:
            for path in files:
                packed.write(path, path.relative_to(root))
    else:
        with tarfile.open(archive, "w:gz" if kind == "tgz" else "w") as tar:
            for path in files:
                tar.add(path, path.relative_to(root))
    for path in files:
        path.unlink()
    return archive


def written(tmp_path: Path, source: Path) -> Benchmark:
    """Write a benchmark file for *source* as `new-benchmark` does, and read it."""
    path = tmp_path / "benchmarks" / "mine.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(draft_benchmark("mine", [source], own_folder=path.parent).text)
    return load_benchmark(path)


def labels(benchmark: Benchmark, tmp_path: Path) -> dict[str, int]:
    """Return the label of each image as it becomes a sample."""
    locations = Locations(root=tmp_path / "data")
    source = open_images(benchmark, locations)
    with source.prepared(benchmark.cells):
        images = source.listing(benchmark.cells[0]).images
        known = load_class_map(benchmark, locations, source).labels
        return {image.file_name: known[image.class_name] for image in images}


@pytest.mark.parametrize("below", ["", "a/stanford_cars"])
@pytest.mark.parametrize("kind", ["folder", "tar", "tgz", "zip"])
def test_a_split_gives_images_and_labels(tmp_path: Path, kind: str, below: str):
    """The same from a folder and from archives, wherever the images are; files that it does not list are left out."""
    root = lay(tmp_path / "cars", below=below)
    benchmark = written(tmp_path, root if kind == "folder" else pack(root, kind))

    assert ("stanford_cars", "fine_grained") == (benchmark.dataset.name, benchmark.dataset.group)
    assert {Path(file).name: label for file, label in FILES.items()} == labels(benchmark, tmp_path)
    assert CARS == load_class_map(benchmark, Locations(root=tmp_path / "data")).classes


@pytest.mark.parametrize("kind", ["folder", "tar"])
def test_an_image_of_the_split_must_be_there_once(tmp_path: Path, kind: str):
    """A missing image is named, and so is one that two folders have."""

    def lies(root: Path) -> Path:
        return root if kind == "folder" else pack(root, kind)

    where = lies(lay(tmp_path / "cars", content=split_of({**FILES, "cars_test/7.jpg": 0})))
    with pytest.raises(ImagesError, match=r"\b1\b\D*\b4\b.*StanfordCars\.json.*cars_test/7\.jpg"):
        labels(written(tmp_path, where), tmp_path)

    where = lies(lay(lay(tmp_path / "cars"), below="copy"))
    found = {"folder": r"cars_test/\d\.jpg.*StanfordCars\.json", "tar": r"cars\.tar.*/1\.jpg.*stanford_cars\|0"}
    with pytest.raises(ImagesError, match=found[kind]):
        labels(written(tmp_path, where), tmp_path)


@pytest.mark.parametrize(("content", "found"), [
    ({"train": []}, r"\{'train': \[\]\}.*'test'"),
    ({"test": [["a.jpg", "0", "x"]]}, r"\['a\.jpg', '0', 'x'\].*'test'"),
    ({"test": [["a.jpg", 0, "x"]], "train": [["b.jpg", 0, "y"]]}, r"\b0\b.*'x'.*'y'"),
    ({"test": [["a.jpg", 0, "x"], ["b.jpg", 2, "y"]]}, r"'y'.*\b2\b.*\b0\b.*\b1\b"),
    ({"test": [["a.jpg", 0, "x"], ["b.jpg", 1, "x"]]}, "'x'"),
    ({"test": [["a.jpg", 0, "x"], ["/a.jpg", 0, "x"]]}, r"\ba\.jpg\b"),
    ({"test": [["../a.jpg", 0, "x"]]}, r"'\.\./a\.jpg'"),
])  # fmt: skip
def test_a_faulty_split_is_refused(tmp_path: Path, content: object, found: str):
    """With the entry that is wrong."""
    (tmp_path / "split.json").write_text(json.dumps(content))

    with pytest.raises(ClassMapError, match=rf"split\.json.*{found}"):
        read_split(tmp_path / "split.json")


def test_a_split_of_lines(tmp_path: Path):
    """FGVC-Aircraft lists names, with or without suffix, and a class, maybe with spaces, beside a list of classes."""
    (tmp_path / "images").mkdir()
    for name in ("0900914.jpg", "0900915.jpeg"):
        (tmp_path / "images" / name).write_bytes(jpeg(0))
    (tmp_path / "variants.txt").write_text("F/A-18\nCessna 172\n")
    (tmp_path / "images_variant_test.txt").write_text("0900914 Cessna 172\n0900915.jpeg F/A-18\n")

    assert {"0900914.jpg": 1, "0900915.jpeg": 0} == labels(written(tmp_path, tmp_path), tmp_path)

    (tmp_path / "images_variant_test.txt").write_text("0900914 Cessna\n")
    with pytest.raises(ClassMapError, match=r"test\.txt\D*\b1\b\D*'0900914 Cessna'.*\b2\b.*variants\.txt"):
        written(tmp_path, tmp_path)
    with pytest.raises(ClassMapError, match=r"test\.txt.*\bsplit_classes\b"):
        read_split(tmp_path / "images_variant_test.txt")
    (tmp_path / "images_variant_test.txt").write_text("\n")
    with pytest.raises(ClassMapError, match=r"test\.txt.*\bno images\b"):
        read_split(tmp_path / "images_variant_test.txt", tmp_path / "variants.txt")


def test_a_new_set_is_one_file(tmp_path: Path):
    """Names, split, group and texts of the user's own set; its source can name another split."""
    lay(tmp_path / "cars")
    (tmp_path / "cars" / "split_zhou_StanfordCars.json").rename(tmp_path / "mine.json")
    (tmp_path / "vans.dataset.yaml").write_text(
        "names: [vans]\ngroup: mine\nsplit: split.json\ntemplates: ['a photo of a {}, a type of van.']\n"
    )
    text = f"""
        title: Vans
        dataset: vans
        images: {{kind: folder, root: {tmp_path}/cars, split: {tmp_path}/mine.json}}
        image_size: 32
        shards: {{num_shards: 1}}
        models:
          usual: {{kind: open_clip, architecture: ViT-B-32, pretrained: openai}}
          own: {{kind: open_clip, architecture: ViT-B-32, pretrained: openai, templates: ['{{}}']}}
        experiments: {{}}
    """
    (tmp_path / "vans.yaml").write_text(text)
    benchmark = load_benchmark(tmp_path / "vans.yaml")

    assert 3 == len(labels(benchmark, tmp_path))
    assert ("a photo of a {}, a type of van.",) == benchmark.models["usual"].templates
    assert ("{}",) == benchmark.models["own"].templates

    (tmp_path / "vans.yaml").write_text(text.replace("dataset: vans", "dataset: imagenet_v2"))
    with pytest.raises(BenchmarkFileError, match=r"images\.split.*\bimagenet_v2\b"):
        load_benchmark(tmp_path / "vans.yaml")


def test_a_class_with_a_slash_becomes_shards(tmp_path: Path):
    """By the verb without a benchmark file: the split is looked for beside the images."""
    lay(tmp_path / "cars")
    arguments = [str(tmp_path / "cars"), str(tmp_path / "out"), "--dataset", "stanford_cars", "--num-shards", "1"]

    made = CliRunner().invoke(main, ["shards", "make", *arguments, "--quiet", "--jobs", "1"])

    assert 0 == made.exit_code, made.output
    manifest = read_manifest(tmp_path / "out" / "stanford_cars" / "0")
    assert (CARS, 3) == (manifest.classes, manifest.num_samples)


def test_the_fine_grained_sets_are_those_of_coop():
    """Ten, each with a split and with a text."""
    assert [
        "caltech101", "dtd", "eurosat", "fgvc_aircraft", "flowers102", "food101", "oxford_pets", "stanford_cars",
        "sun397", "ucf101",
    ] == FINE_GRAINED  # fmt: skip
    assert all(shipped_sets()[name].split and shipped_sets()[name].templates for name in FINE_GRAINED)
