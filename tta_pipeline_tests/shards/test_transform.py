"""A shard set made from another one holds the same samples, changed as was asked, and says so."""

import gc
import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import webdataset
from click.testing import CliRunner
from PIL import Image

from tta_pipeline.benchmarks.shard_settings import Transform
from tta_pipeline.benchmarks.user_functions import load_function
from tta_pipeline.cli import main
from tta_pipeline.errors import ManifestError, ShardError, SourceError
from tta_pipeline.loading.reader import Stream
from tta_pipeline.loading.stream_order import stored_order
from tta_pipeline.shards.adoption import adopt
from tta_pipeline.shards.build_manifest import publish_shard_set
from tta_pipeline.shards.set_facts import WriterRecord
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.shards.transformation import TransformResult, transform_shard_set, transform_shard_sets
from tta_pipeline.shards.verification import find_shard_problems
from tta_pipeline.util.files import published_folder
from tta_pipeline.util.progress import Progress
from tta_pipeline_tests.conftest import jpeg
from tta_pipeline_tests.shards.cell import CELL, CLASS_MAP, QUIET

INVERTED = "def change(image):\n    return 255 - image\n"


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module of the user's in the working directory, with one function."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "users_transforms.py"
    path.write_text(INVERTED)
    load_function.cache_clear()
    monkeypatch.delitem(sys.modules, "users_transforms", raising=False)
    return path


def transformed(shard_set: ShardSet, target: Path, **settings) -> TransformResult:
    """Return what the transform with *settings* makes of *shard_set*."""
    return transform_shard_set(shard_set.folder, target, Transform(**settings), lambda *_: QUIET)


def pixels(shard_set: ShardSet, size: int) -> np.ndarray:
    """Return the decoded images in stored order."""
    (batch,) = Stream(shard_set=shard_set, order=stored_order(shard_set.index), batch_size=64, image_size=size)
    return batch.images.numpy()


def test_a_function_is_given_every_image_and_what_it_returns_is_stored(shard_set, functions: Path, tmp_path: Path):
    """Samples, labels, order and number of shards stay; the pixels are the function's, exact as tensors."""
    done = transformed(shard_set, tmp_path / "t", function="users_transforms:change", format="tensor")
    new = done.published.shard_set

    np.testing.assert_array_equal(255 - pixels(shard_set, 32), pixels(new, 32))
    assert shard_set.index.keys == new.index.keys
    assert shard_set.index.labels.tolist() == new.index.labels.tolist()
    assert len(shard_set.manifest.shards) == len(new.manifest.shards)
    assert () == find_shard_problems(new)


def test_the_manifest_says_what_was_done_and_to_what(shard_set, functions: Path, tmp_path: Path):
    """Function, its hash, sizes and the manifest of the set before are in the new manifest."""
    done = transformed(shard_set, tmp_path / "t", function="users_transforms:change", resize=24, center_crop=20)
    manifest = done.published.shard_set.manifest

    assert ("users_transforms:change", 24, 20) == (
        manifest.encoding.function,
        manifest.encoding.resize,
        manifest.encoding.center_crop,
    )
    assert manifest.encoding.function_sha256 is not None
    assert ("shards", shard_set.manifest.sha256, 20) == (
        manifest.source.kind,
        manifest.source.version,
        manifest.source.num_images,
    )


def test_the_function_comes_before_resize_and_crop(shard_set, functions: Path, tmp_path: Path):
    """A function sees the image as it was stored, and may return another size; stored is the size asked for."""
    functions.write_text("def change(image):\n    assert image.shape == (32, 32, 3)\n    return image[:, 8:24]\n")

    new = transformed(shard_set, tmp_path / "t", function="users_transforms:change", resize=8, center_crop=8)

    assert (20, 8, 8, 3) == pixels(new.published.shard_set, 8).shape


def test_a_tensor_set_becomes_jpeg_again(shard_set, tmp_path: Path):
    """What a transform stored, another one reads."""
    tensors = transformed(shard_set, tmp_path / "tensors", format="tensor").published.shard_set
    again = transformed(tensors, tmp_path / "again", resize=16).published.shard_set
    direct = transformed(shard_set, tmp_path / "direct", resize=16).published.shard_set

    np.testing.assert_array_equal(pixels(direct, 16), pixels(again, 16))
    assert all(name.endswith(".JPEG") for name in again.index.table["source_name"].to_pylist())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # webdataset leaves its files open
def test_labels_are_added_without_touching_an_image(shard_set, tmp_path: Path):
    """With `labels` alone the images keep every byte, and webdataset finds their labels."""
    new = transformed(shard_set, tmp_path / "t", labels=True).published.shard_set
    samples = list(
        webdataset.WebDataset([str(path) for path in sorted((tmp_path / "t").glob("*.tar"))], shardshuffle=False)
    )
    gc.collect()

    assert shard_set.index.table["sha256"].to_pylist() == new.index.table["sha256"].to_pylist()
    assert new.index.labels.tolist() == [int(sample["cls"]) for sample in samples]


def test_nothing_is_written_twice_until_the_function_is_edited(shard_set, functions: Path, tmp_path: Path):
    """The same shards, settings and function give the set that stands; an edited function, or other shards, another."""
    settings = {"function": "users_transforms:change", "format": "tensor"}
    first = transformed(shard_set, tmp_path / "t", **settings)
    again = transformed(shard_set, tmp_path / "t", **settings)
    functions.write_text(INVERTED.replace("255 - image", "image // 2"))
    load_function.cache_clear()
    sys.modules.pop("users_transforms")
    edited = transformed(shard_set, tmp_path / "t", **settings)

    assert [True, False, True] == [done.was_written for done in (first, again, edited)]
    np.testing.assert_array_equal(pixels(shard_set, 32) // 2, pixels(edited.published.shard_set, 32))


@pytest.mark.parametrize(
    ("fact", "edited"),
    [("encoding", {"format": "raw", "resize": 8}), ("order", {"name": "permuted", "seed": 3}), ("benchmark", "other")],
)
def test_a_record_that_says_other_than_its_fingerprint_is_written_again(
    shard_set, tmp_path: Path, fact: str, edited: object
):
    """The manifest would say of the images what an edited record says, though they were made otherwise."""
    first = transformed(shard_set, tmp_path / "t", resize=16).published.shard_set.manifest
    path = tmp_path / "t" / "writer.json"
    record = json.loads(path.read_text())
    record[fact] = {**record[fact], **edited} if isinstance(edited, dict) else edited
    path.write_text(json.dumps(record))

    again = transformed(shard_set, tmp_path / "t", resize=16)

    assert again.was_written
    assert first == again.published.shard_set.manifest


def test_shards_of_another_transform_that_come_between_are_refused(
    shard_set, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Two files that transform into one folder at once: neither takes the other's set for its own."""
    from tta_pipeline.shards import transformation

    write = transformation.write_shards

    def write_and_lose(*arguments: object, **options: object) -> WriterRecord:
        record = write(*arguments, **options)
        monkeypatch.setattr(transformation, "write_shards", write)
        transformed(shard_set, tmp_path / "t", resize=8)
        return record

    monkeypatch.setattr(transformation, "write_shards", write_and_lose)
    with pytest.raises(ManifestError, match=r"found images with .*'resize': 8.*; expected .*'resize': 16"):
        transformed(shard_set, tmp_path / "t", resize=16)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("return image / 255", r"float64 \(32, 32, 3\)"),
        ("return image[..., 0]", r"uint8 \(32, 32\)"),
        ("return None", "NoneType"),
        ("return image[:0]", r"\(0, 32, 3\)"),
        ("return 1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_function_that_fails_is_named_with_the_image(
    shard_set, functions: Path, tmp_path: Path, body: str, named: str
):
    """What it returned or raised and for which image is said, damaged images being allowed or not; nothing appears."""
    functions.write_text(f"def change(image):\n    {body}\n")

    for damaged in ("stop", "skip"):
        with pytest.raises(ShardError, match=rf"users_transforms:change (returned|raised) .*{named}"):
            transformed(shard_set, tmp_path / "t", function="users_transforms:change", damaged=damaged)
    with pytest.raises(ShardError, match=r"fog-5-00000\.tar \(n0\d/image"):
        transformed(shard_set, tmp_path / "t", function="users_transforms:change")
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize(
    "reference", ["change", "users_transforms", "no_such_module_here:change", "a b:c", "math:floor"]
)
def test_a_function_that_cannot_be_found_is_refused_by_the_settings(functions: Path, reference: str):
    """Another form, a missing module and one without Python source are refused before anything is read."""
    with pytest.raises(ValueError, match="module"):
        Transform(function=reference)


def test_settings_are_checked_without_importing_the_function(functions: Path):
    """A benchmark file is read without running a user's code; what fails is said when it runs."""
    functions.write_text("raise RuntimeError('imported')")

    assert Transform(function="users_transforms:change").changes_images
    with pytest.raises(ShardError, match="imported"):
        load_function("users_transforms:change")


def test_processes_write_what_one_process_writes(shard_set, functions: Path, tmp_path: Path):
    """With several processes, for one set and for several, the bytes are the same."""
    (tmp_path / "in" / "fog").mkdir(parents=True)
    for severity in ("4", "5"):
        with published_folder(tmp_path / "in" / "fog" / severity) as folder:
            for path in shard_set.folder.iterdir():
                (folder / path.name).write_bytes(path.read_bytes())
    transform = Transform(function="users_transforms:change", resize=24)

    def made(name: str, root: Path, jobs: int) -> list[str]:
        done = transform_shard_sets(root, tmp_path / name, transform, jobs=jobs, progress=lambda *_: QUIET)
        return [step.done.published.shard_set.manifest.sha256 for step in done]

    one = made("one", tmp_path / "in", 1)
    assert 2 == len(one)
    assert one == made("several", tmp_path / "in", 2)
    assert one[:1] == made("single", tmp_path / "in" / "fog" / "4", 2)
    assert {"4", "5"} == {path.name for path in (tmp_path / "several" / "fog").iterdir()}


def test_damaged_shards_are_refused_and_nothing_appears(shard_set, tmp_path: Path):
    """A flipped bit is found before the first image is written."""
    path = shard_set.folder / shard_set.manifest.shards[1].name
    data = bytearray(path.read_bytes())
    data[2000] ^= 1
    path.write_bytes(data)

    with pytest.raises(ManifestError, match=path.name):
        transformed(shard_set, tmp_path / "t", resize=16)
    assert not (tmp_path / "t").exists()


def test_shards_that_change_while_they_are_transformed_are_refused(shard_set, tmp_path: Path):
    """Of a shard that is replaced meanwhile, by one of the same size too, nothing is taken and nothing appears."""
    path = shard_set.folder / shard_set.manifest.shards[-1].name

    class Replacing(Progress):
        def advance(self, *_: int) -> None:
            path.write_bytes(bytes(path.stat().st_size))

    with pytest.raises(SourceError, match=f"{path.name} was changed"):
        transform_shard_set(
            shard_set.folder, tmp_path / "t", Transform(labels=True), lambda *_: Replacing(print, what="", total=0)
        )
    assert not (tmp_path / "t").exists()


def test_an_output_inside_the_input_is_refused(shard_set, tmp_path: Path):
    """The shard sets that are read are never replaced."""
    before = {path: path.read_bytes() for path in shard_set.folder.iterdir()}

    for output in (shard_set.folder, shard_set.folder / "out"):
        with pytest.raises(ShardError, match="expected a folder outside"):
            list(transform_shard_sets(shard_set.folder, output, Transform(), jobs=1, progress=lambda *_: QUIET))
    assert before == {path: path.read_bytes() for path in shard_set.folder.iterdir()}


def test_adopted_shards_are_transformed(tmp_path: Path):
    """Numbered samples with `.cls` members become members of class folders with their labels."""
    (tmp_path / "theirs").mkdir()
    with webdataset.TarWriter(str(tmp_path / "theirs" / "a.tar"), encoder=False) as writer:
        for number in range(6):
            writer.write({"__key__": f"{number:06d}", "jpg": jpeg(number), "cls": str(number % 3).encode()})
    theirs = adopt(tmp_path / "theirs", CELL, QUIET, benchmark_name="theirs", class_map=None).shard_set

    new = transformed(theirs, tmp_path / "t", order="by_class", num_shards=2).published.shard_set

    assert [0, 0, 1, 1, 2, 2] == new.index.labels.tolist()
    assert 2 == len(new.manifest.shards)


def test_a_transform_is_a_conversion_with_a_function(write, functions: Path, tmp_path: Path, tree):
    """The settings of shards take a function as well, from any source."""
    from tta_pipeline.benchmarks.shard_settings import ShardSettings

    write(settings=ShardSettings(num_shards=1, order="source", format="tensor", function="users_transforms:change"))
    stored = pixels(publish_shard_set(tmp_path / "shards", CLASS_MAP, QUIET).shard_set, 32)

    first = np.asarray(Image.open(io.BytesIO(tree.listing(CELL).images[0].read())))
    np.testing.assert_array_equal(255 - first, stored[0])


def test_the_verb_tells_what_it_made(shard_set, functions: Path, tmp_path: Path):
    """`--json` gives one entry for each set; a repetition says that nothing was written; the help has an example."""
    command = ["shards", "transform", str(shard_set.folder), str(tmp_path / "t"),
               "--function", "users_transforms:change", "--resize", "24", "--jobs", "2", "--json"]  # fmt: skip
    first, again = (CliRunner().invoke(main, command) for _ in range(2))

    assert (0, 0) == (first.exit_code, again.exit_code), first.output
    (made,), (stood,) = json.loads(first.stdout), json.loads(again.stdout)
    assert (20, 3, True) == (made["num_samples"], made["num_shards"], made["was_written"])
    assert {**made, "was_written": False} == stood
    assert ShardSet.open(tmp_path / "t").manifest.sha256 == made["manifest_sha256"]
    assert (
        "tta-pipeline shards transform shards small"
        in CliRunner().invoke(main, ["shards", "transform", "--help"]).output
    )


def test_the_verb_names_what_is_wrong(shard_set, tmp_path: Path):
    """A missing module is an error of usage, a folder without a manifest one clear line."""
    missing = CliRunner().invoke(
        main, ["shards", "transform", str(shard_set.folder), str(tmp_path / "t"), "--function", "no_x:y"]
    )
    (tmp_path / "empty").mkdir()
    empty = CliRunner().invoke(main, ["shards", "transform", str(tmp_path / "empty"), str(tmp_path / "t")])

    assert 2 == missing.exit_code
    assert "found no module no_x" in missing.output
    assert 1 == empty.exit_code
    assert "ManifestError: no manifest.json" in empty.output
