"""The manifest is what the shards are; when one of them changes, somebody says so."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tta_pipeline.data.images.folder_tree import FolderTree
from tta_pipeline.data.labels.class_map import ClassMap
from tta_pipeline.errors import ManifestError
from tta_pipeline.shards.adoption import adopt
from tta_pipeline.shards.build_manifest import publish_shard_set
from tta_pipeline.shards.manifest import read_record
from tta_pipeline.shards.sample_index import SampleIndex
from tta_pipeline.shards.set_facts import Manifest
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.shards.shard_set_row import ShardSetRow, shard_set_row
from tta_pipeline.shards.verification import find_missing_classes, find_shard_problems
from tta_pipeline_tests.conftest import run_python
from tta_pipeline_tests.shards.cell import CELL, CLASS_MAP, QUIET


def test_every_sample_lies_where_the_index_says(shard_set: ShardSet, tree):
    """Slices at the recorded offsets are the source's bytes, under the source's names and labels."""
    source = {image.name: image.read() for image in tree.listing(CELL).images}
    shards = [(shard_set.folder / shard.name).read_bytes() for shard in shard_set.manifest.shards]
    rows = shard_set.index.table.to_pylist()

    assert source == {r["source_name"]: shards[r["shard"]][r["offset"] :][: r["size_bytes"]] for r in rows}
    assert all(CLASS_MAP.classes[r["label"]] == r["source_name"].partition("/")[0] for r in rows)


def test_totals_are_those_of_the_samples(shard_set: ShardSet):
    """Counts and bytes in the manifest are sums over the index and the files."""
    manifest = shard_set.manifest

    assert 20 == manifest.num_samples == len(shard_set.index) == sum(shard.num_samples for shard in manifest.shards)
    assert manifest.payload_bytes == shard_set.index.sizes.sum()
    assert manifest.shard_bytes == sum(path.stat().st_size for path in shard_set.folder.glob("*.tar"))
    assert [6, 7, 7] == np.bincount(shard_set.index.shards).tolist()


def test_a_set_is_one_row_of_its_table(write: Callable, tmp_path: Path):
    """Its bytes and files are those on the disk, and its speed is that of its writer; a set of others has none."""
    class_map = ClassMap(classes=(*CLASS_MAP.classes, "n04"))
    record = write(class_map=class_map).record.model_copy(update={"wall_s": 0.5})
    published = publish_shard_set(tmp_path / "shards", class_map, QUIET)
    manifest = published.shard_set.manifest

    row = shard_set_row(published, record, benchmark_name="mine", dataset="our")

    assert row == ShardSetRow(
        benchmark="mine",
        dataset="our",
        corruption="fog",
        severity=5,
        source_kind="folder",
        generated=False,
        manifest_sha256=manifest.sha256,
        order_hash=manifest.order.sha256,
        stored_order="permuted, seed 7",
        num_classes=4,
        num_classes_found=3,
        num_samples=20,
        num_shards=3,
        payload_bytes=sum(path.stat().st_size for path in tmp_path.glob("source/**/*.JPEG")),
        shard_bytes=sum(path.stat().st_size for path in tmp_path.glob("shards/*.tar")),
        num_inodes=10,
        num_loose_inodes=25,
        inode_reduction=2.5,
        write_wall_s=0.5,
        write_images_per_s=40.0,
        read_back_wall_s=published.wall_s,
    )
    others = shard_set_row(published, None, benchmark_name="mine", dataset="our")
    assert (None, None) == (others.write_wall_s, others.write_images_per_s)


def test_equal_images_make_equal_sets_whenever_they_were_saved(
    shard_set: ShardSet, write: Callable, tree: FolderTree, tmp_path: Path
):
    """So results of other machines can be compared; only in the source's listing do the two manifests differ."""
    for path in tree.root.rglob("*.JPEG"):
        os.utime(path, ns=(1, 1))
    write(tmp_path / "later")
    later = publish_shard_set(tmp_path / "later", CLASS_MAP, QUIET).shard_set

    assert shard_set.manifest.sha256 == later.manifest.sha256
    assert {"version"} == {
        name for name, value in shard_set.manifest.source if value != getattr(later.manifest.source, name)
    }


def test_equal_shards_are_one_set_whoever_lists_them(shard_set: ShardSet, tmp_path: Path):
    """Neither a name of a benchmark counts nor a pattern of files; adopted shards equal those of their writer."""
    shutil.copytree(shard_set.folder, tmp_path / "copy", ignore=shutil.ignore_patterns("*.json", "samples.*"))

    copy = adopt(tmp_path / "copy", CELL, QUIET, benchmark_name="theirs", class_map=CLASS_MAP, files=("fog-*.tar",))

    assert shard_set.manifest.sha256 == copy.shard_set.manifest.sha256


def test_our_own_set_without_its_index_is_not_adopted(shard_set: ShardSet):
    """As shards of others it would lose what its writer recorded."""
    (shard_set.folder / "samples.parquet").unlink()

    with pytest.raises(ManifestError, match=rf"^{shard_set.folder} .*manifest\.json does not describe"):
        adopt(shard_set.folder, CELL, QUIET, benchmark_name="theirs", class_map=CLASS_MAP)


def test_other_labels_make_another_set_though_the_shards_are_the_same(shard_set: ShardSet):
    """As of shards with numbers for classes, whose meaning a list elsewhere gives."""
    table = shard_set.index.table
    column = table.schema.get_field_index("label")
    turned = SampleIndex(table=table.set_column(column, "label", pa.array(2 - shard_set.index.labels)))
    other = shard_set.manifest.model_copy(update={"labels_sha256": turned.labels_sha256})

    assert shard_set.manifest.labels_sha256 == shard_set.index.labels_sha256
    assert shard_set.manifest.sha256 != other.sha256


def test_a_copy_of_the_shards_has_the_same_manifest(shard_set: ShardSet, tmp_path: Path):
    """The identity of a set depends on no clock and no place."""
    shutil.copytree(shard_set.folder, tmp_path / "copy", ignore=shutil.ignore_patterns("manifest.json", "samples.*"))

    copy = publish_shard_set(tmp_path / "copy", CLASS_MAP, QUIET)

    assert copy.was_built
    assert shard_set.manifest.sha256 == copy.shard_set.manifest.sha256


def test_a_manifest_that_describes_the_shards_stays(shard_set: ShardSet):
    """A second publication reads no shard and rewrites no file."""
    before = {path: path.stat().st_mtime_ns for path in shard_set.folder.iterdir()}

    assert not publish_shard_set(shard_set.folder, CLASS_MAP, QUIET).was_built
    assert before == {path: path.stat().st_mtime_ns for path in shard_set.folder.iterdir()}


OPENING = """
import os, sys
from pathlib import Path
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.shards.shard_set_row import ShardSetRow, shard_set_row
before = set(os.listdir("/proc/self/task"))
ShardSet.open(Path(sys.argv[1]))
assert before == set(os.listdir("/proc/self/task"))
"""


def test_opening_a_shard_set_starts_no_thread(shard_set: ShardSet):
    """Those that Arrow would start abort a process, now and then, that ends while they begin."""
    finished = run_python(OPENING, str(shard_set.folder))

    assert 0 == finished.returncode, finished.stderr


def first_shard(shard_set: ShardSet) -> Path:
    """Return the path of the first shard."""
    return shard_set.folder / shard_set.manifest.shards[0].name


def cut(shard_set: ShardSet) -> None:
    """Cut the first shard at a block edge, where a plain reader sees nothing wrong."""
    path = first_shard(shard_set)
    path.write_bytes(path.read_bytes()[:-512])


def flip(shard_set: ShardSet) -> None:
    """Flip one bit of image data."""
    path, offset = first_shard(shard_set), int(shard_set.index.offsets[0]) + 100
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def remove(shard_set: ShardSet) -> None:
    """Remove the first shard."""
    first_shard(shard_set).unlink()


def swap(shard_set: ShardSet) -> None:
    """Let two shards change their names."""
    one, other = (shard_set.folder / shard.name for shard in shard_set.manifest.shards[::2])
    one_bytes, other_bytes = one.read_bytes(), other.read_bytes()
    one.write_bytes(other_bytes)
    other.write_bytes(one_bytes)


@pytest.mark.parametrize("damage", [cut, flip, remove, swap])
def test_damaged_shards_are_refused_by_readers_and_by_the_manifest(shard_set: ShardSet, damage: Callable):
    """A reader refuses them, verification names them, and no new manifest is made of them."""
    damage(shard_set)

    with pytest.raises(ManifestError, match=first_shard(shard_set).name):
        shard_set.require_intact()
    assert any(first_shard(shard_set).name in problem for problem in find_shard_problems(shard_set))
    with pytest.raises(ManifestError):
        publish_shard_set(shard_set.folder, CLASS_MAP, QUIET)


def test_an_index_of_other_counts_is_a_problem(shard_set: ShardSet):
    """Each shard has its own, and all have those of the manifest; the labels too."""
    first, *others = shard_set.manifest.shards
    fewer = first.model_copy(update={"num_samples": first.num_samples - 1})
    for changes in (
        {"shards": (fewer, *others)},
        {"num_samples": 21},
        {"payload_bytes": 1},
        {"labels_sha256": 64 * "0"},
    ):
        manifest = shard_set.manifest.model_copy(update=changes)

        (problem,) = find_shard_problems(replace(shard_set, manifest=manifest))

        assert str(shard_set.folder) in problem
    assert () == find_shard_problems(shard_set)


def test_an_extra_shard_is_refused(shard_set: ShardSet):
    """A stray tar in the folder is named and not read."""
    shutil.copy(first_shard(shard_set), shard_set.folder / "extra.tar")
    (shard_set.folder / "manifest.json").unlink()

    assert ["extra.tar" in problem for problem in find_shard_problems(shard_set)] == [True]
    with pytest.raises(ManifestError, match=r"extra\.tar"):
        publish_shard_set(shard_set.folder, CLASS_MAP, QUIET)


def test_a_class_without_samples_is_named(shard_set: ShardSet):
    """Every class of the map is looked for."""
    wider = shard_set.manifest.model_copy(update={"classes": (*CLASS_MAP.classes, "n04")})

    assert ("n04",) == find_missing_classes(ShardSet(folder=shard_set.folder, manifest=wider, index=shard_set.index))
    assert () == find_missing_classes(shard_set)


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (lambda content: {**content, "version": 4}, "version is 4"),
        (lambda content: {**content, "version": 1, "num_samples": "x"}, "version is 1 (Input should be 3)"),
        (lambda content: {**content, "num_samples": -1}, "num_samples is -1"),
        (lambda content: {**content, "note": "mine"}, "unknown field note"),
        (lambda content: {**content, "shards": [{**content["shards"][0], "name": "../../x.tar"}]}, "x.tar"),
        (lambda content: {**content, "shards": [{**content["shards"][0], "name": "/etc/passwd"}]}, "/etc/passwd"),
        (lambda content: {**content, "num_samples": float("nan")}, "NaN"),
    ],
)
def test_an_edited_manifest_is_refused(shard_set: ShardSet, edit: Callable, named: str):
    """Other versions, impossible counts, foreign fields and paths that lead outside are named."""
    path = shard_set.folder / "manifest.json"
    path.write_text(json.dumps(edit(json.loads(path.read_text()))))

    with pytest.raises(ManifestError) as caught:
        ShardSet.open(shard_set.folder)

    assert named in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_manifest_of_an_earlier_version_is_made_again_from_the_same_shards(shard_set: ShardSet):
    """The refusal names the command, which reads the shards and rewrites none; the identity is as before."""
    path = shard_set.folder / "manifest.json"
    before = {each: each.stat().st_mtime_ns for each in shard_set.folder.glob("*.tar")}
    path.write_text(path.read_text().replace('"version": 3', '"version": 2'))
    with pytest.raises(ManifestError, match="tta-pipeline run BENCHMARK --part prepare"):
        ShardSet.open(shard_set.folder)

    again = publish_shard_set(shard_set.folder, CLASS_MAP, QUIET).shard_set

    assert shard_set.manifest == again.manifest
    assert before == {each: each.stat().st_mtime_ns for each in shard_set.folder.glob("*.tar")}


def test_a_doubled_field_and_a_cut_are_refused(shard_set: ShardSet):
    """A manifest with one field twice, or cut anywhere, is no manifest."""
    path = shard_set.folder / "manifest.json"
    text = path.read_text()
    for damaged in (text.replace("{", '{"severity": 1,', 1), *(text[:cut] for cut in range(0, len(text) - 1, 97))):
        path.write_text(damaged)
        with pytest.raises(ManifestError, match=r"manifest\.json"):
            ShardSet.open(shard_set.folder)


def test_a_damaged_index_is_refused(shard_set: ShardSet):
    """The sample index must hash to what the manifest says, though it still may be valid Parquet."""
    path = shard_set.folder / "samples.parquet"
    pq.write_table(shard_set.index.table.slice(1), path)

    with pytest.raises(ManifestError, match=rf"samples\.parquet.*{shard_set.manifest.samples_sha256}"):
        ShardSet.open(shard_set.folder)


def test_a_folder_of_images_is_no_shard_set(tmp_path: Path):
    """The error says what is expected, and how shards are made."""
    with pytest.raises(ManifestError, match=r"shards/fog/5.*tta-pipeline shards make"):
        read_record(tmp_path / "manifest.json", Manifest)
