"""Shards in a folder are copied to local disk while they are read, within a limit, whoever dies when."""

import hashlib
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tta_pipeline.data.remote_files import FileFacts
from tta_pipeline.errors import StreamError
from tta_pipeline.loading.copied_shards import ShardCache
from tta_pipeline.loading.copying import ShardOrigin
from tta_pipeline.loading.reader import Stream
from tta_pipeline.loading.stored_pixels import StoredPixels
from tta_pipeline.loading.stream_order import shuffled_order, stored_order
from tta_pipeline.shards.build_manifest import publish_shard_set
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline_tests.conftest import start_python
from tta_pipeline_tests.shards.cell import CLASS_MAP, LIMITS, QUIET, flip_sample

READER = """
import sys
from pathlib import Path
from tta_pipeline.loading.copied_shards import ShardCache
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline_tests.loading.test_staging import images
cache = ShardCache(root=Path(sys.argv[1]), limit_bytes=int(sys.argv[2]))
for folder in sys.argv[3:]:
    shard_set = ShardSet.open(Path(folder))
    assert (images(shard_set) == images(shard_set, cache)).all()
"""


def images(shard_set: ShardSet, cache: ShardCache | None = None, *, seed: int | None = None) -> np.ndarray:
    """Return all images of a shard set, in stored order or another, by way of a cache or from where they are."""
    index = shard_set.index
    stream = Stream(
        shard_set=shard_set,
        order=stored_order(index) if seed is None else shuffled_order(index, seed=seed),
        batch_size=6,
        image_size=32,
        open_pixels=lambda found, size: StoredPixels(found, size, cache=cache or ShardCache()),
    )
    return np.concatenate([batch.images.numpy().copy() for batch in stream])


def copies(cache: ShardCache) -> set[str]:
    """Return the hashes of the shards that have whole copies."""
    return {path.stem for path in cache.folder.glob("*.tar") if not path.name.startswith("unfinished")}


def hashes(*sets: ShardSet) -> set[str]:
    """Return the hashes of the shards of *sets*."""
    return {shard.sha256 for shard_set in sets for shard in shard_set.manifest.shards}


@pytest.fixture
def sets(write: Callable[..., object], tmp_path: Path) -> list[ShardSet]:
    """Three shard sets of the same images in other orders."""
    found = []
    for seed in range(3):
        write(tmp_path / f"set{seed}", LIMITS.model_copy(update={"seed": seed}))
        found.append(publish_shard_set(tmp_path / f"set{seed}", CLASS_MAP, QUIET).shard_set)
    return found


@pytest.fixture
def cache(tmp_path: Path, sets: list[ShardSet]) -> ShardCache:
    """A cache with room for two sets."""
    room = 2 * max(shard_set.manifest.shard_bytes for shard_set in sets)
    return ShardCache(root=tmp_path / "stage", limit_bytes=room)


@pytest.mark.parametrize("seed", [None, 3])
def test_a_set_is_copied_once(cache: ShardCache, sets: list[ShardSet], seed: int | None):
    """The second reader finds it, though the shards are gone from where they were."""
    expected = images(sets[0], seed=seed)
    np.testing.assert_array_equal(expected, images(sets[0], cache, seed=seed))
    assert hashes(sets[0]) == copies(cache)

    for shard in sets[0].manifest.shards:
        (sets[0].folder / shard.name).unlink()
    np.testing.assert_array_equal(expected, images(sets[0], cache, seed=seed))


def test_the_shards_that_were_used_longest_ago_make_room(cache: ShardCache, sets: list[ShardSet]):
    """The third set takes the place of the second, since the first was used again."""
    for number in (0, 1, 0, 2):
        images(sets[number], cache)

    assert hashes(sets[0], sets[2]) == copies(cache)


@pytest.mark.parametrize("seed", [None, 3])
def test_what_does_not_fit_is_read_where_it_is(cache: ShardCache, sets: list[ShardSet], seed: int | None):
    """A shard larger than the limit is, and, of an order that jumps, what has no room beside the shards in use."""
    sizes = [shard.shard_bytes for shard in sets[0].manifest.shards]
    for limit_bytes in (min(sizes) - 1, max(sizes)):
        small = replace(cache, limit_bytes=limit_bytes)
        np.testing.assert_array_equal(images(sets[0], seed=seed), images(sets[0], small, seed=seed))
        assert sum(path.stat().st_size for path in small.folder.glob("*.tar")) <= limit_bytes


def test_a_damaged_shard_is_named(cache: ShardCache, sets: list[ShardSet]):
    """It is not copied, and its path is in the error."""
    path = sets[0].folder / sets[0].manifest.shards[1].name
    flip_sample(sets[0], int(np.flatnonzero(sets[0].index.shards == 1)[0]))

    with pytest.raises(StreamError, match=rf"{path}\b.*\b[0-9a-f]{{16}}\b.*\b[0-9a-f]{{16}}\b"):
        images(sets[0], cache)
    assert sets[0].manifest.shards[1].sha256 not in copies(cache)


@pytest.mark.parametrize("damage", [lambda data: data[:100], lambda data: bytes(len(data))])
def test_a_damaged_copy_is_made_again(cache: ShardCache, sets: list[ShardSet], damage: Callable[[bytes], bytes]):
    """What was cut or changed on local disk is noticed."""
    images(sets[0], cache)
    path = cache.folder / f"{sets[0].manifest.shards[0].sha256}.tar"
    good = path.read_bytes()
    path.write_bytes(damage(good))

    np.testing.assert_array_equal(images(sets[0]), images(sets[0], cache))

    assert good == path.read_bytes()


def test_a_cache_that_cannot_be_written_is_named(cache: ShardCache, sets: list[ShardSet], tmp_path: Path):
    """A file where the folder should be, as an example."""
    (tmp_path / "file").touch()
    with pytest.raises(StreamError, match=rf"file/tta_pipeline-shards.*{sets[0].folder}.*\blocal_scratch_dir\b"):
        images(sets[0], replace(cache, root=tmp_path / "file"))


def test_files_of_others_stay(cache: ShardCache, sets: list[ShardSet]):
    """Neither in the cache nor above it does anything go but what is called as ours is, whatever else it looks like."""
    images(sets[0], cache)
    others = [folder / "unfinished-thesis" / "chapter.tex" for folder in (cache.root, cache.folder)]
    others += [cache.root / name / "a.tar" for name in (f"unfinished-1-{'0' * 64}", "1" * 64)]
    others += [cache.folder / ("f" * 64) / "a.tar"]
    for path in others:
        path.parent.mkdir()
        path.write_bytes(bytes(cache.limit_bytes))
    ours = cache.folder / f"unfinished-1-{'0' * 64}.tar"
    ours.touch()

    for shard_set in sets:
        images(shard_set, cache)

    assert all(path.exists() for path in others)
    assert not ours.exists()


def test_processes_share_a_tight_cache(cache: ShardCache, sets: list[ShardSet]):
    """Many processes where there is room for one set: each reads all of its sets, from copies or where they are."""
    limit_bytes = sets[0].manifest.shard_bytes + 1000
    folders = [str(shard_set.folder) for shard_set in sets]
    processes = [
        start_python(READER, cache.root, limit_bytes, *folders[n:], *folders[:n], stdout=subprocess.DEVNULL)
        for n in range(3)
    ]

    assert [0, 0, 0] == [process.wait() for process in processes]
    assert sum(path.stat().st_size for path in cache.folder.glob("*.tar")) <= limit_bytes


def test_other_bytes_than_the_manifest_names_are_not_copied(tmp_path: Path):
    """Of the right size and under the right name; nothing of them is left in the copy."""
    shard = tmp_path / "val-0.tar"
    shard.write_bytes(bytes(1000))
    expected = hashlib.sha256(b"\1" * 1000).hexdigest()

    with (
        (tmp_path / "copy").open("w+b", buffering=0) as copy,
        pytest.raises(StreamError, match=f"was damaged or replaced; expected {expected}"),
    ):
        ShardOrigin(location=str(shard), facts=FileFacts(size_bytes=1000, tag=""), sha256=expected).copy(copy)

    assert b"" == (tmp_path / "copy").read_bytes()
