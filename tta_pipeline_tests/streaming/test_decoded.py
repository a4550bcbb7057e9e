"""A cell that was decoded once is read as pixels the next time, the same ones, within a limit."""

from pathlib import Path

import numpy as np
import pytest

from tta_pipeline.shards.manifest import ShardSet
from tta_pipeline.streaming.decoded import DecodedCells, KeptPixels
from tta_pipeline.streaming.order import as_stored, shuffled
from tta_pipeline.streaming.pixels import StoredPixels
from tta_pipeline.streaming.reader import Stream

CELL_BYTES = 20 * 32 * 32 * 3


def images(shard_set: ShardSet, open_pixels=StoredPixels, order=as_stored) -> np.ndarray:
    """Return all images of a stream."""
    stream = Stream(
        shard_set=shard_set, order=order(shard_set.index), batch_size=6, image_size=32, open_pixels=open_pixels
    )
    return np.concatenate([batch.images.numpy().copy() for batch in stream])


def test_kept_pixels_are_the_decoded_ones(shard_set: ShardSet, tmp_path: Path):
    """In stored order and in any other, also when the shards are gone."""
    cells = DecodedCells(folder=tmp_path / "decoded", limit_bytes=CELL_BYTES)
    mixed = lambda index: shuffled(index, seed=1)  # noqa: E731 - an order by itself
    expected, expected_mixed = images(shard_set), images(shard_set, order=mixed)

    np.testing.assert_array_equal(expected, images(shard_set, cells.open_pixels))
    for shard in shard_set.manifest.shards:
        (shard_set.folder / shard.name).unlink()

    np.testing.assert_array_equal(expected, images(shard_set, cells.open_pixels))
    np.testing.assert_array_equal(expected_mixed, images(shard_set, cells.open_pixels, mixed))


def test_a_stream_that_is_left_keeps_nothing(shard_set: ShardSet, tmp_path: Path):
    """Half a cell never has the name of a whole one, and no file is left behind."""
    cells = DecodedCells(folder=tmp_path / "decoded", limit_bytes=CELL_BYTES)
    stream = Stream(
        shard_set=shard_set, order=as_stored(shard_set.index), batch_size=6, image_size=32,
        open_pixels=cells.open_pixels,
    )  # fmt: skip
    batches = iter(stream)
    next(batches)
    batches.close()

    assert not list((tmp_path / "decoded").iterdir())


def test_the_limit_holds(shard_set: ShardSet, tmp_path: Path):
    """The file that was used longest ago makes room; a cell that is too large is read from its shards."""
    folder = tmp_path / "decoded"
    folder.mkdir()
    (folder / "old-32.pixels").write_bytes(bytes(1000))
    assert isinstance(DecodedCells(folder=folder, limit_bytes=CELL_BYTES - 1).open_pixels(shard_set, 32), StoredPixels)
    assert (folder / "old-32.pixels").exists()

    images(shard_set, DecodedCells(folder=folder, limit_bytes=CELL_BYTES).open_pixels)

    assert [f"{shard_set.manifest.sha256}-32.pixels"] == [path.name for path in folder.iterdir()]


@pytest.mark.parametrize("size_bytes", [0, CELL_BYTES - 1])
def test_a_cut_file_is_not_read(shard_set: ShardSet, tmp_path: Path, size_bytes: int):
    """It is made again."""
    cells = DecodedCells(folder=tmp_path, limit_bytes=CELL_BYTES)
    (tmp_path / f"{shard_set.manifest.sha256}-32.pixels").write_bytes(bytes(size_bytes))

    assert not isinstance(cells.open_pixels(shard_set, 32), KeptPixels)
