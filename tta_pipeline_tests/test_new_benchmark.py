"""A benchmark file is written from what lies on disk, and is one."""

import json
import os
import shlex
import shutil
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner, Result
from PIL import Image

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.load_files import load_benchmark, load_benchmarks
from tta_pipeline.benchmarks.model_specs import PythonModel
from tta_pipeline.benchmarks.open_images import open_images
from tta_pipeline.cli import main
from tta_pipeline.data.datasets.dataset_files import shipped_sets
from tta_pipeline.data.images import detect
from tta_pipeline.data.images.choose_dataset import Place
from tta_pipeline.domain.cells import Cell
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import ImagesError
from tta_pipeline.extras.new_project.draft_benchmark import EXAMPLES, PAPERS, draft_benchmark
from tta_pipeline.methods.catalogue import METHODS
from tta_pipeline.models.model_kind import ModelContext, kind_of
from tta_pipeline.report.published_figures import read_published, shipped_tables
from tta_pipeline.util.files import hash_file
from tta_pipeline_tests.conftest import Project, in_one_line, jpeg, write_tree
from tta_pipeline_tests.imagenet_c import COMMON_CORRUPTIONS, SEVERITIES

CLASSES = {"n01": 2, "n02": 2, "n03": 1}
CELLS = ("fog/1", "fog/5", "snow/1", "snow/5")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two corruptions at two severities, three classes, 32 pixels."""
    for cell in CELLS:
        write_tree(tmp_path / "My-C" / cell, classes=CLASSES)
    return tmp_path / "My-C"


def packed(folder: Path, path: Path, *, mode: str = "w") -> Path:
    """Pack *folder* with its name around its files, and return the archive."""
    if path.suffix == ".zip":
        return Path(shutil.make_archive(str(path.with_suffix("")), "zip", folder.parent, folder.name))
    with tarfile.open(path, mode) as tar:
        tar.add(folder, arcname=folder.name)
    return path


def run(data_root: Path, *arguments: str | Path) -> Result:
    """Run the verb with a data root of its own."""
    return CliRunner().invoke(
        main, ["new-benchmark", *map(str, arguments)], env={"TTA_DATA_ROOT": str(data_root)}, catch_exceptions=False
    )


def written(tmp_path: Path, *sources: Path) -> Benchmark:
    """Write a benchmark file for *sources* as a user does, and read it."""
    finished = run(tmp_path / "data", "mine", *sources)
    assert 0 == finished.exit_code, finished.output
    return load_benchmark(tmp_path / "data" / "benchmarks" / "mine.yaml")


def stated(tmp_path: Path, name: str, text: str) -> None:
    """Write a dataset of the user's own beside the benchmark file of `written`."""
    folder = tmp_path / "data" / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.dataset.yaml").write_text(text)


def load_text(text: str, tmp_path: Path) -> Benchmark:
    """Read the *text* of a benchmark file called mine."""
    (tmp_path / "mine.yaml").write_text(text)
    return load_benchmark(tmp_path / "mine.yaml")


def has_what_lies_there(benchmark: Benchmark) -> bool:
    """Return whether *benchmark* has the cells, in canonical order, and the size of the images of `root`."""
    return (("snow", "fog"), (1, 5), 32) == (benchmark.corruptions, benchmark.severities, benchmark.image_size)


def test_a_folder_becomes_a_benchmark(root: Path, tmp_path: Path):
    """Corruptions, severities and image size are those that lie there, and the root is absolute."""
    benchmark = written(tmp_path, root)

    assert has_what_lies_there(benchmark)
    assert ("folder", root, 2) == (benchmark.images.kind, benchmark.images.root, benchmark.images.class_dir_depth)
    assert {"source", "norm", "tent"} == set(benchmark.experiments)  # the README compares two of them


def test_a_folder_around_the_corruptions_is_left_out(root: Path, tmp_path: Path):
    """An archive unpacked into a folder of its name has its root inside."""
    assert written(tmp_path, root.parent).images.root == root


def test_a_folder_for_each_archive_is_a_level_more(root: Path, tmp_path: Path):
    """Several archives, each unpacked into a folder of its own, are read with class_dir_depth 3."""
    write_tree(tmp_path / "all" / "noise" / "shot_noise" / "5", classes=CLASSES)
    (tmp_path / "all" / "weather").mkdir()
    for name in ("fog", "snow"):
        (root / name).rename(tmp_path / "all" / "weather" / name)

    benchmark = written(tmp_path, tmp_path / "all")

    assert 3 == benchmark.images.class_dir_depth
    assert {"shot_noise", "fog", "snow"} == set(benchmark.corruptions)


@pytest.mark.parametrize(("name", "mode"), [("my.tar", "w"), ("my.tar.gz", "w:gz")])
def test_an_archive_becomes_a_benchmark(root: Path, tmp_path: Path, name: str, mode: str):
    """What is packed is found without unpacking, compressed or not."""
    archive = packed(root, tmp_path / name, mode=mode)
    before = sorted(tmp_path.rglob("*"))

    assert has_what_lies_there(written(tmp_path, archive))
    assert {"data", "benchmarks", "mine.yaml"} == {path.name for path in set(tmp_path.rglob("*")) - set(before)}


def test_published_names_are_suggested_and_not_believed(root: Path, tmp_path: Path):
    """The file says `published` in a comment alone, since only the md5 would tell."""
    archive = packed(root, tmp_path / "weather.tar")

    text = draft_benchmark("mine", [archive]).text

    assert "# published: imagenet_c" in text
    assert "published" not in yaml.safe_load(text)["images"]


def test_arrays_become_a_benchmark(tmp_path: Path):
    """CIFAR-10-C's files tell corruptions, classes and size."""
    root = tmp_path / "CIFAR-10-C"
    root.mkdir()
    np.save(root / "labels.npy", np.arange(50) % 10)
    for name in ("fog", "frost"):
        np.save(root / f"{name}.npy", np.zeros((50, 32, 32, 3), np.uint8))

    benchmark = written(tmp_path, root)

    assert ("npy", 32, SEVERITIES) == (benchmark.images.kind, benchmark.image_size, benchmark.severities)
    assert ("frost", "fog") == benchmark.corruptions
    assert "10 classes" in (tmp_path / "data" / "benchmarks" / "mine.yaml").read_text()


@pytest.mark.parametrize(("shift", "with_folders"), [("fog", True), ("dusk", False)])
def test_shards_become_a_benchmark(tmp_path: Path, *, shift: str, with_folders: bool):
    """Tars with class folders or with .cls members are to be adopted, and no shards are to be written."""
    cell = tmp_path / "shards" / shift / "3"
    cell.mkdir(parents=True)
    for number in range(4):
        folder = tmp_path / "members" / (f"n0{number % 2}" if with_folders else "")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.jpg").write_bytes(jpeg(number, size=64))
        if not with_folders:
            (folder / f"{number}.cls").write_text(str(number % 2))
    with tarfile.open(cell / "000.tar", "w") as tar:
        tar.add(tmp_path / "members", arcname=".")

    benchmark = written(tmp_path, tmp_path / "shards")

    assert ("shards", None, 64) == (benchmark.images.kind, benchmark.shards, benchmark.image_size)
    assert (Cell(corruption=shift, severity=3),) == benchmark.cells
    assert " 2 classes" in (tmp_path / "data" / "benchmarks" / "mine.yaml").read_text()


@pytest.mark.parametrize(
    ("is_packed", "size", "table"), [(True, (64, 64), "tiny_imagenet_c"), (False, (64, 48), "imagenet_c")]
)
def test_uncorrupted_images_are_to_be_corrupted(tmp_path: Path, *, is_packed: bool, size: tuple[int, int], table: str):
    """Class folders alone give a benchmark whose corruptions are made here, all 75 cells, for squares of their size."""
    write_tree(tmp_path / "val", classes=CLASSES)
    for path in tmp_path.rglob("*.JPEG"):
        Image.new("RGB", size).save(path)
    source = packed(tmp_path / "val", tmp_path / "val.tar") if is_packed else tmp_path / "val"

    benchmark = written(tmp_path, source)

    assert ("generated", table) == (benchmark.images.kind, benchmark.images.severity_table)
    assert COMMON_CORRUPTIONS == benchmark.corruptions


def test_images_that_are_no_squares_are_resized_and_cropped(root: Path, tmp_path: Path):
    """The file asks for squares, since a batch is made of images of one size."""
    for path in root.rglob("*.JPEG"):
        Image.new("RGB", (400, 300)).save(path)

    benchmark = written(tmp_path, root)

    assert (256, 224) == (benchmark.shards.resize, benchmark.shards.center_crop)
    assert 224 == benchmark.image_size


@pytest.mark.parametrize("packing", ["folder", "tar", "zip"])
def test_images_of_several_sizes_are_found_and_made_alike(root: Path, tmp_path: Path, packing: str):
    """The first image tells nothing of the others; an evaluation would be the first to notice."""
    *others, last = sorted(root.rglob("*.JPEG"))
    for path in others:
        Image.new("RGB", (256, 256)).save(path)
    for path in root.rglob(last.name):
        Image.new("RGB", (300, 240)).save(path)
    source = root if packing == "folder" else Path(shutil.make_archive(str(tmp_path / "packed"), packing, root))

    benchmark = written(tmp_path, source)

    assert (256, 224, 224) == (benchmark.shards.resize, benchmark.shards.center_crop, benchmark.image_size)
    assert "several sizes, such as" in next(tmp_path.rglob("mine.yaml")).read_text()


@pytest.mark.parametrize("packing", ["folder", "tar", "zip"])
def test_square_images_of_two_sizes_are_resized_and_not_cropped(tmp_path: Path, packing: str):
    """A size that only a later corruption has is found too; LAION-C's folders of severities are known."""
    root = tmp_path / "LAION-C"
    for number, (shift, size) in enumerate({"glitched": 32, "mosaic": 36}.items(), start=4):
        write_tree(root / shift / f"intensity_level_{number}", classes={"ball": 70}, size=size)
    source = root if packing == "folder" else Path(shutil.make_archive(str(tmp_path / "packed"), packing, root))

    benchmark = written(tmp_path, source)

    assert ("laion_c", (4, 5), ["resnet50"]) == (benchmark.dataset.name, benchmark.severities, [*benchmark.models])
    assert (32, 32) == (benchmark.shards.resize, benchmark.shards.center_crop)


@pytest.mark.parametrize("example", EXAMPLES)
def test_without_a_source_there_are_placeholders(tmp_path: Path, example: str):
    """The file of each published benchmark is one, with 75 cells."""
    finished = run(tmp_path, "mine", "--like", example)

    assert 0 == finished.exit_code, finished.output
    assert 75 == len(load_benchmark(tmp_path / "benchmarks" / "mine.yaml").cells)


@pytest.mark.parametrize("paper", PAPERS)
def test_a_published_table_has_its_benchmark_file(tmp_path: Path, paper: str):
    """Each experiment has the name of a row, whose cells are those of the file."""
    finished = run(tmp_path, "mine", "--like", paper)

    assert 0 == finished.exit_code, finished.output
    benchmark = load_benchmark(tmp_path / "benchmarks" / "mine.yaml")
    published = read_published(shipped_tables()[paper])
    for name in benchmark.experiments:
        rows = {(row.corruption, row.severity) for row in published if row.published_as == name}
        assert rows == {(cell.corruption, cell.severity) for cell in benchmark.cells if cell.severity}


def test_a_model_fits_the_number_of_classes():
    """A thousand classes have weights to be downloaded; for others the file says what to fill in."""
    thousand = yaml.safe_load(draft_benchmark("mine", [], like="imagenet_c").text)
    ten = draft_benchmark("mine", [], like="cifar10_c").text

    assert "torchvision" == thousand["models"]["resnet50"]["kind"]
    assert 5 == ten.count("FILL IN") + ten.count("wrong ones give")


def test_a_model_has_the_outputs_of_the_class_map(tmp_path: Path):
    """Images of a few ImageNet classes are evaluated with a model of all thousand, if the set says so."""
    write_tree(tmp_path / "drawings", classes={"n01440764": 1, "n01443537": 1})
    stated(tmp_path, "drawings", "{names: [drawings], classes: imagenet}")

    benchmark = written(tmp_path, tmp_path / "drawings")

    assert "drawings" == benchmark.dataset.name
    assert ["resnet50"] == list(benchmark.models)


def test_a_large_archive_is_looked_at_in_part(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """After the first members, headers all over the archive still tell every cell, and the file says so."""
    seen = detect.Inspection(place=Place(paths=(tmp_path,), sets=tuple(shipped_sets().values())))

    monkeypatch.setattr(detect, "MAX_MEMBERS", 3)
    detect.inspect_archive(packed(root, tmp_path / "my.tar"), seen)

    assert {("fog", 1), ("fog", 5), ("snow", 1), ("snow", 5)} == set(seen.counts)
    assert (None, None, (32, 32)) == astuple(seen.cell_images)
    assert "Only the first 3 files of my.tar were read, and 256 places" in seen.remarks[0]


def test_what_is_odd_stands_in_the_file(root: Path, tmp_path: Path):
    """A corruption nobody knows, a missing cell and a cell with other classes are each told, in the terminal too."""
    write_tree(root / "rain" / "1", classes=CLASSES)
    write_tree(root / "frost" / "1", classes={**CLASSES, "n04": 1})

    draft = draft_benchmark("mine", [root])

    text = draft.text.replace("\n#  ", "")
    assert ("snow", "frost", "fog", "rain") == tuple(yaml.safe_load(draft.text)["custom"]["names"])
    assert "Not found: frost|5" in text
    assert "frost has 4" in text
    assert all(remark in text for remark in draft.remarks)
    assert [f"note: {remark}" for remark in draft.remarks] == run(tmp_path, "mine", root).stderr.splitlines()


@pytest.mark.parametrize("packing", ["folder", "tar", "zip"])
def test_images_of_ones_own_are_in_no_published_set(root: Path, tmp_path: Path, packing: str):
    """Though shifts and severities have names of ImageNet-C: number, classes and size are others."""
    source = root if packing == "folder" else packed(root, tmp_path / f"weather.{packing}")

    benchmark = written(tmp_path, source)

    assert ("mine", ("snow", "fog")) == (benchmark.dataset.name, benchmark.dataset.names)


def test_images_of_ones_own_do_not_get_the_name_of_a_published_set(root: Path, tmp_path: Path):
    """Their results would be called those of ImageNet-C; so no file is written."""
    finished = run(tmp_path, "imagenet_c", root)

    assert 1 == finished.exit_code
    assert "my_imagenet_c" in finished.stderr
    assert not (tmp_path / "data").exists()


def test_no_folder_is_left_out_beside_one_of_a_known_name(root: Path, tmp_path: Path):
    """Whether packed or not, a shift that no set has is evaluated too."""
    write_tree(root / "drizzle" / "1", classes=CLASSES)

    for source in (root, packed(root, tmp_path / "my.tar")):
        assert ("snow", "fog", "drizzle") == load_text(draft_benchmark("mine", [source]).text, tmp_path).corruptions


def test_folders_that_are_no_cells_are_told(root: Path, tmp_path: Path):
    """A severity that is no number or 0, and a shift without any or of no known name; not the cells themselves."""
    for odd in ("fog/mild", "fog/0", "clean/n01"):
        write_tree(root / odd, classes=CLASSES)

    (remark,) = (each for each in draft_benchmark("mine", [root]).remarks if each.startswith("Left out"))

    assert all(odd in remark for odd in ("fog/mild", "fog/0", "clean"))
    assert "snow" not in remark

    write_tree(tmp_path / "imagenet-r" / "imagenet-r", classes=CLASSES)
    write_tree(tmp_path / "imagenet-r" / "other", classes=CLASSES)
    (remark,) = (
        each for each in draft_benchmark("r", [tmp_path / "imagenet-r"]).remarks if each.startswith("Left out")
    )
    assert remark.endswith("imagenet_r: other.")


@pytest.mark.parametrize("packing", ["folder", "tar", "zip"])
def test_shifts_of_ones_own_need_no_severities(tmp_path: Path, packing: str):
    """Class folders in the folder of each shift, one of which is called as a known one; clean images are no shift."""
    for name in ("dusk", "fog", "clean"):
        write_tree(tmp_path / "My-Light" / name, classes=CLASSES)

    root = tmp_path / "My-Light"

    benchmark = written(tmp_path, root if packing == "folder" else packed(root, tmp_path / f"my.{packing}"))

    assert (("fog", "dusk"), (0,), 32) == (benchmark.corruptions, benchmark.severities, benchmark.image_size)
    assert " 3 classes" in (tmp_path / "data" / "benchmarks" / "mine.yaml").read_text()
    source = open_images(benchmark, Locations(root=tmp_path / "data"))
    with source.prepared(benchmark.cells):
        assert [5, 5] == [len(source.listing(cell).images) for cell in benchmark.cells]


def test_a_single_folder_around_class_folders_is_a_shift(tmp_path: Path):
    """Of one's own, in a folder."""
    write_tree(tmp_path / "mine" / "dusk", classes=CLASSES)

    assert ("dusk",) == written(tmp_path, tmp_path / "mine").corruptions


@pytest.mark.parametrize(
    ("kind", "other", "name"), [("animals", "things", "cup"), ("new/pets", "old/pets", "cat"), ("2019", "2020", "cat")]
)
def test_kinds_of_classes_are_no_shifts(tmp_path: Path, kind: str, other: str, name: str):
    """Folders around the class folders of uncorrupted images have other classes, or lie in others."""
    write_tree(tmp_path / "all" / kind, classes={"cat": 2, "dog": 2})
    write_tree(tmp_path / "all" / other, classes={name: 2})

    with pytest.raises(ImagesError, match="uncorrupted images"):
        draft_benchmark("mine", [tmp_path / "all"])
    assert "generated" == written(tmp_path, packed(tmp_path / "all", tmp_path / "all.tar")).images.kind


@pytest.mark.parametrize("packing", ["folder", "tar", "zip"])
@pytest.mark.parametrize(("facts", "name"), [
    ("images_per_cell: 5, num_classes: 3, image_size: 32", "small_c"), ("images_per_cell: 5", "small_c"),
    ("images_per_cell: 6, num_classes: 3, image_size: 32", "mine"),
    ("images_per_cell: 5, num_classes: 4, image_size: 32", "mine"),
    ("images_per_cell: 5, num_classes: 3, image_size: 64", "mine"), ("num_classes: 4", "small_c"),
])  # fmt: skip
def test_a_set_is_named_for_images_that_fit_it(root: Path, tmp_path: Path, packing: str, facts: str, name: str):
    """Number, classes and size, as far as the set states them, though it has only some of the set's cells."""
    stated(tmp_path, "small_c", f"{{names: [fog, frost, snow], severities: [1, 2, 3, 4, 5], {facts}}}")
    source = root if packing == "folder" else packed(root, tmp_path / f"small_c.{packing}")

    benchmark = written(tmp_path, source)

    assert (name, (1, 5)) == (benchmark.dataset.name, benchmark.severities)
    assert {"fog", "snow"} == set(benchmark.corruptions)


@pytest.mark.parametrize(("num_rows", "num_classes", "name"), [
    (50_000, 10, "cifar_10_c"), (50_000, 100, "cifar_100_c"), (50_000, 20, "mine"), (49_995, 10, "mine"),
    (49_999, 10, "mine"),
])  # fmt: skip
def test_arrays_are_cifar_10_c_if_all_of_it_is_there(tmp_path: Path, num_rows: int, num_classes: int, name: str):
    """50,000 rows of 32 pixels with 10 or 100 classes; nothing else, whatever the folder is called."""
    root = tmp_path / "CIFAR-10-C"
    root.mkdir()
    np.save(root / "labels.npy", np.arange(num_rows) % num_classes)
    np.lib.format.open_memmap(root / "fog.npy", "w+", np.uint8, (num_rows, 32, 32, 3))  # sparse: only zeros

    benchmark = written(tmp_path, root)

    assert (name, ("fog",)) == (benchmark.dataset.name, benchmark.corruptions)


@pytest.mark.parametrize("name", ["mine", "Mine"])
def test_nothing_is_overwritten(root: Path, tmp_path: Path, name: str):
    """A second file of the name, whatever its capitals, is refused, and the first stays as it was."""
    written(tmp_path, root)
    path = tmp_path / "data" / "benchmarks" / "mine.yaml"
    path.write_text("title: changed by hand\n")

    finished = run(tmp_path / "data", name, root)

    assert 1 == finished.exit_code
    assert f"{path} already exists; expected a new name" in in_one_line(finished.stderr)
    assert [path] == list(path.parent.iterdir())
    assert "title: changed by hand\n" == path.read_text()


def test_a_dash_prints_the_file_alone(root: Path, tmp_path: Path):
    """Standard output is the file; the commands to run next go to standard error."""
    finished = run(tmp_path / "data", "mine", root, "--output", "-")

    assert {"title", "images", "models"} <= set(yaml.safe_load(finished.stdout))
    assert 2 == finished.stderr.count("tta-pipeline run ")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("name", ["1st", "a-b", "../x", "benchmarks", "digits_c", "Digits_C", "class", "b" * 101])
def test_a_name_that_cannot_be_one_is_refused(tmp_path: Path, name: str):
    """Names become folders and asset keys, and those that are taken stay so."""
    finished = run(tmp_path, name)

    assert 1 == finished.exit_code
    assert repr(name) in finished.stderr
    assert (
        "expected letters, digits and underscores" in in_one_line(finished.stderr) or "uses itself" in finished.stderr
    )
    assert not (tmp_path / "data").exists()


def test_what_is_no_source_is_refused_with_the_way_out(root: Path, tmp_path: Path):
    """Nothing there, nothing in it, a level too deep, arrays packed, a damaged archive: one line each."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "CIFAR-10-C").mkdir()
    np.save(tmp_path / "CIFAR-10-C" / "fog.npy", np.zeros(1))
    write_tree(tmp_path / "years" / "2019", classes=CLASSES)
    (tmp_path / "cut.tar").write_bytes(packed(root, tmp_path / "whole.tar").read_bytes()[:5000])
    expected = {
        tmp_path / "nothing": "does not exist",
        tmp_path / "empty": "expected one of these",
        tmp_path / "years": "expected one of these",
        root / "fog": "name the folder above",
        root / "fog" / "5": "name the folder above",
        packed(tmp_path / "CIFAR-10-C", tmp_path / "c.tar"): "expected uint8 RGB images",
        tmp_path / "cut.tar": "download it again",
    }

    for source, message in expected.items():
        finished = run(tmp_path / "data", "mine", source)
        assert (1, 1) == (finished.exit_code, in_one_line(finished.stderr).count("\n"))
        assert message in in_one_line(finished.stderr)


def test_archives_beside_folders_are_refused(root: Path, tmp_path: Path):
    """A benchmark has one source."""
    finished = run(tmp_path, "mine", root, packed(root, tmp_path / "my.tar"))

    assert "expected one folder, or only archives" in in_one_line(finished.stderr)


def test_a_name_with_odd_characters_is_quoted(root: Path, tmp_path: Path):
    """A root with quotes, a colon, a number sign and an umlaut is read back as it is."""
    odd = tmp_path / "a: 'b' #\"ü\" \\x"
    root.rename(odd)

    assert written(tmp_path, odd).images.root == odd


def test_many_names_with_hyphens_stay_whole(tmp_path: Path):
    """A line that is too long is never broken inside the name of a shift."""
    names = [f"rain-in-{'a' * length}" for length in range(1, 20)]
    for name in names:
        write_tree(tmp_path / "own" / name / "1", classes={"n01": 1})

    assert set(names) == set(written(tmp_path, tmp_path / "own").corruptions)


def test_every_published_archive_is_known_by_its_name(tmp_path: Path):
    """The suggestion is made for each of the published archives alone and for all of a dataset."""
    write_tree(tmp_path / "x" / "fog" / "1", classes=CLASSES)
    for set_name, dataset in shipped_sets().items():
        for name in dataset.archives:
            assert f"# published: {set_name}" in draft_benchmark("mine", [packed(tmp_path / "x", tmp_path / name)]).text


def test_the_commands_told_are_run(root: Path, project: Project):
    """One cell of the new benchmark, and all of it; both miss only the weights, which the file leaves to the user."""
    finished = project.run("tta-pipeline", "new-benchmark", "mine", os.fspath(root))
    assert 0 == finished.returncode, finished.stderr
    (first, last) = (shlex.split(line) for line in finished.stdout.splitlines() if "tta-pipeline run" in line)

    done = [project.run(*command, "--dry-run") for command in (first, last)]

    assert ["--cell", "snow|1"] == first[-2:]
    assert ["run", "mine"] == last[1:]
    assert all("/path/to/weights.safetensors is missing" in each.stderr for each in done), done[0].stderr[-3000:]


NETWORK = """
from torch import nn


class MyNet(nn.Sequential):
    def __init__(self, num_classes):
        super().__init__(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.BatchNorm1d(3), nn.Linear(3, num_classes))
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a module of the user's own, and weights of its network and of a ResNet-18."""
    import torch
    from torchvision.models import resnet18

    folder = tmp_path_factory.mktemp("models")
    (folder / "own_network.py").write_text(NETWORK)
    torch.save(resnet18(num_classes=3).state_dict(), folder / "resnet18.pth")
    namespace: dict[str, Any] = {}
    exec(NETWORK, namespace)
    torch.save(namespace["MyNet"](3).state_dict(), folder / "w.pth")
    return folder


@pytest.fixture
def own_model(models: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Weights of a network of the user's own, whose module is in the working directory."""
    monkeypatch.chdir(models)
    monkeypatch.syspath_prepend(models)
    yield models / "w.pth"
    sys.modules.pop("own_network", None)


@pytest.mark.parametrize(
    ("options", "name", "expected"),
    [
        (["own_network:MyNet", "--weights", "w.pth"], "mynet", {"kind": "python", "factory": "own_network:MyNet"}),
        (
            ["torchvision:resnet18", "--weights", "resnet18.pth"],
            "resnet18",
            {"kind": "checkpoint", "library": "torchvision", "architecture": "resnet18"},
        ),
        (["torchvision:resnet50"], "resnet50", {"kind": "torchvision", "weights": "IMAGENET1K_V2"}),
        (["torchvision:resnet50", "--weights", "IMAGENET1K_V1"], "resnet50", {"weights": "IMAGENET1K_V1"}),
        (["timm:resnet18.a1_in1k"], "resnet18_a1_in1k", {"kind": "timm", "architecture": "resnet18.a1_in1k"}),
        ([f"hf:timm/resnet18.a1_in1k@{'a' * 40}"], "resnet18_a1_in1k", {"kind": "hf", "revision": "a" * 40}),
        (["own_network:MyNet", "--weights", "none"], "mynet", {"kind": "python", "weights": "none"}),
        (["torchvision:resnet18", "--weights", "none"], "resnet18", {"arguments": {"num_classes": 3}}),
    ],
)
def test_a_model_is_filled_in(
    root: Path, tmp_path: Path, own_model: Path, *, options: list[str], name: str, expected: dict[str, object]
):
    """Whatever its kind: the file is right as it is written, and the weights fit where there are some."""
    finished = run(tmp_path / "data", "mine", root, "--model", *options)

    assert 0 == finished.exit_code, finished.output
    benchmark = load_benchmark(tmp_path / "data/benchmarks/mine.yaml")
    (model,) = benchmark.models.values()
    assert [name] == list(benchmark.models)
    assert {name} == {each.model for each in benchmark.experiments.values()}
    assert expected.items() <= model.model_dump(mode="json").items()
    assert "FILL IN" not in (tmp_path / "data/benchmarks/mine.yaml").read_text()
    if getattr(model, "sha256", None):
        assert hash_file(own_model.parent / options[2]) == model.sha256
    if model.kind in ("python", "checkpoint"):
        assert 3 == kind_of(model).load(ModelContext(name=name, classes=("a", "b", "c"))).num_classes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["own_network:MyNet", "--weights", "missing.pth"], "missing.pth, which is not a file"),
        (["own_network:MyNet"], "--weights is missing"),
        (["own_netwrk:MyNet", "--weights", "w.pth"], "no module own_netwrk"),
        (
            ["own_network:MyNett", "--weights", "w.pth"],
            "there is no 'own_network:MyNett': own_network has MyNet (did you mean MyNet?)",
        ),
        (
            ["own_network:MyNett", "--weights", "none"],
            "there is no 'own_network:MyNett': own_network has MyNet (did you mean MyNet?)",
        ),
        (["torchvision:resnet5"], "did you mean resnet50"),
        (["torchvision:resnet50", "--weights", "IMAGENET1K_V3"], "did you mean IMAGENET1K_V2"),
        (["timm:resnt50"], "did you mean resnet50"),
        (["hf:timm/resnet50"], "git ls-remote"),
        (["resnet50"], "expected timm:<architecture>"),
    ],
)
def test_a_model_that_does_not_exist_is_refused_in_one_line(
    root: Path, tmp_path: Path, own_model: Path, options: list[str], message: str
):
    """With what was meant or what to do, and no file is written."""
    assert own_model.exists()

    finished = run(tmp_path / "data", "mine", root, "--model", *options)

    assert 1 == finished.exit_code
    assert message in in_one_line(finished.stderr)
    assert 1 == len(in_one_line(finished.stderr).splitlines())
    assert not (tmp_path / "data").exists()


def test_random_weights_are_the_same_each_time_and_marked(own_model: Path):
    """Another run has the same results; a reader sees that they are of no trained model."""
    assert own_model.exists()
    spec = PythonModel(kind="python", factory="own_network:MyNet", weights="none")

    first, second = (kind_of(spec).load(ModelContext(name="net", classes=("a", "b"))) for _ in range(2))

    assert "untrained" == first.weights
    assert first.weights_sha256 == second.weights_sha256
    with pytest.raises(ValueError, match=r"\bsha256 .*\bnone\b"):
        PythonModel(kind="python", factory="own_network:MyNet", weights="none", sha256="0" * 64)


def lay_sets(root: Path) -> None:
    """Lay sets as CoOp's and TPT's instructions and the publishers do, with one class folder or image each."""
    wnid = {"n01440764": 1}
    for folder in ("imagenet-adversarial/imagenet-a", "imagenet-sketch/images", "ImageNet-C/gaussian_noise/5"):
        write_tree(root / folder, classes={"n01498041": 1} if "-a" in folder[-2:] else wnid)
    write_tree(root / "imagenetv2" / "imagenetv2-matched-frequency-format-val", classes={"0": 1})
    (root / "imagenet-r.tar").write_bytes(b"")
    write_tree(root / "dtd" / "images", classes={"banded": 1})
    split = {"test": [["banded/image_000.JPEG", 0, "banded"]]}
    (root / "dtd" / "split_zhou_DescribableTextures.json").write_text(json.dumps(split))
    (root / "food").mkdir()
    (root / "food" / "food-101.tar.gz").write_bytes(b"")
    (root / "food" / "split_zhou_Food101.json").write_text(json.dumps(split))


def test_a_file_has_every_set_that_a_folder_has(tmp_path: Path):
    """Whether unpacked or not, with the text of each, under the methods for a CLIP, each with its paper."""
    lay_sets(tmp_path / "clip")
    path = tmp_path / "sets.yaml"

    written = CliRunner().invoke(
        main, ["new-benchmark", "sets", str(tmp_path / "clip"), "--like", "ttabc", "--output", str(path)]
    )

    assert 0 == written.exit_code, written.output
    assert "tta-pipeline run sets/imagenet_a\n" in written.output
    assert "Not found under" in written.output
    loaded = load_benchmarks(tmp_path)
    assert () == loaded.faults
    kinds = {name.removeprefix("sets/"): each.images.kind for name, each in loaded.benchmarks.items()}
    assert {
        "imagenet_a": "folder", "imagenet_sketch": "folder", "imagenet_v2": "folder", "imagenet_r": "archive",
        "dtd": "folder", "food101": "archive", "imagenet_c": "folder",
    } == kinds  # fmt: skip
    assert ("matched_frequency",) == loaded.benchmarks["sets/imagenet_v2"].corruptions
    assert (5,) == loaded.benchmarks["sets/imagenet_c"].severities
    assert ("{} texture.",) == loaded.benchmarks["sets/dtd"].models["clip"].templates
    clip = {name for name, entry in METHODS.items() if entry.needs == "clip"}
    assert clip == {each.method for each in loaded.benchmarks["sets/dtd"].experiments.values()}
    assert "- tda  # Karmanov 2024, CVPR, arXiv:2403.18293\n" in path.read_text()
    assert set(loaded.benchmarks) == set(loaded.parts_of("sets"))
    for name in ("imagenet_a", "imagenet_sketch", "imagenet_v2", "dtd"):
        benchmark = loaded.benchmarks[f"sets/{name}"]
        source = open_images(benchmark, Locations(root=tmp_path / "data"))
        assert 1 == len(source.listing(benchmark.cells[0]).images)


def test_a_folder_without_sets_is_refused(tmp_path: Path):
    """With what is looked for; and a model, or no folder, does not go with it."""
    for arguments, message in (
        ([str(tmp_path)], "None of the 15 datasets"),
        ([], "expected: one folder"),
        ([str(tmp_path), "--model", "timm:resnet18"], "expected: one folder, and no --model"),
    ):
        found = CliRunner().invoke(main, ["new-benchmark", "sets", *arguments, "--like", "ttabc", "--output", "-"])
        assert found.exit_code
        assert message in found.output
