"""What can be asked of sharding beyond the bytes as they are."""

import gc
import io
import json
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import webdataset
from PIL import Image
from pydantic import ValidationError
from torchvision.transforms import v2

from tta_pipeline.benchmarks.shard_settings import ShardSettings
from tta_pipeline.data.images.folder_tree import discover_tree
from tta_pipeline.data.labels.class_map import ClassMap
from tta_pipeline.errors import ClassMapError, ImagesError, ManifestError
from tta_pipeline.loading.reader import Stream
from tta_pipeline.loading.stream_order import stored_order
from tta_pipeline.shards.adoption import adopt
from tta_pipeline.shards.benchmark_expectation import encoding_of
from tta_pipeline.shards.build_manifest import publish_shard_set
from tta_pipeline.shards.expected_shard_set import ExpectedShardSet
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.shards.shard_set_writing import order_images
from tta_pipeline.shards.splitting import split_shard_set
from tta_pipeline.shards.tar import archive_end, member_header, padding
from tta_pipeline.util.progress import quiet_reporter
from tta_pipeline_tests.conftest import jpeg, write_tree
from tta_pipeline_tests.shards.cell import CELL, CLASS_MAP, QUIET


def published(write, tmp_path: Path, **settings) -> ShardSet:
    """Return the shard set that *settings* give."""
    write(settings=ShardSettings(**{"num_shards": 2, **settings}))
    return publish_shard_set(tmp_path / "shards", CLASS_MAP, QUIET).shard_set


def pixels(shard_set: ShardSet, size: int) -> dict[str, np.ndarray]:
    """Return the decoded images by key."""
    stream = Stream(shard_set=shard_set, order=stored_order(shard_set.index), batch_size=64, image_size=size)
    (batch,) = stream
    return dict(zip(shard_set.index.keys, batch.images.numpy(), strict=True))


def test_tensors_hold_the_decoded_pixels(write, tree, tmp_path: Path):
    """With `format: tensor` the stream gives the pixels of the source files, and the manifest says so."""
    shard_set = published(write, tmp_path, format="tensor")
    stored = pixels(shard_set, 32)

    for image in tree.listing(CELL).images:
        expected = np.asarray(Image.open(io.BytesIO(image.read())))
        np.testing.assert_array_equal(expected, stored[image.name.removesuffix(".JPEG")])
    assert "tensor" == shard_set.manifest.encoding.format


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_resizing_is_that_of_torchvision(write, tree, tmp_path: Path, interpolation: str):
    """Resize and CenterCrop give the pixels that torchvision's give, and the manifest says how."""
    shard_set = published(write, tmp_path, format="tensor", resize=24, center_crop=20, interpolation=interpolation)
    stored = pixels(shard_set, 20)
    transform = v2.Compose([v2.Resize(24, v2.InterpolationMode(interpolation)), v2.CenterCrop(20)])
    assert interpolation == shard_set.manifest.encoding.interpolation

    for image in tree.listing(CELL).images:
        expected = np.asarray(transform(Image.open(io.BytesIO(image.read()))))
        np.testing.assert_array_equal(expected, stored[image.name.removesuffix(".JPEG")])


def test_shards_of_another_interpolation_are_made_again(write, tree, tmp_path: Path):
    """It decides pixels, so shards of one are not those of the other; without a word they are bilinear."""
    resized = {"format": "tensor", "resize": 24, "center_crop": 20}
    one, other = (published(write, tmp_path, **resized, interpolation=how) for how in ("bilinear", "bicubic"))

    assert one.manifest.sha256 != other.manifest.sha256
    assert "interpolation" not in json.loads(one.manifest.serialise())["encoding"]
    as_asked = encoding_of(ShardSettings(num_shards=2, **resized)).model_dump(mode="json", exclude_none=True)
    with pytest.raises(ManifestError, match="bicubic"):
        ShardSet.open(other.folder, ExpectedShardSet(encoding=as_asked))
    with pytest.raises(ValidationError, match=r"interpolation is bicubic.*resize"):
        ShardSettings(num_shards=1, interpolation="bicubic")


def test_images_are_encoded_again_only_when_they_change(write, tree, tmp_path: Path):
    """`quality` alone leaves every byte; with a crop it is the quality of the new files, and the manifest says so."""
    kept = published(write, tmp_path, quality=10)
    assert sum(image.size_bytes for image in tree.listing(CELL).images) == kept.manifest.payload_bytes
    assert kept.manifest.encoding.quality is None

    with pytest.raises(ImagesError, match=r"32x32 .*\b33\b"):
        published(write, tmp_path, quality=10, center_crop=33)
    cropped = published(write, tmp_path, quality=10, center_crop=30)
    assert {"format": "raw", "center_crop": 30, "quality": 10} == cropped.manifest.encoding.model_dump(
        exclude_none=True
    )


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # webdataset leaves its files open
def test_label_members_are_read_by_webdataset(write, tmp_path: Path):
    """With `labels` each sample has its class as `.cls` and its source as `.json`, beside the image."""
    shard_set = published(write, tmp_path, labels=True)
    shards = [str(shard_set.folder / shard.name) for shard in shard_set.manifest.shards]
    samples = list(webdataset.WebDataset(shards, shardshuffle=False))
    gc.collect()

    assert shard_set.index.labels.tolist() == [int(sample["cls"]) for sample in samples]
    assert shard_set.index.table["source_name"].to_pylist() == [json.loads(s["json"])["source"] for s in samples]
    assert all(sample["jpeg"] for sample in samples)


@pytest.mark.parametrize("order", ["permuted", "by_class", "dirichlet", "source"])
def test_every_order_holds_every_sample_once(write, tree, tmp_path: Path, order: str):
    """Whatever the order, the samples are those of the source, and the order's hash is in the manifest."""
    shard_set = published(write, tmp_path, order=order)

    expected = [image.name for image in tree.listing(CELL).images]
    assert expected == sorted(shard_set.index.table["source_name"].to_pylist())
    assert order == shard_set.manifest.order.name


def test_the_delta_of_a_dirichlet_order_is_in_the_manifest(write, tmp_path: Path):
    """So shards of another delta are not taken for these, nor those of the earlier order, which states none."""
    shard_set = published(write, tmp_path, order="dirichlet", delta=0.2)
    path = shard_set.folder / "manifest.json"

    assert 0.2 == ShardSet.open(path.parent, ExpectedShardSet(order=("dirichlet", 0, 0.2))).manifest.order.delta
    with pytest.raises(ManifestError, match=r"0\.2.*0\.1"):
        ShardSet.open(path.parent, ExpectedShardSet(order=("dirichlet", 0, 0.1)))
    stated = json.loads(path.read_text())
    del stated["order"]["delta"]
    path.write_text(json.dumps(stated))
    with pytest.raises(ManifestError, match=r"None.*0\.2"):
        ShardSet.open(path.parent, ExpectedShardSet(order=("dirichlet", 0, 0.2)))


def test_orders_differ_and_correlated_ones_are_correlated(tmp_path: Path):
    """Neighbours are of one class always by class, often in the Dirichlet order, and rarely when permuted."""
    write_tree(tmp_path, classes={f"n{number:02d}": 20 for number in range(10)})
    images = (
        discover_tree(tmp_path, class_dir_depth=0).listing(discover_tree(tmp_path, class_dir_depth=0).cells[0]).images
    )
    shares = {}
    for order in ("permuted", "dirichlet", "by_class"):
        found = order_images(images, ShardSettings(num_shards=1, order=order, delta=0.1), CELL)
        assert sorted(images) == sorted(found)
        shares[order] = np.mean([one.class_name == other.class_name for one, other in pairwise(found)])

    assert shares["permuted"] < 0.25
    assert 0.7 < shares["dirichlet"] < shares["by_class"]


def test_foreign_folders_are_counted_and_named_when_allowed(write, tree, tmp_path: Path):
    """Tiny-ImageNet-C's frost has 1,000 folders for 200 classes: against the class map the rest is left out by name."""
    for name in ("n98", "n99"):
        (tree.folder(CELL) / name).mkdir()
        (tree.folder(CELL) / name / "image.JPEG").write_bytes(jpeg(1))
    with pytest.raises(ClassMapError, match="n98, n99"):
        write()

    manifest = published(write, tmp_path, extra_classes="skip").manifest

    assert (2, ("n98", "n99")) == (manifest.source.num_foreign, manifest.source.extra_classes)
    assert 20 == manifest.num_samples == manifest.source.num_taken


@pytest.mark.parametrize("num_instances", [1, 3, 20])
def test_a_split_loses_and_doubles_nothing(shard_set: ShardSet, tmp_path: Path, num_instances: int):
    """The parts hold the samples in their order, sizes within one of each other, bytes untouched."""
    parts = [
        step.done.shard_set for step in split_shard_set(shard_set.folder, tmp_path / "p", num_instances, quiet_reporter)
    ]

    rows = [row for part in parts for row in part.index.table.to_pylist()]
    assert [(r["key"], r["sha256"]) for r in shard_set.index.table.to_pylist()] == [
        (r["key"], r["sha256"]) for r in rows
    ]
    sizes = [len(part.index) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert num_instances == len(sizes)


def test_more_instances_than_samples_are_refused(shard_set: ShardSet, tmp_path: Path):
    """An instance without a sample would hang a distributed run."""
    with pytest.raises(ImagesError, match=r" 20 .* 21\b"):
        list(split_shard_set(shard_set.folder, tmp_path / "p", 21, lambda *_: QUIET))


def test_shards_of_webdatasets_own_writer_are_adopted(tmp_path: Path):
    """Numbered keys with `.cls` members and gaps in the numbering get a manifest; no byte is rewritten."""
    (tmp_path / "fog" / "5").mkdir(parents=True)
    for number in (0, 2, 7):
        with webdataset.TarWriter(str(tmp_path / "fog" / "5" / f"train-{number:06d}.tar"), encoder=False) as writer:
            for sample in range(4):
                key = f"{number:03d}{sample:04d}"
                writer.write({"__key__": key, "jpg": jpeg(sample), "cls": str(sample % 2).encode()})
    before = {path: path.read_bytes() for path in (tmp_path / "fog" / "5").iterdir()}

    adopted = adopt(tmp_path / "fog" / "5", CELL, QUIET, benchmark_name="theirs", class_map=None)
    again = adopt(tmp_path / "fog" / "5", CELL, QUIET, benchmark_name="theirs", class_map=None)

    assert (12, ("0", "1")) == (adopted.shard_set.manifest.num_samples, adopted.shard_set.manifest.classes)
    assert Counter({0: 6, 1: 6}) == Counter(adopted.shard_set.index.labels.tolist())
    assert before == {path: path.read_bytes() for path in before}
    assert not again.was_built
    assert 12 == len(pixels(adopted.shard_set, 32))


def test_shards_of_the_first_system_are_adopted(write, tmp_path: Path):
    """Shards with class folders keep their labels, by the map that is given or the sorted folders."""
    write()
    (tmp_path / "shards" / "writer.json").unlink()
    wider = ClassMap(classes=("a_class_before", *CLASS_MAP.classes))

    adopted = adopt(tmp_path / "shards", CELL, QUIET, benchmark_name="theirs", class_map=wider).shard_set

    assert {1, 2, 3} == set(adopted.index.labels.tolist())


@pytest.mark.parametrize("name", ["n01/evil.pyd", "n01/evil.pkl", "n01/evil.pth", "n01/evil.pyd.gz", "n01/a.jpg.exe"])
def test_what_could_be_executed_is_not_adopted(tmp_path: Path, name: str):
    """A member that webdataset's decoder would unpickle is refused by name, and nothing of it runs."""
    proof = tmp_path / "it_ran"
    gadget = f"cposix\nmkdir\n(S'{proof}'\ntR.".encode()
    data = member_header(name, len(gadget)) + gadget + padding(len(gadget))
    (tmp_path / "shard.tar").write_bytes(data + archive_end(len(data)))

    with pytest.raises(ManifestError, match=re.escape(name)):
        adopt(tmp_path, CELL, QUIET, benchmark_name="theirs", class_map=None)
    assert not proof.exists()


def test_a_key_that_stands_twice_is_refused(tmp_path: Path):
    """Two samples of one key, which plain readers deliver both in silence, are named."""
    with webdataset.TarWriter(str(tmp_path / "a.tar"), encoder=False) as writer:
        for key in ("n01/a", "n01/b", "n01/a"):
            writer.write({"__key__": key, "jpg": jpeg(1)})

    with pytest.raises(ManifestError, match=r" n01/a .* 2 "):
        adopt(tmp_path, CELL, QUIET, benchmark_name="theirs", class_map=None)
