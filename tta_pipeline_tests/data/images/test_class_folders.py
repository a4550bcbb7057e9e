"""Which folders are classes, and of which cell, is never guessed: what cannot be told is refused with both ways out."""

import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.load_files import load_benchmark
from tta_pipeline.benchmarks.open_images import load_class_map, open_images
from tta_pipeline.data.images.archived_images import ArchivedImages
from tta_pipeline.domain.cells import CLEAN
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import ImagesError
from tta_pipeline_tests.conftest import jpeg

Made = Callable[..., Benchmark]


@pytest.fixture(params=["folder", "archive"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Made:
    """Return a function that lays images by name in a folder or an archive, and makes a benchmark of the set `dusk`."""

    def make(*names: str, class_map: list[str] | None = None, **custom: object) -> Benchmark:
        for number, name in enumerate(names):
            path = tmp_path / "x" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(jpeg(number))
        source: dict[str, object] = {"kind": "folder", "root": str(tmp_path / "x")}
        if request.param == "archive":
            with tarfile.open(tmp_path / "x.tar", "w") as tar:
                tar.add(tmp_path / "x", arcname="x")
            source = {"kind": "archive", "archives": [str(tmp_path / "x.tar")]}
        text = {"title": "x", "image_size": 32, "shards": {"num_shards": 1}, "models": {}, "experiments": {}}
        if class_map:
            (tmp_path / "classes.json").write_text(json.dumps(class_map))
            text["class_map"] = str(tmp_path / "classes.json")
        path = tmp_path / "mine.yaml"
        path.write_text(yaml.safe_dump({**text, "custom": {"names": ["dusk"], **custom}, "images": source}))
        return load_benchmark(path)

    return make


def contents(benchmark: Benchmark, tmp_path: Path) -> tuple[list[str], tuple[str, ...]]:
    """Return the names of the images of the only cell, and the classes."""
    locations = Locations(root=tmp_path / "data")
    source = open_images(benchmark, locations)
    (cell,) = benchmark.cells
    with source.prepared([cell]):
        names = [image.name for image in source.listing(cell).images]
    return names, load_class_map(benchmark, locations).classes


def require_refused(benchmark: Benchmark, tmp_path: Path, said: str) -> None:
    """Expect the images to be refused, and the classes too, before any are pinned."""
    locations = Locations(root=tmp_path / "data")
    with pytest.raises(ImagesError, match=said):
        contents(benchmark, tmp_path)
    with pytest.raises(ImagesError, match=said):
        load_class_map(benchmark, locations)
    assert not locations.class_map(benchmark.name).exists()


@pytest.mark.parametrize("own", [{}, {"folders": {"dusk": "Dusk-2021"}}])
def test_a_single_shift_has_its_own_folder_alone(made: Made, tmp_path: Path, own: dict):
    """What lies beside it are other splits."""
    folder = "Dusk-2021" if own else "dusk"
    benchmark = made(f"{folder}/a/1.jpg", f"{folder}/b/2.jpg", "dawn/a/3.jpg", "dawn/c/4.jpg", "clean/a/5.jpg", **own)

    assert (["a/1.jpg", "b/2.jpg"], ("a", "b")) == contents(benchmark, tmp_path)


@pytest.mark.parametrize("around", ["", "of_another_name/", "val/"])
def test_without_that_folder_the_whole_is_the_shift(made: Made, tmp_path: Path, around: str):
    """If all class folders lie in one folder, there is nothing else that they could be of."""
    benchmark = made(f"{around}a/1.jpg", f"{around}b/images/2.jpg", f"{around}readme.txt")

    assert (["a/1.jpg", "b/2.jpg"], ("a", "b")) == contents(benchmark, tmp_path)


@pytest.mark.parametrize("others", [("dawn", "noon"), ("train", "val"), ("of/dawn", "of/noon")])
def test_a_whole_with_other_splits_is_refused(made: Made, tmp_path: Path, others: tuple[str, str]):
    """Each of them could be the shift."""
    first, second = others
    benchmark = made(f"{first}/a/1.jpg", f"{second}/a/2.jpg", f"{second}/b/3.jpg")

    require_refused(benchmark, tmp_path, rf"\bdusk\b.*\b{first}, (x/)?{second}\b")


def test_a_folder_that_differs_in_case_is_named(made: Made, tmp_path: Path):
    """A file system may tell them apart, and a person does not."""
    benchmark = made("Dusk/a/1.jpg", "dawn/a/2.jpg")

    require_refused(benchmark, tmp_path, r"Dusk.*\bdusk\b")


@pytest.mark.parametrize("name", ["train", "images"])
def test_a_class_called_as_a_split_is_not_dropped(made: Made, tmp_path: Path, name: str):
    """VisDA-C and DomainNet have a class `train`; without a class map it could be a folder that is too many."""
    benchmark = made("dusk/car/1.jpg", f"dusk/{name}/2.jpg", "dusk/truck/3.jpg")

    require_refused(benchmark, tmp_path, rf"\bdusk\b.*\bcar\b.*'{name}'")


@pytest.mark.parametrize(
    "beside",
    ["__MACOSX/a/._1.jpg", "__MACOSX/a/1.jpg", "@eaDir/a/thumb.jpg", "a/@eaDir/1.jpg/thumb.jpg", "lost+found/#1.jpg",
     "logs/run.txt", "logs/old/run.txt", "c/Thumbs.db", ".cache/a/2.jpg"],
)  # fmt: skip
@pytest.mark.parametrize("around", ["dusk/", ""])
def test_a_folder_without_images_is_no_class(made: Made, tmp_path: Path, around: str, beside: str):
    """As one more class it would move the labels of those behind it; thumbnails of a disk station are no images."""
    benchmark = made(f"{around}a/1.jpg", f"{around}b/2.jpg", f"{around}{beside}")

    assert (["a/1.jpg", "b/2.jpg"], ("a", "b")) == contents(benchmark, tmp_path)


@pytest.mark.parametrize("odd", ["0/a/3.jpg", "0/c/3.jpg", "b/c/3.jpg"])
def test_class_folders_at_two_depths_are_refused(made: Made, tmp_path: Path, odd: str):
    """A copy or a part would be a class of its own, and move the labels of the others."""
    benchmark = made("dusk/a/1.jpg", "dusk/a1/2.jpg", f"dusk/{odd}")

    require_refused(benchmark, tmp_path, rf"\bdusk\b.*{odd.rpartition('/')[0]}\b")


def test_a_folder_in_a_class_folder_is_refused(made: Made, tmp_path: Path):
    """Thumbnails are no class."""
    benchmark = made("dusk/a/1.jpg", "dusk/b/2.jpg", "dusk/b/a-small/2.jpg")

    with pytest.raises(ImagesError, match="b/a-small"):
        contents(benchmark, tmp_path)


def test_folders_of_one_name_in_several_classes_are_refused(made: Made, tmp_path: Path):
    """All images would be of the one class `part_1`."""
    benchmark = made("dusk/a/part_1/1.jpg", "dusk/b/part_1/2.jpg")

    require_refused(benchmark, tmp_path, "b/part_1")


@pytest.mark.parametrize("around", ["dusk/", "of_another_name/", ""])
def test_the_class_map_says_that_it_is_a_class(made: Made, tmp_path: Path, around: str):
    """It is then one like any other, though `images` in a class is none."""
    classes = ["car", "images", "train"]
    benchmark = made(f"{around}car/images/1.jpg", f"{around}train/2.jpg", class_map=classes)

    assert (["car/1.jpg", "train/2.jpg"], tuple(classes)) == contents(benchmark, tmp_path)


def test_folders_that_are_all_classes_are_refused(made: Made, tmp_path: Path):
    """The images in `train/images` would be of the one or of the other."""
    benchmark = made("dusk/train/images/1.jpg", "dusk/val/images/2.jpg", class_map=["images", "train", "val"])

    with pytest.raises(ImagesError, match="train/images"):
        contents(benchmark, tmp_path)


def test_an_inner_archive_is_a_class_whatever_its_name(tmp_path: Path):
    """ILSVRC2012_img_train.tar has an archive for each class."""
    for name in ("car", "train"):
        (tmp_path / "1.jpg").write_bytes(jpeg(0))
        with tarfile.open(tmp_path / f"{name}.tar", "w") as inner:
            inner.add(tmp_path / "1.jpg", arcname="1.jpg")
    with tarfile.open(tmp_path / "all.tar", "w") as outer:
        for name in ("car", "train"):
            outer.add(tmp_path / f"{name}.tar", arcname=f"{name}.tar")
    source = ArchivedImages(
        archives=(tmp_path / "all.tar",), cells=(CLEAN,), spill_root=tmp_path / "spill", layout="nested"
    )

    with source.prepared([CLEAN]):
        assert ["car/1.jpg", "train/1.jpg"] == [image.name for image in source.listing(CLEAN).images]
