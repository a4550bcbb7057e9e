"""Training images of any source become shards of their own, as they are."""

import tarfile
from pathlib import Path

import dagster as dg
import pytest

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.load_files import load_benchmark
from tta_pipeline.benchmarks.open_images import open_observed_images
from tta_pipeline.data.images.existing_shards import ExistingShards
from tta_pipeline.data.images.remote_shards import RemoteShards
from tta_pipeline.definitions import build_definitions
from tta_pipeline.domain.cells import TRAIN, Cell
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import BenchmarkFileError, ClassMapError
from tta_pipeline.shards.conversion import benchmark_conversion
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.shards.write_cell import write_cell
from tta_pipeline.util.progress import quiet_reporter
from tta_pipeline_tests.conftest import write_tree

FOG = Cell(corruption="fog", severity=1)
FILE = """
title: Any source
corruptions: [fog]
severities: [1]
image_size: 32
models: {models}
experiments: {{}}
shards: {shards}
images: {source}
"""


@pytest.fixture
def lie(tmp_path: Path) -> Path:
    """A folder with a cell, clean and training images: those are of 48 pixels, and 18 in number."""
    write_tree(tmp_path / "cells" / FOG.path, classes={"n01": 2, "n02": 2})
    write_tree(tmp_path / "imagenet" / "val", classes={"n01": 2, "n02": 2})
    write_tree(tmp_path / "imagenet" / "train", classes={"n01": 9, "n02": 9}, size=48)
    return tmp_path


def benchmark(folder: Path, source: str, *, shards: str = "{num_shards: 2}", models: str = "{}") -> Benchmark:
    """Return the benchmark of the file with that *source*."""
    (folder / "mine.yaml").write_text(FILE.format(source=source, shards=shards, models=models))
    return load_benchmark(folder / "mine.yaml")


def shards_of(found: Benchmark, folder: Path, cell: Cell = TRAIN) -> ShardSet:
    """Return the shards that the benchmark makes of the images of *cell*."""
    with benchmark_conversion(found, Locations(root=folder / "data"), quiet_reporter).session([cell]) as session:
        return write_cell(session.task(cell), quiet_reporter).shard_set


def stored(shard_set: ShardSet) -> dict[str, bytes]:
    """Return the bytes of every image by the name in its source."""
    found = {}
    for shard in shard_set.manifest.shards:
        with tarfile.open(shard_set.folder / shard.name) as tar:
            found |= {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    return found


def folder(lie: Path) -> str:
    """Name the folder of the training images' class folders."""
    return str(lie / "imagenet" / "train")


def imagenet_root(lie: Path) -> str:
    """Name the folder that has them beside the validation images."""
    return str(lie / "imagenet")


def archive(lie: Path) -> str:
    """Pack them with their class folders."""
    with tarfile.open(lie / "train.tar.gz", "w:gz") as tar:
        tar.add(lie / "imagenet" / "train", "train")
    return str(lie / "train.tar.gz")


def archive_of_archives(lie: Path) -> str:
    """Pack them as ILSVRC2012_img_train.tar is packed."""
    with tarfile.open(lie / "ILSVRC2012_img_train.tar", "w") as outer:
        for name in ("n01", "n02"):
            with tarfile.open(lie / f"{name}.tar", "w") as inner:
                for path in sorted((lie / "imagenet" / "train" / name).iterdir()):
                    inner.add(path, path.name)
            outer.add(lie / f"{name}.tar", f"{name}.tar")
    return f"{{path: {lie}/ILSVRC2012_img_train.tar, layout: nested}}"


@pytest.mark.parametrize("train", [folder, imagenet_root, archive, archive_of_archives])
def test_training_images_are_stored_as_they_are(lie: Path, train):
    """Every byte of every image, though they are larger than the benchmark's and its cells are cropped."""
    found = benchmark(
        lie,
        f"{{kind: folder, root: {lie}/cells, train: {train(lie)}}}",
        shards="{num_shards: 2, center_crop: 24, order: by_class}",
    )

    shard_set = shards_of(found, lie)

    files = (lie / "imagenet" / "train").rglob("*.JPEG")
    assert sorted(path.read_bytes() for path in files) == sorted(stored(shard_set).values())
    assert ("permuted", None) == (shard_set.manifest.order.name, shard_set.manifest.encoding.center_crop)
    assert 24 == shards_of(found, lie, FOG).manifest.encoding.center_crop


@pytest.mark.parametrize(
    "source",
    [
        "{{kind: archive, archives: [{lie}/cells.tar], train: {lie}/imagenet}}",
        "{{kind: generated, clean: {lie}/imagenet, train: {lie}/imagenet, severity_table: cifar_c}}",
    ],
)
def test_every_kind_of_source_can_have_training_images(lie: Path, source: str):
    """All 18 of them; of generated cells too, whose clean images lie beside."""
    with tarfile.open(lie / "cells.tar", "w") as tar:
        tar.add(lie / "cells", ".")

    assert 18 == shards_of(benchmark(lie, source.format(lie=lie)), lie).manifest.num_samples


def test_shards_of_training_images_have_limits_of_their_own(lie: Path):
    """A benchmark has a few images in a cell, and may have a million to train on."""
    source = f"{{kind: folder, root: {lie}/cells, train: {lie}/imagenet}}"
    found = benchmark(lie, f"{source}\ntrain_shards: {{num_shards: 3, resize: 40}}")

    shard_set = shards_of(found, lie)

    assert 3 == len(shard_set.manifest.shards)
    assert 40 == shard_set.manifest.encoding.resize
    assert 2 == len(shards_of(found, lie, FOG).manifest.shards)


def test_a_class_that_the_benchmark_lacks_is_refused(lie: Path):
    """No label of the benchmark fits it."""
    write_tree(lie / "imagenet" / "train", classes={"n03": 1})
    found = benchmark(lie, f"{{kind: folder, root: {lie}/cells, train: {lie}/imagenet}}")

    with pytest.raises(ClassMapError, match="n03"):
        shards_of(found, lie)


def test_training_shards_of_others_are_found_by_their_names(lie: Path):
    """Beside the validation shards, as the Hub has ImageNet."""
    (lie / "wds").mkdir()
    for name in ("train-00.tar", "train-01.tar", "validation-00.tar"):
        with tarfile.open(lie / "wds" / name, "w") as tar:
            tar.add(lie / "imagenet" / "train", ".")
    (lie / "mine.yaml").write_text(
        FILE.replace("shards: {shards}\n", "").format(
            source=f"{{kind: shards, root: {lie}/cells, train: {lie}/wds, train_files: 'train-*.tar'}}", models="{}"
        )
    )
    source = open_observed_images(load_benchmark(lie / "mine.yaml"), Locations(root=lie / "data"))

    assert isinstance(source, ExistingShards)
    assert ["train-00.tar", "train-01.tar"] == [path.name for path in source.shards(TRAIN)]


def test_training_shards_may_be_at_urls(tmp_path: Path):
    """Beside those of the cells, which have addresses of their own."""
    text = FILE.replace("shards: {shards}\n", "").format(
        source="{kind: shards, root: https://example.org/c, train: 'https://example.org/train-{0..3}.tar'}", models="{}"
    )
    (tmp_path / "mine.yaml").write_text(text)

    source = open_observed_images(load_benchmark(tmp_path / "mine.yaml"), Locations(root=tmp_path / "data"))

    assert isinstance(source, RemoteShards)
    assert ((TRAIN, ("https://example.org/train-{0..3}.tar",)),) == source.elsewhere


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("{kind: folder, root: x}\ntrain_shards: {num_shards: 1}", r"train_shards.*images\.train"),
        ("{kind: shards, root: x, train_files: a.tar}", r"train_files.*'a\.tar'"),
        ("{kind: shards, root: x, files: a/b.tar}", r"files.*'a/b\.tar'"),
        ("{kind: shards, root: 'https://h/x', files: a.tar}", r"`files` .*\bURL\b"),
        ("{kind: shards, root: 'https://h/x', devkit: d}", r"`devkit` .*\bURLs\b"),
        ("{kind: shards, root: x, train: 'https://example.org/train'}", r"images\b.*\broot\b.*\btrain\b"),
        (
            "{kind: folder, root: x, train: {path: x, layout: flat}}",
            r"images\.train.*\bflat\b.*\bground_truth\b.*\bclass_pattern\b",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(tmp_path: Path, source: str, named: str):
    """By one sentence that says what is expected."""
    with pytest.raises(BenchmarkFileError, match=rf"mine\.yaml.*{named}"):
        benchmark(tmp_path, source)


def test_a_model_cannot_be_trained_without_images(tmp_path: Path):
    """The error says which field would name them."""
    with pytest.raises(BenchmarkFileError, match=r"models\.mine\.kind.*'trained'.*images\.train"):
        benchmark(tmp_path, "{kind: folder, root: x}", models="{mine: {kind: trained}}")


def test_training_images_are_assets_of_the_benchmark(lie: Path):
    """They are observed, and the job that makes all shards makes theirs."""
    locations = Locations(root=lie / "data")
    locations.benchmark_files.mkdir(parents=True)
    text = FILE.format(
        source=f"{{kind: folder, root: {lie}/cells, train: {lie}/imagenet}}", shards="{num_shards: 1}", models="{}"
    )
    (locations.benchmark_files / "mine.yaml").write_text(text)

    definitions = build_definitions(locations)

    graph = definitions.resolve_asset_graph()
    keys = [dg.AssetKey(["mine", "train", name]) for name in ("images", "tar_shards", "shard_manifest")]
    assert graph.get(keys[0]).is_observable
    job = definitions.get_repository_def().get_job("mine__shard_everything")
    assert set(keys[1:]) <= set(job.asset_layer.executable_asset_keys)
    assert keys[0] not in job.asset_layer.executable_asset_keys
    assert "mine__new_cells" in {sensor.name for sensor in definitions.sensors or ()}
