"""Benchmark files over every kind of source, materialized by Dagster."""

import io
import tarfile
from pathlib import Path

import dagster as dg
import numpy as np
import pytest

from tta_pipeline.benchmarks.load_files import load_benchmark
from tta_pipeline.domain.cells import CLEAN, Cell
from tta_pipeline.errors import BenchmarkFileError
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline_tests.conftest import Project, jpeg, new_project, write_tree
from tta_pipeline_tests.defs.in_process import execute, what_failed

REST = """
title: Any source
subset: true
corruptions: [fog, contrast]
severities: [1, 5]
image_size: 32
shards: {num_shards: 2}
models:
  r18: {kind: torchvision, architecture: resnet18}
experiments:
  source: {model: r18, method: source}
images: """
CELLS = [Cell(corruption=corruption, severity=severity) for corruption in ("fog", "contrast") for severity in (1, 5)]
RANGE = ("fog|5", "contrast|5")
MADE = [cell for cell in CELLS if cell.severity == 5]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder tree."""
    return written(tmp_path)


def written(folder: Path) -> Path:
    """Write a folder tree of four cells with two classes of three images, and return it."""
    for cell in CELLS:
        write_tree(folder / "tree" / cell.path, classes={"n01": 3, "n02": 3})
    return folder / "tree"


def archives(tree: Path) -> str:
    """Pack the corruptions of *tree* into an archive each and return the source that names them."""
    for corruption in ("fog", "contrast"):
        with tarfile.open(tree.parent / f"{corruption}.tar", "w") as tar:
            tar.add(tree / corruption, corruption)
    return f"{{kind: archive, archives: [{tree.parent}/fog.tar, {tree.parent}/contrast.tar]}}"


def arrays(tree: Path) -> str:
    """Write arrays as CIFAR-10-C has them beside *tree* and return the source that names them."""
    rng = np.random.default_rng(0)
    for corruption in ("fog", "contrast"):
        np.save(tree.parent / f"{corruption}.npy", rng.integers(0, 256, (30, 32, 32, 3), np.uint8))
    np.save(tree.parent / "labels.npy", np.tile([0, 1, 0, 1, 0, 1], 5).astype(np.uint8))
    return f"{{kind: npy, root: {tree.parent}}}"


def generated(tree: Path) -> str:
    """Return the source that makes the cells from the images of one of them."""
    return f"{{kind: generated, clean: {tree}/fog/1, severity_table: cifar_c}}"


def val(tmp_path: Path) -> str:
    """Write a folder of clean images and return the clean images' entry."""
    write_tree(tmp_path / "val", classes={"n01": 4, "n02": 4})
    return f"{tmp_path}/val"


def val_archive(tmp_path: Path) -> str:
    """Pack a folder of clean images and return the clean images' entry."""
    with tarfile.open(tmp_path / "val.tar", "w") as tar:
        tar.add(val(tmp_path), "val")
    return f"{tmp_path}/val.tar"


def flat_archive(tmp_path: Path) -> str:
    """Pack validation images without folders, and write a list of their classes; return the clean images' entry."""
    with tarfile.open(tmp_path / "ILSVRC2012_img_val.tar", "w") as tar:
        for number in range(8):
            data = jpeg(number)
            member = tarfile.TarInfo(f"ILSVRC2012_val_{number + 1:08d}.JPEG")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    (tmp_path / "truth.txt").write_text("n01\nn02\n" * 4)
    return f"{{path: {tmp_path}/ILSVRC2012_img_val.tar, layout: flat, ground_truth: {tmp_path}/truth.txt}}"


def nested_archive(tmp_path: Path) -> str:
    """Pack a tar for each class into a tar and return the clean images' entry."""
    write_tree(tmp_path / "train", classes={"n01": 4, "n02": 4})
    with tarfile.open(tmp_path / "ILSVRC2012_img_train.tar", "w") as outer:
        for name in ("n01", "n02"):
            with tarfile.open(tmp_path / f"{name}.tar", "w") as inner:
                for path in sorted((tmp_path / "train" / name).iterdir()):
                    inner.add(path, path.name)
            outer.add(tmp_path / f"{name}.tar", f"{name}.tar")
    return f"{{path: {tmp_path}/ILSVRC2012_img_train.tar, layout: nested}}"


def imagenet_root(tmp_path: Path) -> str:
    """Lay images out as torchvision's `ImageNet` wants them, and return the clean images' entry."""
    write_tree(tmp_path / "imagenet" / "val", classes={"n01": 4, "n02": 4})
    write_tree(tmp_path / "imagenet" / "train", classes={"n01": 9, "n02": 9})
    (tmp_path / "imagenet" / "meta.bin").write_bytes(b"torch has it from the devkit")
    return f"{tmp_path}/imagenet"


def photos(tmp_path: Path) -> str:
    """Write files without class folders, whose names tell the class by a part, and return the source."""
    for cell in CELLS:
        (tmp_path / "flat" / cell.path).mkdir(parents=True)
        for number in range(6):
            name = f"photo{number}_n{number % 3}.JPEG"
            (tmp_path / "flat" / cell.path / name).write_bytes(jpeg(number))
    return f"{{kind: folder, root: {tmp_path}/flat, class_pattern: '_(n[0-9])[.]'}}"


def packed_photos(tmp_path: Path) -> str:
    """Pack such files and return the source."""
    photos(tmp_path)
    with tarfile.open(tmp_path / "flat.tar", "w") as tar:
        tar.add(tmp_path / "flat", "flat")
    return f"{{kind: archive, archives: [{tmp_path}/flat.tar], class_pattern: '_(n[0-9])[.]'}}"


KINDS = {"folder": lambda tree: f"{{kind: folder, root: {tree}}}", "archive": archives, "npy": arrays,
         "generated": generated}  # fmt: skip
CLEAN_IMAGES = (val, val_archive, flat_archive, nested_archive, imagenet_root)
PATTERNS = (photos, packed_photos)


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A benchmark for every kind of source, all of them sharded in one run."""

    def folder(name: str) -> Path:
        return tmp_path_factory.mktemp(name)

    sources = {kind: make(written(folder(kind))) for kind, make in KINDS.items()}
    sources |= {make.__name__: make(folder(make.__name__)) for make in PATTERNS}
    tree = written(folder("cells"))
    clean = {make.__name__: make(folder(make.__name__)) for make in CLEAN_IMAGES}
    project = new_project(folder("project"))
    for name, source in sources.items():
        project.add_benchmark(name, REST + source)
    for name, entry in clean.items():
        project.add_benchmark(name, REST + f"{{kind: folder, root: {tree}, clean: {entry}}}")
    made = (*sources, *(f"{name}/clean" for name in clean))
    selection = [f"{name}/{asset}" for name in made for asset in ("tar_shards", "shard_manifest")]

    finished = execute(project, selection, RANGE)

    assert finished.success, what_failed(finished)
    return project


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_source_becomes_shards_in_one_run(sharded: Project, kind: str):
    """One run over a range makes shards and manifests of its cells, and leaves no temporary file."""
    shard_sets = [ShardSet.open(sharded.locations.shards(kind, cell)) for cell in MADE]

    assert [6, 6] == [shard_set.manifest.num_samples for shard_set in shard_sets]
    assert (kind == "generated") == shard_sets[0].manifest.source.generated
    assert not list(sharded.locations.root.rglob(".unpublished*"))


@pytest.mark.parametrize("make", CLEAN_IMAGES)
def test_clean_images_come_from_where_they_lie(sharded: Project, make):
    """A folder, an archive, ImageNet's own archives and torchvision's root of it become a set of four images a class.

    The cells come from another place.
    """
    shard_set = ShardSet.open(sharded.locations.shards(make.__name__, CLEAN))

    assert ("n01", "n02") == shard_set.manifest.classes
    assert [4, 4] == np.bincount(shard_set.index.labels).tolist()


@pytest.mark.parametrize("make", PATTERNS)
def test_a_pattern_tells_the_class(sharded: Project, make):
    """Of files without class folders, by a part of their names."""
    shard_set = ShardSet.open(sharded.locations.shards(make.__name__, CELLS[-1]))

    assert ("n0", "n1", "n2") == shard_set.manifest.classes
    assert [2, 2, 2] == np.bincount(shard_set.index.labels).tolist()


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("{kind: folder, root: /x, class_pattern: 'n['}", r"images\.class_pattern: 'n\[' .*\b1\b"),
        ("{kind: folder, root: /x, class_pattern: 'n'}", r"images\.class_pattern: 'n' "),
        (
            "{kind: folder, root: /x, clean: {path: /y.tar, layout: flat}}",
            r"images\.clean: .*\bflat\b.*\bground_truth\b.*\bclass_pattern\b",
        ),
        ("{kind: folder, root: /x, clean: {layout: nested}}", r"images\.clean\.path\b"),
    ],
)
def test_a_source_that_cannot_be_is_refused_when_the_file_is_read(tmp_path: Path, source: str, named: str):
    """The message names the field and what was expected."""
    (tmp_path / "any.yaml").write_text(REST + source)

    with pytest.raises(BenchmarkFileError, match=rf"any\.yaml: {named}"):
        load_benchmark(tmp_path / "any.yaml")


def test_clean_images_to_generate_from_are_observed(project: Project, tree: Path):
    """The source of generated cells is what lies there: asking for it gives each cell a version."""
    project.add_benchmark("any", REST + generated(tree))

    with dg.DagsterInstance.ephemeral() as instance:
        assert execute(project, ["any/images"], ["fog|1"], instance=instance).success
        records = instance.fetch_observations(dg.AssetKey(["any", "images"]), limit=9).records
    assert {cell.key for cell in CELLS} == {record.partition_key for record in records}


def test_fewer_images_than_were_published_are_refused(project: Project, tree: Path):
    """No manifest appears until the file says that they are some of them, or that they are custom."""
    text = REST + f"{{kind: folder, root: {tree}}}"
    custom = "custom: {names: [fog, contrast], severities: [1, 5]}"
    said = {}
    for advice in ("", "subset: true", custom):
        project.add_benchmark("any", text.replace("subset: true", advice))
        finished = execute(project, ["any/tar_shards", "any/shard_manifest"], ["fog|1"])
        said[advice] = what_failed(finished)
        assert bool(advice) == (project.locations.shards("any", CELLS[0]) / "manifest.json").exists()

    assert ["has 6 images of fog|1; expected 50,000" in each for each in said.values()] == [True, False, False]
    assert [each == "" for each in said.values()] == [False, True, True]


def test_a_damaged_archive_publishes_nothing(project: Project, tree: Path):
    """A cut archive ends the run with its name, and no cell of it appears."""
    text = archives(tree)
    path = tree.parent / "fog.tar"
    path.write_bytes(path.read_bytes()[:3000])
    project.add_benchmark("any", REST + text)

    finished = execute(project, ["any/tar_shards"], RANGE)

    assert not finished.success
    assert "fog.tar" in what_failed(finished)
    assert not (project.locations.root / "any" / "shards").exists()
