"""No sample becomes pixels, or another shard, whose bytes are not those that were proven, whatever looks the same."""

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

from tta_pipeline.cli import main
from tta_pipeline.errors import ImagesError, ManifestError, ShardError, StreamError
from tta_pipeline.extras.loader_bench.baseline import read_stored_files
from tta_pipeline.loading.reader import Stream
from tta_pipeline.loading.stream_order import stored_order
from tta_pipeline.shards.build_manifest import publish_shard_set
from tta_pipeline.shards.sample_index import SAMPLES_SCHEMA, SampleIndex
from tta_pipeline.shards.shard_set import SAMPLES_FILE, ShardSet
from tta_pipeline.shards.splitting import split_shard_set
from tta_pipeline.shards.verification import find_shard_problems, verify_shard_sets
from tta_pipeline_tests.shards.cell import CLASS_MAP, LIMITS, QUIET, flip, flip_sample


def pixels(shard_set: ShardSet) -> np.ndarray:
    """Return all images in stored order."""
    stream = Stream(shard_set=shard_set, order=stored_order(shard_set.index), batch_size=6, image_size=32)
    return np.concatenate([batch.images.numpy().copy() for batch in stream])


def without_checksums(shard_set: ShardSet) -> ShardSet:
    """Return the set without its file of checksums."""
    (shard_set.folder / "checksums.xxh64").unlink()
    return ShardSet.open(shard_set.folder)


def sha256_of(shard_set: ShardSet, index: int) -> str:
    """Return the hash that the sample at *index* had when it was written."""
    return shard_set.index.table["sha256"][index].as_py().hex()


@pytest.mark.parametrize("make", [lambda shard_set: shard_set, without_checksums], ids=["xxh64", "sha256"])
def test_a_flipped_bit_is_named_though_size_and_times_are_the_same(shard_set: ShardSet, make: Callable):
    """The error has shard, key, offset, what was found and what was expected; with and without fast checksums."""
    shard_set = make(shard_set)
    path = flip_sample(shard_set, 7)
    shard_set.require_intact()  # all that can be seen without reading

    with pytest.raises(StreamError) as caught:
        pixels(shard_set)

    index, expected = shard_set.index, shard_set.sample_check().known[7].tobytes().hex()
    for value in (str(path), index.keys[7], f"byte {index.offsets[7]}", expected):
        assert value in str(caught.value)
    with pytest.raises(ManifestError, match=re.escape(path.name)):
        shard_set.require_intact()  # from then on the shards are hashed


def test_two_samples_that_were_exchanged_are_noticed(shard_set: ShardSet):
    """Both are intact images; each stands where the other was."""
    shard_set = ShardSet.open(shard_set.folder)
    sizes = shard_set.index.sizes
    shard = shard_set.index.shards
    pairs = ((i, j) for i in range(20) for j in range(i) if shard[i] == shard[j] and sizes[i] <= sizes[j])
    one, other = next(pairs)
    path = shard_set.folder / shard_set.manifest.shards[shard[one]].name
    data, start, place = bytearray(path.read_bytes()), *(int(shard_set.index.offsets[i]) for i in (one, other))
    data[place : place + sizes[one]] = data[start : start + sizes[one]]
    path.write_bytes(data)

    with pytest.raises(StreamError, match=rf"{shard_set.index.keys[other]}\b"):
        pixels(shard_set)


@pytest.mark.parametrize("damage", ["flip", "another"])
def test_damaged_checksums_are_not_believed(shard_set: ShardSet, tmp_path: Path, write: Callable, damage: str):
    """The samples are compared by sha256 then; verification makes the checksums again."""
    path = shard_set.folder / "checksums.xxh64"
    good, expected = path.read_bytes(), pixels(shard_set)
    if damage == "flip":
        flip(path, 40)
    else:
        write(tmp_path / "other", LIMITS.model_copy(update={"seed": 8}))
        publish_shard_set(tmp_path / "other", CLASS_MAP, QUIET)
        shutil.copy(tmp_path / "other" / "checksums.xxh64", path)

    opened = ShardSet.open(shard_set.folder)
    assert opened.checksums is None
    np.testing.assert_array_equal(expected, pixels(opened))
    assert [()] == [verdict.problems for verdict in verify_shard_sets([shard_set.folder], lambda *_: QUIET)]
    assert good == path.read_bytes()


def test_a_set_of_before_keeps_its_identity_when_it_gets_checksums(shard_set: ShardSet):
    """`verify_shard_sets` and the manifest's next publication add them; results of before name the same manifest."""
    manifest = shard_set.folder / "manifest.json"
    before = manifest.read_bytes()
    for complete in (
        lambda: CliRunner().invoke(main, ["shards", "verify", str(shard_set.folder)]),
        lambda: publish_shard_set(shard_set.folder, CLASS_MAP, QUIET),
    ):
        assert without_checksums(shard_set).checksums is None
        complete()
        np.testing.assert_array_equal(shard_set.checksums, ShardSet.open(shard_set.folder).checksums)
    assert before == manifest.read_bytes()


def test_checksums_are_made_of_no_sample_that_is_another(shard_set: ShardSet):
    """A shard that was changed with its times restored gets none of its present bytes."""
    without_checksums(shard_set)
    flip_sample(shard_set, 7)

    with pytest.raises(ManifestError, match=sha256_of(shard_set, 7)):
        publish_shard_set(shard_set.folder, CLASS_MAP, QUIET)
    (verdict,) = verify_shard_sets([shard_set.folder], lambda *_: QUIET)
    assert 1 == len(verdict.problems)
    assert not (shard_set.folder / "checksums.xxh64").exists()


@pytest.mark.parametrize("make", ["split", "read"])
def test_nothing_is_made_of_a_sample_that_was_changed(shard_set: ShardSet, tmp_path: Path, make: str):
    """Neither parts of the set, nor what other loaders read; each names the sample."""
    flip_sample(shard_set, 7)
    makers = {
        "split": lambda: list(split_shard_set(shard_set.folder, tmp_path / "t", 2, lambda *_: QUIET)),
        "read": lambda: list(read_stored_files(shard_set)),
    }

    with pytest.raises(ImagesError, match=sha256_of(shard_set, 7)):
        makers[make]()
    assert not list(tmp_path.glob("t/*.tar"))


@pytest.mark.parametrize("content", [b"[1,2]", b'{"a": 1', b'{"fog-5-00000.tar": [1]}'])
def test_a_damaged_note_is_ignored_and_written_again(shard_set: ShardSet, content: bytes):
    """The shards are hashed, and nothing else differs."""
    path = shard_set.folder / "verified.json"
    good = path.read_bytes()
    path.write_bytes(content)

    ShardSet.open(shard_set.folder).require_intact()
    assert good == path.read_bytes()


def replace_in_index(shard_set: ShardSet, column: str, values: np.ndarray) -> None:
    """Write other *values* into a column of the sample index, and its new hash into the manifest."""
    field = SAMPLES_SCHEMA.get_field_index(column)
    index = SampleIndex(table=shard_set.index.table.set_column(field, SAMPLES_SCHEMA.field(field), pa.array(values)))
    (shard_set.folder / SAMPLES_FILE).write_bytes(index.serialise())
    path = shard_set.folder / "manifest.json"
    samples_sha256 = hashlib.sha256(index.serialise()).hexdigest()
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"samples_sha256": samples_sha256}))


def test_an_index_with_an_image_of_a_terabyte_is_named(shard_set: ShardSet):
    """Whoever read it would ask for that much memory."""
    replace_in_index(shard_set, "size_bytes", np.array([2**40, *shard_set.index.sizes[1:]]))

    with pytest.raises(ManifestError, match="1,073,741,824"):
        ShardSet.open(shard_set.folder)


def test_labels_that_were_edited_are_named(shard_set: ShardSet):
    """The identity of the set has the hash of its labels, so results with these labels would count as before."""
    replace_in_index(shard_set, "label", (2 - shard_set.index.labels).astype(np.int32))

    (problem,) = find_shard_problems(ShardSet.open(shard_set.folder))
    assert shard_set.manifest.labels_sha256 in problem


@pytest.mark.parametrize(
    ("edit", "found"),
    [
        (lambda content: {**content, "classes": content["classes"][::-1]}, CLASS_MAP.sha256),
        (lambda content: {**content, "num_samples": 19}, r" 20 .* 19\b"),
        (lambda content: {**content, "shards": content["shards"][:-1]}, " 2 shards"),
    ],
    ids=["classes", "count", "shards"],
)
def test_a_manifest_that_contradicts_itself_is_refused(shard_set: ShardSet, edit: Callable, found: str):
    """Classes in another order than their hash, or counts that are not those of the index."""
    path = shard_set.folder / "manifest.json"
    path.write_text(json.dumps(edit(json.loads(path.read_text()))))

    with pytest.raises(ManifestError, match=found):
        ShardSet.open(shard_set.folder)


def test_a_folder_with_files_of_others_is_not_replaced(write: Callable, tmp_path: Path):
    """Shards take the place of a folder as a whole: what somebody put into it stays, and the error names it."""
    for name in ("thesis.tex", "mine.tar"):
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir()
        (folder / name).write_text("years of work")

        with pytest.raises(ShardError, match=re.escape(name)):
            write(folder)
        assert "years of work" == (folder / name).read_text()
    (tmp_path / "folder" / "fog-5-00000.tar").mkdir(parents=True)
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "manifest.json").symlink_to(tmp_path / "mine")
    for folder in (tmp_path / "folder", tmp_path / "link"):
        with pytest.raises(ShardError, match=r"fog-5-00000\.tar|manifest\.json"):
            write(folder)
    write(tmp_path / "shards")
    publish_shard_set(tmp_path / "shards", CLASS_MAP, QUIET)
    assert write(tmp_path / "shards", LIMITS.model_copy(update={"seed": 8})).was_written
