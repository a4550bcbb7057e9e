"""Cells that have other images than most cells of their benchmark are found."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.load_files import load_benchmark
from tta_pipeline.domain.locations import Locations
from tta_pipeline.shards.conversion import benchmark_conversion
from tta_pipeline.shards.uneven_cells import find_uneven_cells
from tta_pipeline.shards.write_cell import write_cell
from tta_pipeline.util.progress import quiet_reporter
from tta_pipeline_tests.conftest import write_tree

CLASSES = {"a": 3, "b": 3, "c": 3}
ODD = "fog/2"


def sharded(tmp_path: Path, **fields: Any) -> tuple[Benchmark, Locations]:
    """Return the benchmark of the images in `tmp_path/images`, with the shards of every cell."""
    names = sorted(path.name for path in (tmp_path / "images").iterdir())
    content = {
        "title": "x", "custom": {"names": names, "severities": [1, 2]}, "image_size": 32, "models": {},
        "images": {"kind": "folder", "root": str(tmp_path / "images")}, "shards": {"num_shards": 1},
        "experiments": {}, **fields,
    }  # fmt: skip
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(content))
    benchmark, locations = load_benchmark(tmp_path / "mine.yaml"), Locations(root=tmp_path / "data")
    conversion = benchmark_conversion(benchmark, locations, quiet_reporter)
    with conversion.session(benchmark.cells) as session:
        for cell in benchmark.cells:
            write_cell(session.task(cell), quiet_reporter)
    return benchmark, locations


def found(tmp_path: Path, **fields: Any) -> list[str]:
    """Return what is found, a sentence for each cell."""
    return list(find_uneven_cells(*sharded(tmp_path, **fields)).values())


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Three shifts at two severities, with the same nine images of three classes in each."""
    for shift in ("dusk", "fog", "snow"):
        for severity in (1, 2):
            write_tree(tmp_path / "images" / shift / str(severity), classes=CLASSES)
    return tmp_path / "images"


def rename(folder: Path, form: str) -> None:
    """Give every image in *folder* a name of the *form*, with its number."""
    for path in folder.rglob("*.JPEG"):
        path.rename(path.with_name(form.format(int(path.stem.split("_")[-1]))))


def test_cells_with_the_same_images_are_even(images: Path, tmp_path: Path):
    """Whatever their order is, and if file names carry shift and severity."""
    assert [] == found(tmp_path)

    for cell in images.glob("*/*"):
        rename(cell, f"{cell.parent.name}_{cell.name}_{{:04d}}.JPEG")
    assert [] == found(tmp_path, shards={"num_shards": 1, "order": "dirichlet"})


def test_a_cell_without_a_class_is_named(images: Path, tmp_path: Path):
    """With the numbers of its images and classes, and those of most cells."""
    for path in (images / ODD / "c").iterdir():
        path.unlink()
    (images / ODD / "c").rmdir()

    assert ["fog|2 has 6 images of 2 classes, but other cells have 9 images of 3 classes"] == found(tmp_path)


@pytest.mark.parametrize(("classes", "counts"), [({"d": 1}, ("10", "4")), ({"a": 4}, ("10", "3"))])
def test_a_cell_with_more_is_named(images: Path, tmp_path: Path, classes: dict[str, int], counts: tuple[str, str]):
    """An image more, or a class more, which the class map of the whole source has."""
    write_tree(images / ODD, classes=classes)

    (sentence,) = found(tmp_path)

    assert f"fog|2 has {counts[0]} images of {counts[1]} classes" in sentence


@pytest.mark.parametrize("form", ["image_{:03d}.JPEG", "other_{:03d}.JPEG"])
def test_as_many_other_photographs_are_named(images: Path, tmp_path: Path, form: str):
    """Their numbers tell them apart, however the files are called; a set without severities has others in each cell."""
    for path in (images / ODD).rglob("*.JPEG"):
        path.rename(path.with_name(form.format(500 + int(path.stem[-3:]))))

    benchmark, locations = sharded(tmp_path)

    assert [ODD] == [cell.path for cell in find_uneven_cells(benchmark, locations)]
    natural = benchmark.dataset.model_copy(update={"severities": ()})
    assert {} == find_uneven_cells(benchmark.model_copy(update={"dataset": natural}), locations)


def test_cells_without_shards_are_left_out(images: Path, tmp_path: Path):
    """Those that are there are compared."""
    next((images / ODD / "a").iterdir()).unlink()
    benchmark, locations = sharded(tmp_path)
    for cell in benchmark.cells[:2]:
        (locations.shards("mine", cell) / "manifest.json").unlink()

    assert [ODD] == [cell.path for cell in find_uneven_cells(benchmark, locations)]
