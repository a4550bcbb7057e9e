"""A cell that was decoded once is read as pixels the next time, the same ones, within a limit."""

import random
import resource
import signal
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from tta_pipeline.loading.decoded_cache import CachedPixels, DecodedCache
from tta_pipeline.loading.reader import Stream
from tta_pipeline.loading.stored_pixels import StoredPixels
from tta_pipeline.loading.stream_order import shuffled_order, stored_order
from tta_pipeline.shards.build_manifest import publish_shard_set
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline_tests.shards.cell import CLASS_MAP, LIMITS, QUIET, flip

CELL_BYTES = 20 * (32 * 32 * 3 + 8) + 64


def images(shard_set: ShardSet, open_pixels=StoredPixels, order=stored_order) -> np.ndarray:
    """Return all images of a stream."""
    stream = Stream(
        shard_set=shard_set, order=order(shard_set.index), batch_size=6, image_size=32, open_pixels=open_pixels
    )
    return np.concatenate([batch.images.numpy().copy() for batch in stream])


def test_kept_pixels_are_the_decoded_ones(shard_set: ShardSet, tmp_path: Path):
    """In stored order and in any other, also when the shards are gone."""
    cells = DecodedCache(folder=tmp_path / "decoded", limit_bytes=CELL_BYTES)
    mixed = lambda index: shuffled_order(index, seed=1)  # noqa: E731 - an order by itself
    expected, expected_mixed = images(shard_set), images(shard_set, order=mixed)

    np.testing.assert_array_equal(expected, images(shard_set, cells.open_pixels))
    for shard in shard_set.manifest.shards:
        (shard_set.folder / shard.name).unlink()

    np.testing.assert_array_equal(expected, images(shard_set, cells.open_pixels))
    np.testing.assert_array_equal(expected_mixed, images(shard_set, cells.open_pixels, mixed))


def test_a_stream_that_is_left_keeps_nothing(shard_set: ShardSet, tmp_path: Path):
    """Half a cell never has the name of a whole one, and no file is left behind."""
    cells = DecodedCache(folder=tmp_path / "decoded", limit_bytes=CELL_BYTES)
    stream = Stream(
        shard_set=shard_set, order=stored_order(shard_set.index), batch_size=6, image_size=32,
        open_pixels=cells.open_pixels,
    )  # fmt: skip
    batches = iter(stream)
    next(batches)
    batches.close()

    assert not kept(cells)


def test_the_limit_holds(shard_set: ShardSet, tmp_path: Path):
    """The file that was used longest ago makes room; a cell that is too large is read from its shards."""
    tight, cells = (DecodedCache(folder=tmp_path, limit_bytes=limit) for limit in (CELL_BYTES - 1, CELL_BYTES))
    images(shard_set, cells.open_pixels)
    old = kept(cells)[0]
    old = old.rename(old.with_name(f"{0:064x}-32.pixels"))
    assert isinstance(tight.open_pixels(shard_set, 32), StoredPixels)
    assert [old] == kept(cells)

    images(shard_set, cells.open_pixels)

    assert 1 == len(kept(cells))
    assert not old.exists()


def test_a_cell_is_written_by_one_reader(shard_set: ShardSet, tmp_path: Path):
    """Another that comes meanwhile reads the shards, without a second file."""
    cells = DecodedCache(folder=tmp_path, limit_bytes=2 * CELL_BYTES)
    with ExitStack() as stack:
        first = cells.open_pixels(shard_set, 32)
        first.open(stack)
        first.fill(np.arange(20), out := np.empty((20, 32, 32, 3), np.uint8))

        np.testing.assert_array_equal(out, images(shard_set, cells.open_pixels))
        assert 1 == len(kept(cells))
        first.require_unchanged()

    assert isinstance(cells.open_pixels(shard_set, 32), CachedPixels)
    np.testing.assert_array_equal(out, images(shard_set, cells.open_pixels))
    assert 1 == len(kept(cells))


def test_a_file_that_another_process_removes_meanwhile_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Two runs that share a folder make room at once."""
    cells = DecodedCache(folder=tmp_path, limit_bytes=1)
    cells.own_folder.mkdir()
    victim = cells.own_folder / f"{0:064x}-32.pixels"
    victim.touch()
    iterdir = Path.iterdir

    def listed(folder: Path) -> list[Path]:
        found = list(iterdir(folder))
        victim.unlink()
        return found

    monkeypatch.setattr(Path, "iterdir", listed)
    cells.files.write("1" * 64, b"1")


def kept(cells: DecodedCache) -> list[Path]:
    """Return the files of decoded pixels, and what else lies beside them."""
    return [path for path in cells.own_folder.iterdir() if path.name not in {"lock", "CACHEDIR.TAG"}]


def test_damaged_pixels_are_never_read(shard_set: ShardSet, tmp_path: Path):
    """Of 40 files with a flipped bit none changes a pixel or stops the stream; it goes, and the next pass makes it."""
    cells = DecodedCache(folder=tmp_path, limit_bytes=CELL_BYTES)
    expected, rng = images(shard_set), random.Random(1)
    for position in (0, CELL_BYTES - 1, CELL_BYTES - 70, *(rng.randrange(CELL_BYTES) for _ in range(37))):
        images(shard_set, cells.open_pixels)
        (path,) = kept(cells)
        good = path.read_bytes()
        flip(path, position, bit=position % 8)

        np.testing.assert_array_equal(expected, images(shard_set, cells.open_pixels))
        assert all(good == path.read_bytes() for path in kept(cells))


def test_blocks_and_files_that_were_exchanged_are_not_read(shard_set: ShardSet, other_set: ShardSet, tmp_path: Path):
    """Two samples of one file, or the files of two cells: everything is where its name says, or is read anew."""
    cells = DecodedCache(folder=tmp_path, limit_bytes=2 * CELL_BYTES)
    sets = (shard_set, other_set)
    expected = [images(each) for each in sets]
    assert (expected[0] != expected[1]).any()
    for each in sets:
        images(each, cells.open_pixels)
    one, other = kept(cells)
    one_bytes, other_bytes = one.read_bytes(), other.read_bytes()
    one.write_bytes(other_bytes)
    other.write_bytes(one_bytes)
    for each, pixels in zip(sets, expected, strict=True):
        np.testing.assert_array_equal(pixels, images(each, cells.open_pixels))

    one, size = kept(cells)[0], 32 * 32 * 3
    data = one.read_bytes()
    one.write_bytes(data[size : 2 * size] + data[:size] + data[2 * size :])

    for each, pixels in zip(sets, expected, strict=True):
        np.testing.assert_array_equal(pixels, images(each, cells.open_pixels))


@pytest.fixture
def other_set(write, tmp_path: Path) -> ShardSet:
    """The same images in another order."""
    write(tmp_path / "other", LIMITS.model_copy(update={"seed": 8}))
    return publish_shard_set(tmp_path / "other", CLASS_MAP, QUIET).shard_set


def test_pixels_of_another_decoder_are_not_read(shard_set: ShardSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Another version of a library may decode to other pixels."""
    cells = DecodedCache(folder=tmp_path, limit_bytes=CELL_BYTES)
    images(shard_set, cells.open_pixels)
    assert isinstance(cells.open_pixels(shard_set, 32), CachedPixels)

    monkeypatch.setattr("tta_pipeline.loading.decoded_cache._decoder_versions", lambda: ("simplejpeg 0",))

    assert not isinstance(cells.open_pixels(shard_set, 32), CachedPixels)


def test_a_full_disk_stops_nothing(shard_set: ShardSet, tmp_path: Path):
    """What could not be written is not kept, and the stream goes on."""
    cells = DecodedCache(folder=tmp_path, limit_bytes=CELL_BYTES)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (CELL_BYTES // 2, hard))
    try:
        found = images(shard_set, cells.open_pixels)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)

    np.testing.assert_array_equal(images(shard_set), found)
    assert not kept(cells)


def test_files_of_others_stay(shard_set: ShardSet, tmp_path: Path):
    """Neither where cells are kept nor above it does anything go but what is called as ours is."""
    cells = DecodedCache(folder=tmp_path, limit_bytes=CELL_BYTES)
    images(shard_set, cells.open_pixels)
    kept(cells)[0].rename(cells.own_folder / f"{0:064x}-32.pixels")
    others = [folder / "holiday.pixels" for folder in (tmp_path, cells.own_folder)]
    others.append(tmp_path / f"{0:064x}-32.pixels")
    for path in others:
        path.write_bytes(bytes(CELL_BYTES))

    images(shard_set, cells.open_pixels)

    assert all(path.exists() for path in others)
    assert not (cells.own_folder / f"{0:064x}-32.pixels").exists()


def test_files_of_manifests_that_are_gone_are_found(shard_set: ShardSet, other_set: ShardSet, tmp_path: Path):
    """Pixels and features; those of present manifests stay, and so does what is called otherwise."""
    cells = DecodedCache(folder=tmp_path, limit_bytes=4 * CELL_BYTES)
    for each in (shard_set, other_set):
        images(each, cells.open_pixels)
        (cells.own_folder / f"{1:064x}-{each.manifest.sha256}.features").touch()
    (cells.own_folder / f"{1:064x}.others").touch()

    gone = {path.name for path in cells.find_unreferenced([shard_set.manifest.sha256])}

    assert f"{1:064x}-{other_set.manifest.sha256}.features" in gone
    assert [".features", ".pixels"] == sorted(Path(name).suffix for name in gone)
    assert not [*cells.find_unreferenced([each.manifest.sha256 for each in (shard_set, other_set)])]
