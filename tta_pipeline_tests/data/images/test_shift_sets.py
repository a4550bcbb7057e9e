"""Any dataset is found, named and opened: with severities or without, with classes by name or by number."""

import tarfile
from pathlib import Path

import pytest
import yaml

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.load_files import load_benchmark
from tta_pipeline.benchmarks.open_images import load_class_map, open_images, open_observed_images
from tta_pipeline.data.images.existing_shards import ExistingShards
from tta_pipeline.data.labels.class_map import label_order
from tta_pipeline.data.labels.label_files import read_classes
from tta_pipeline.data.labels.shipped_lists import shipped_classes
from tta_pipeline.domain.cells import CLEAN, Cell
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import ClassMapError, ImagesError
from tta_pipeline.extras.new_project.draft_benchmark import draft_benchmark
from tta_pipeline_tests.conftest import write_tree

WNIDS = shipped_classes("imagenet")
V2 = "imagenetv2-matched-frequency-format-val"


def written(tmp_path: Path, *sources: Path, subset_of: str = "") -> Benchmark:
    """Write a benchmark file for *sources*, and read it; *subset_of* is the set of which these are some images."""
    path = tmp_path / "benchmarks" / "mine.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(draft_benchmark("mine", sources, own_folder=path.parent).text)
    if subset_of:  # as the file advises
        content = yaml.safe_load(path.read_text())
        del content["custom"], content["class_map"]
        path.write_text(yaml.safe_dump({**content, "dataset": subset_of, "subset": True}))
    return load_benchmark(path)


def names(benchmark: Benchmark, tmp_path: Path) -> dict[str, list[str]]:
    """Return the names of the images of each cell, as they become samples."""
    source = open_images(benchmark, Locations(root=tmp_path / "data"))
    with source.prepared(benchmark.cells):
        return {cell.key: [image.name for image in source.listing(cell).images] for cell in benchmark.cells}


def packed(folder: Path, path: Path) -> Path:
    """Pack *folder* with its name around its files, and return the archive."""
    with tarfile.open(path, "w") as tar:
        tar.add(folder, arcname=folder.name)
    return path


@pytest.fixture(params=["folder", "archive"])
def lie(request: pytest.FixtureRequest, tmp_path: Path):
    """Lay a folder as it is, or packed beside it."""
    return lambda folder: folder if request.param == "folder" else packed(folder, tmp_path / "packed.tar")


def test_the_names_of_another_set_are_known(tmp_path: Path, lie):
    """ImageNet-C-bar has other corruptions in the same folders; the file says so, and its cells are there."""
    for cell in ("cocentric_sine_waves/1", "cocentric_sine_waves/5", "plasma_noise/1", "plasma_noise/5"):
        write_tree(tmp_path / "x" / cell, classes={WNIDS[0]: 1, WNIDS[9]: 1})

    benchmark = written(tmp_path, lie(tmp_path / "x"), subset_of="imagenet_c_bar")

    assert ("imagenet_c_bar", (1, 5)) == (benchmark.dataset.name, benchmark.severities)
    assert {"cocentric_sine_waves", "plasma_noise"} == set(benchmark.corruptions)
    assert {2} == {len(found) for found in names(benchmark, tmp_path).values()}


def test_a_set_without_severities_and_with_fewer_classes(tmp_path: Path, lie):
    """ImageNet-R is one cell of severity 0; its labels count its own 200 classes, in order."""
    classes = shipped_classes("imagenet_r")
    write_tree(tmp_path / "ImageNet-R", classes={classes[0]: 2, classes[150]: 1})

    benchmark = written(tmp_path, lie(tmp_path / "ImageNet-R"), subset_of="imagenet_r")

    assert (Cell(corruption="imagenet_r", severity=0),) == benchmark.cells
    assert 3 == len(names(benchmark, tmp_path)["imagenet_r|0"])
    assert classes == load_class_map(benchmark, Locations(root=tmp_path / "data")).classes


def test_classes_by_number_count_as_numbers(tmp_path: Path, lie):
    """Folder 10 of ImageNetV2 is the eleventh class of ImageNet, not the third, as it is sorted as text."""
    write_tree(tmp_path / V2, classes={"2": 1, "10": 1, "999": 1})

    benchmark = written(tmp_path, lie(tmp_path / V2), subset_of="imagenet_v2")

    found = [name.split("/")[0] for name in names(benchmark, tmp_path)["matched_frequency|0"]]
    assert [WNIDS[2], WNIDS[10], WNIDS[999]] == found
    assert "imagenet_v2" == benchmark.dataset.name


def test_a_number_that_no_class_has_is_refused(tmp_path: Path):
    """Folders from 1 to 1000 would shift every label by one."""
    write_tree(tmp_path / V2, classes={"1": 1, "1000": 1})

    with pytest.raises(ImagesError, match=r"'1000'\D*\b0\b\D*\b999\b"):
        names(written(tmp_path, tmp_path / V2, subset_of="imagenet_v2"), tmp_path)


def test_numbers_without_a_list_are_sorted_as_numbers():
    """Names are sorted as text, and also where only some are numbers."""
    assert ("0", "2", "10") == label_order(["10", "2", "0"])
    assert ("10", "2", "a") == label_order(["a", "10", "2"])


def test_names_that_nobody_knows_become_a_set_of_ones_own(tmp_path: Path, lie):
    """The file proposes `custom` with the names and severities found, and works as it is."""
    for cell in ("dusk/2", "dusk/7", "rain/2", "rain/7"):
        write_tree(tmp_path / "x" / cell, classes={"n01": 1, "n02": 1})

    benchmark = written(tmp_path, lie(tmp_path / "x"))

    assert (("dusk", "rain"), (2, 7)) == (benchmark.corruptions, benchmark.severities)
    assert 4 == len(names(benchmark, tmp_path))


def test_a_set_in_a_file_of_ones_own_is_known(tmp_path: Path):
    """Its published folders have other names than its shifts."""
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "night.dataset.yaml").write_text(
        "names: [dusk, rain]\nseverities: [2, 7]\nfolders: {dusk: Dusk-2021}\n"
    )
    for cell in ("Dusk-2021/2", "Dusk-2021/7"):
        write_tree(tmp_path / "x" / cell, classes={"n01": 1, "n02": 1})

    benchmark = written(tmp_path, tmp_path / "x")

    assert ("night", ("dusk",)) == (benchmark.dataset.name, benchmark.corruptions)
    assert ["dusk|2", "dusk|7"] == list(names(benchmark, tmp_path))


def test_each_cell_tells_its_places(tmp_path: Path):
    """The folder of a cell is where it is opened: with severities, with none, and below folders of archives."""
    (tmp_path / "noise" / "Fog" / "2").mkdir(parents=True)
    texts = {
        "{kind: folder, root: /x}": ("/x/Fog/2",),
        f"{{kind: folder, root: {tmp_path}, class_dir_depth: 3}}": (f"{tmp_path}/noise/Fog/2",),
        "{kind: shards, root: /x}": ("/x/Fog/2",),
        "{kind: shards, root: 'file:///my%20x'}": ("/my x/Fog/2",),
        "{kind: shards, root: 'https://x'}": (),
        "{kind: npy, root: /x}": ("/x/Fog.npy", "/x/labels.npy"),
        "{kind: archive, archives: [/x/a.tar, /x/b.tar]}": ("/x/a.tar", "/x/b.tar"),
        "{kind: generated, clean: /x, severity_table: cifar_c}": ("/x",),
        "{kind: digits}": (),
    }
    shards = "shards: {num_shards: 1}\n"
    for text, expected in texts.items():
        path = tmp_path / "mine.yaml"
        path.write_text(
            f"title: x\ncustom: {{names: [fog], severities: [2], folders: {{fog: Fog}}}}\nimages: {text}\n"
            f"image_size: 32\n{'' if 'kind: shards' in text else shards}models: {{}}\nexperiments: {{}}\n"
        )
        benchmark = load_benchmark(path)
        assert expected == tuple(map(str, benchmark.images.places(benchmark.cells[0], benchmark.dataset)))


def test_shards_of_a_set_without_severities(tmp_path: Path):
    """They lie in the folder of the shift, and clean ones elsewhere."""
    (tmp_path / "s" / "imagenet-r").mkdir(parents=True)
    text = {
        "title": "x", "dataset": "imagenet_r", "image_size": 224, "models": {}, "experiments": {},
        "images": {"kind": "shards", "root": str(tmp_path / "s"), "clean": str(tmp_path / "c")},
    }  # fmt: skip
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(text))
    benchmark = load_benchmark(tmp_path / "mine.yaml")

    found = open_observed_images(benchmark, Locations(root=tmp_path / "data"))

    assert isinstance(found, ExistingShards)
    assert tmp_path / "s" / "imagenet-r" == found.folder(benchmark.cells[0])
    assert tmp_path / "c" == found.folder(CLEAN)


def test_the_name_of_a_list_stands_for_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of the classes of a model too, unless a file has that name."""
    monkeypatch.chdir(tmp_path)

    assert WNIDS == read_classes(Path("imagenet"))
    (tmp_path / "imagenet").touch()
    with pytest.raises(ClassMapError, match=r"imagenet.*''.*\.json.*\.mat"):
        read_classes(Path("imagenet"))
