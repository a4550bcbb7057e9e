"""Shards are made whole or not at all, the same bytes each time, and only when something changed."""

import gc
import json
import tarfile
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
import webdataset
from hypothesis import given
from hypothesis import strategies as st

from tta_pipeline.benchmarks.shard_settings import ShardSettings
from tta_pipeline.errors import ClassMapError, ImagesError
from tta_pipeline.shards import hashed_file, shard_writing
from tta_pipeline.shards.build_manifest import publish_shard_set
from tta_pipeline.shards.shard_set_writing import Target, shard_bounds, write_shards
from tta_pipeline.util import processes
from tta_pipeline_tests.conftest import jpeg
from tta_pipeline_tests.shards.cell import CELL, CLASS_MAP, LIMITS, QUIET

limits = st.one_of(
    st.builds(ShardSettings, num_shards=st.integers(1, 30)),
    st.builds(ShardSettings, samples_per_shard=st.integers(1, 30)),
    st.builds(ShardSettings, max_shard_bytes=st.integers(10240, 200_000)),
)


def contents(folder: Path) -> dict[str, bytes]:
    """Return the shards in *folder* by name."""
    return {path.name: path.read_bytes() for path in folder.glob("*.tar")}


@given(st.lists(st.integers(1, 9000), min_size=1, max_size=60), limits)
def test_every_sample_is_in_one_shard_and_shards_are_equal(sizes: list[int], limits: ShardSettings):
    """Cuts run from the first sample to the last, counts differ by one at most, and the limit holds."""
    bounds = shard_bounds(sizes, limits)
    counts = [end - start for start, end in pairwise(bounds)]

    assert (0, len(sizes)) == (bounds[0], bounds[-1])
    assert max(counts) - min(counts) <= 1
    assert min(counts) >= 1
    if limits.num_shards:
        assert min(limits.num_shards, len(sizes)) == len(counts)
    if limits.samples_per_shard:
        assert max(counts) <= limits.samples_per_shard


def test_the_same_source_and_seed_give_the_same_bytes(write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Two conversions are equal byte for byte, whatever is written at a time; another seed gives another order."""
    write(tmp_path / "a")
    monkeypatch.setattr(shard_writing, "_BUFFER_BYTES", 3000)
    monkeypatch.setattr(hashed_file, "_WRITE_BACK_BYTES", 5000)
    write(tmp_path / "b")
    write(tmp_path / "c", LIMITS.model_copy(update={"seed": 8}))

    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert contents(tmp_path / "a") != contents(tmp_path / "c")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # webdataset leaves its files open
def test_plain_tar_and_webdataset_read_the_source_back(write, tree, tmp_path: Path):
    """Labels and bytes are the source's, by Python's tarfile and by a plain webdataset 1.x pipeline."""
    write()
    source = {image.name: image.read() for image in tree.listing(CELL).images}
    shards = sorted(map(str, (tmp_path / "shards").glob("*.tar")))
    by_tar = {}
    for shard in shards:
        with tarfile.open(shard) as archive:
            by_tar |= {member.name: archive.extractfile(member).read() for member in archive}

    by_webdataset = {f"{s['__key__']}.JPEG": s["jpeg"] for s in webdataset.WebDataset(shards, shardshuffle=False)}
    gc.collect()

    assert source == by_tar
    assert source == by_webdataset


def test_order_is_permuted_and_mixes_classes(write, tmp_path: Path):
    """The first shard is not one class after the other, as a plain listing would be."""
    write()
    with tarfile.open(tmp_path / "shards" / "fog-5-00000.tar") as archive:
        classes = Counter(name.partition("/")[0] for name in archive.getnames())

    assert len(classes) > 1


def test_nothing_is_rewritten_when_nothing_changed(write, tmp_path: Path):
    """A second run leaves every file alone; a changed source or limit writes anew."""
    write()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "shards").iterdir()}

    assert not write().was_written
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "shards").iterdir()}
    assert write(settings=ShardSettings(num_shards=2)).was_written


def test_shards_of_another_version_are_written_again(write, tmp_path: Path):
    """Their record is not read; the new shards have the same bytes."""
    before = write().record
    path = tmp_path / "shards" / "writer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 1}))

    again = write()

    assert again.was_written
    assert before.shards == again.record.shards


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[: len(data) * 6 // 10], lambda _: b"", lambda _: b"<html>not found</html>", lambda d: d[:-2]],
    ids=["truncated", "empty", "html", "no end mark"],
)
def test_a_damaged_image_stops_the_conversion(write, tree, tmp_path: Path, damage):
    """The error names the file, nothing is published, and an earlier shard set stays."""
    image = tree.folder(CELL) / "n02" / "image_003.JPEG"
    image.write_bytes(damage(image.read_bytes()))

    with pytest.raises(ImagesError, match=r"n02/image_003\.JPEG"):
        write()

    assert not (tmp_path / "shards").exists()


def test_an_unknown_class_folder_stops_the_conversion(write, tree, tmp_path: Path):
    """A folder that the class map lacks is named, since guessing its label would shift others."""
    (tree.folder(CELL) / "n99").mkdir()
    (tree.folder(CELL) / "n99" / "image.JPEG").write_bytes(jpeg(1))

    with pytest.raises(ClassMapError, match=r" n99\b"):
        write()

    assert not (tmp_path / "shards").exists()


def test_two_files_of_one_key_are_refused_with_both_paths(write, tree):
    """`a.JPEG` and `a.jpg` would be one sample in webdataset; the error names both."""
    folder = tree.folder(CELL) / "n01"
    (folder / "image_000.jpg").write_bytes(jpeg(1))

    with pytest.raises(ImagesError) as caught:
        write()

    assert str(folder / "image_000.jpg") in str(caught.value)
    assert str(folder / "image_000.JPEG") in str(caught.value)


def test_other_processes_write_and_read_the_same_shards(write, tree, tmp_path: Path, monkeypatch):
    """Byte for byte, with the same manifest."""
    monkeypatch.setattr(processes, "_MIN_WORK_BYTES", 0)
    target = Target(folder=tmp_path / "others", benchmark_name="test", source_kind="folder")
    with processes.Workers(2) as workers:
        written = write_shards(
            tree.listing(CELL),
            target,
            version=write().record.source.version,
            class_map=CLASS_MAP,
            settings=LIMITS,
            progress=QUIET,
            workers=workers,
        )
        read = publish_shard_set(target.folder, CLASS_MAP, QUIET, workers).shard_set.manifest

    assert write().record.model_dump(exclude={"wall_s"}) == written.model_dump(exclude={"wall_s"})
    assert read == publish_shard_set(tmp_path / "shards", CLASS_MAP, QUIET).shard_set.manifest
