"""Images that a function of the user yields become shards."""

import ast
import io
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from PIL import Image
from torchvision.datasets import CIFAR10

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.load_files import load_benchmark
from tta_pipeline.benchmarks.open_images import load_class_map, open_images
from tta_pipeline.cli import main
from tta_pipeline.domain.cells import CLEAN, TRAIN, Cell
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import BenchmarkFileError, ImagesError, ManifestError
from tta_pipeline.shards.benchmark_expectation import expected_for_benchmark
from tta_pipeline.shards.conversion import benchmark_conversion
from tta_pipeline.shards.manifest import read_manifest
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.shards.write_cell import write_cell
from tta_pipeline.util.progress import quiet_reporter
from tta_pipeline.util.user_functions import load_function
from tta_pipeline_tests.conftest import jpeg
from tta_pipeline_tests.library_data import CLASSES, draw_cifar10, write_hub_folder

EXAMPLES = Path(__file__).parents[3] / "examples"
FOG = Cell(corruption="fog", severity=1)
IMAGES = """
from pathlib import Path
from PIL import Image
def images(corruption, severity, *, root, shade=7):
    yield "b", "1.jpg", Path(root, "1.jpg")
    yield "a", "1.jpg", Path(root, "1.jpg").read_bytes()
    yield "a", f"{corruption}.png", Image.new("RGB", (32, 32), (shade, severity, 0))
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module of the user's in the working directory, as no process has imported it, beside an image."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_images", raising=False)
    load_function.cache_clear()
    (tmp_path / "set").mkdir()
    (tmp_path / "set/1.jpg").write_bytes(jpeg(1))
    (tmp_path / "my_images.py").write_text(IMAGES)
    return tmp_path / "my_images.py"


def benchmark(folder: Path, **source: object) -> Benchmark:
    """Return a benchmark of the images of `my_images.py` in *folder*."""
    text = {
        "title": "x", "custom": {"names": ["fog"], "severities": [1]}, "image_size": 32, "shards": {"num_shards": 1},
        "models": {}, "experiments": {},
        "images": {"kind": "python", "function": "my_images:images", "arguments": {"root": f"{folder}/set"}, **source},
    }  # fmt: skip
    (folder / "mine.yaml").write_text(yaml.safe_dump(text))
    return load_benchmark(folder / "mine.yaml")


def shards_of(found: Benchmark, folder: Path, cell: Cell = FOG) -> ShardSet:
    """Return the shards that the benchmark makes of the images of *cell*."""
    with benchmark_conversion(found, Locations(root=folder / "data"), quiet_reporter).session([cell]) as session:
        return write_cell(session.task(cell), quiet_reporter).shard_set


def images(found: Benchmark, folder: Path, cell: Cell = FOG) -> dict[str, bytes]:
    """Return the files of *cell* by the names of the images."""
    source = open_images(found, Locations(root=folder / "data"))
    with source.prepared([cell]):
        return {image.name: image.read() for image in source.listing(cell).images}


def version(found: Benchmark, folder: Path) -> str:
    """Return the version of the images."""
    return open_images(found, Locations(root=folder / "data")).version(FOG)


def test_bytes_paths_and_pictures_are_images(module: Path):
    """Files stay byte for byte, and a picture keeps its pixels; the function is told the cell."""
    found = benchmark(module.parent)

    made = images(found, module.parent)

    assert {"a/1.jpg": jpeg(1), "b/1.jpg": jpeg(1)} == {name: made[name] for name in ("a/1.jpg", "b/1.jpg")}
    assert (7, 1, 0) == Image.open(io.BytesIO(made["a/fog.png"])).getpixel((3, 3))
    assert ("a", "b") == load_class_map(found, Locations(root=module.parent / "data")).classes


def test_clean_and_training_images_are_asked_for_by_name(module: Path):
    """Only if the file says that the function has them."""
    found = benchmark(module.parent, clean=True, train=True)

    assert (True, True) == (found.has_clean, found.has_train)
    assert ["a/1.jpg", "a/clean.png", "b/1.jpg"] == list(images(found, module.parent, CLEAN))
    assert 3 == shards_of(found, module.parent, TRAIN).manifest.num_samples
    assert (False, False) == (benchmark(module.parent).has_clean, benchmark(module.parent).has_train)


def test_code_arguments_and_files_decide_the_version(module: Path):
    """A comment does not."""
    folder = module.parent
    versions = [version(benchmark(folder), folder)]
    module.write_text(f"# Images.\n{IMAGES}")
    assert versions == [version(benchmark(folder), folder)]

    module.write_text(IMAGES.replace("shade=7", "shade=8"))
    versions.append(version(benchmark(folder), folder))
    versions.append(version(benchmark(folder, arguments={"root": f"{folder}/set", "shade": 9}), folder))
    versions.append(version(benchmark(folder, arguments={"root": f"{folder}/set", "query": 300 * "x"}), folder))
    (folder / "set/more").mkdir()
    (folder / "set/more/2.jpg").write_bytes(jpeg(2))
    versions.append(version(benchmark(folder), folder))

    assert 5 == len(set(versions))


def test_shards_of_other_code_are_refused(module: Path, monkeypatch: pytest.MonkeyPatch):
    """The manifest has the function, its code and its arguments."""
    folder, locations = module.parent, Locations(root=module.parent / "data")
    made = shards_of(benchmark(folder), folder)
    assert made.manifest.source.recipe is not None
    assert "my_images:images" == made.manifest.source.recipe["function"]
    assert not made.manifest.source.generated

    monkeypatch.delitem(sys.modules, "my_images")
    module.write_text(IMAGES.replace("shade=7", "shade=8"))

    with pytest.raises(ManifestError, match="my_images:images"):
        read_manifest(made.folder, expected_for_benchmark(benchmark(folder), locations, FOG))


def test_code_that_was_edited_since_it_was_imported_is_refused(module: Path):
    """The shards would name the new code, and have the images of the old."""
    images(benchmark(module.parent), module.parent)
    module.write_text(IMAGES.replace("shade=7", "shade=8"))

    with pytest.raises(ImagesError, match=re.escape(str(module))):
        version(benchmark(module.parent), module.parent)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            "    yield 'a', '1.jpg', Path(root, '1.jpg')\n    1 / 0",
            r"my_images:images.*fog\|1.*ZeroDivisionError.*{file}, line 6",
        ),
        ("    yield 'a', '1.jpg'", r"my_images:images.*fog\|1.*[Ii]mage 0.*'1.jpg'"),
        ("    yield 'a', '1.jpg', Image.new('RGB', (32, 32))", r"[Ii]mage 0.*\.png"),
        ("    yield 'a', '2.jpg', Path(root, '2.jpg')", "a/2.jpg.*/set/2.jpg"),
        ("    yield from ()", r"my_images:images.*no images.*fog\|1"),
        ("    return 7", "my_images:images.*TypeError"),
    ],
)
def test_what_is_wrong_is_named(module: Path, lines: str, said: str):
    """With the function and the cell; an error in the code with file and line."""
    module.write_text(f"{IMAGES.partition('    yield')[0]}{lines}\n")

    with pytest.raises(ImagesError, match=said.format(file=re.escape(str(module)))):
        images(benchmark(module.parent), module.parent)


def test_a_wrong_argument_is_named(module: Path):
    """As Python names it."""
    with pytest.raises(ImagesError, match=r"my_images:images.*TypeError.*'rot'"):
        images(benchmark(module.parent, arguments={"rot": "/x"}), module.parent)


def test_a_function_that_is_not_there_is_an_error_of_the_file(module: Path):
    """Found without running any code."""
    with pytest.raises(BenchmarkFileError, match="no_such_module"):
        benchmark(module.parent, function="no_such_module:images")


def test_class_numbers_count_in_the_class_map(module: Path):
    """In a set whose classes are numbers; those of many libraries are."""
    folder = module.parent
    (folder / "map.json").write_text(json.dumps([f"n{number:02d}" for number in range(12)]))
    (folder / "v2.dataset.yaml").write_text(f"{{names: [test], classes: {folder}/map.json, class_folders: numbers}}")
    module.write_text(
        "from PIL import Image\n"
        "def images(corruption, severity):\n"
        "    for number in range(12): yield str(number), 'x.png', Image.new('L', (32, 32), number)\n"
    )
    (folder / "mine.yaml").write_text(
        "{title: x, dataset: v2, image_size: 32, shards: {num_shards: 1}, models: {}, experiments: {}, "
        "images: {kind: python, function: my_images:images}}"
    )
    found = load_benchmark(folder / "mine.yaml")

    made = images(found, folder, found.cells[0])

    assert {f"n{number:02d}/x.png": number for number in range(12)} == {
        name: int(np.asarray(Image.open(io.BytesIO(data))).max()) for name, data in made.items()
    }


def of_example(name: str, folder: Path, **arguments: str) -> Benchmark:
    """Return the benchmark with the sections in the docstring of the example *name*, and with *arguments*."""
    docstring = ast.get_docstring(ast.parse((EXAMPLES / f"{name}.py").read_text())) or ""
    sections = yaml.safe_load(docstring.partition("In a benchmark file:\n")[2].partition("    python examples")[0])
    assert set(arguments) == set(sections["images"]["arguments"])
    sections["images"]["arguments"] = arguments
    head = {"title": "x", "image_size": 32, "shards": {"num_shards": 1}, "models": {}, "experiments": {}}
    (folder / "mine.yaml").write_text(yaml.safe_dump({**head, **sections}))
    return load_benchmark(folder / "mine.yaml")


def test_data_sets_of_torchvision_keep_their_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """By the example, under the names of their classes."""
    monkeypatch.syspath_prepend(EXAMPLES)
    root = draw_cifar10(tmp_path / "cifar", monkeypatch)
    found = of_example("torchvision_images", tmp_path, root=str(root))

    made = images(found, tmp_path, found.cells[0])

    data = CIFAR10(root, train=False)
    assert {f"{data.classes[label]}/{number:05d}.png" for number, label in enumerate(data.targets)} == set(made)
    for name, content in made.items():
        np.testing.assert_array_equal(data.data[int(name[-9:-4])], np.asarray(Image.open(io.BytesIO(content))))


def test_data_sets_of_the_hub_keep_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """By the example, byte for byte; it must be told the commit."""
    pytest.importorskip("datasets", reason="datasets, which is not in the extra dev, is not installed")
    monkeypatch.syspath_prepend(EXAMPLES)
    folder = str(write_hub_folder(tmp_path / "you", "fog_1"))
    found = of_example("hub_images", tmp_path, repository=folder, revision=40 * "0")

    expected = {f"{CLASSES[number % 10]}/{number:08d}.jpg": jpeg(number) for number in range(20)}
    assert expected == images(found, tmp_path)
    with pytest.raises(ImagesError, match=r"hub_images:images.*TypeError.*'revision'"):
        images(benchmark(tmp_path, function="hub_images:images", arguments={"repository": folder}), tmp_path)


def make(*arguments: str) -> tuple[int, str]:
    """Return exit code and output of `shards make`."""
    done = CliRunner().invoke(main, ["shards", "make", *arguments, "--num-shards", "1", "--jobs", "1"])
    return done.exit_code, done.output


def test_shards_make_takes_a_function(module: Path):
    """It is asked for the cell that the folder names, and gets numbers as numbers."""
    folder = module.parent
    arguments = ("--function", "my_images:images", "--argument", f"root={folder}/set", "--argument", "shade=9")

    assert 0 == make(*arguments, f"{folder}/shards/fog/5")[0]

    manifest = ShardSet.open(folder / "shards/fog/5").manifest
    assert ("fog|5", 3, ("a", "b")) == (manifest.cell.key, manifest.num_samples, tuple(manifest.classes))
    assert manifest.source.recipe is not None
    assert {"root": f"{folder}/set", "shade": 9} == manifest.source.recipe["arguments"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("set", "--function", "my_images:images"), "--function"),
        (("--function", "my_images:images", "--argument", "root"), "'root'"),
        (("--function", "my_images:images", "--layout", "flat"), "layout ('flat')"),
        (("--function", "nowhere:images"), "nowhere"),
        (("set", "--argument", "root=/x"), "arguments"),
    ],
)
def test_options_that_do_not_fit_a_function_are_refused(module: Path, arguments: tuple[str, ...], said: str):
    """They would be ignored in silence."""
    code, output = make(*arguments, "out")

    assert code
    assert said in output
    assert not (module.parent / "out").exists()
