"""A list of samples is read in time that grows with it, also where it is wrong."""

import time
from pathlib import Path

import pytest

from tta_pipeline.errors import StreamError
from tta_pipeline.loading.subset import read_listed_positions
from tta_pipeline.shards.shard_set import ShardSet


def test_a_list_with_every_name_twice_is_refused_at_once(shard_set: ShardSet, tmp_path: Path):
    """50,000 names that stand twice are found in a second, as 50,000 that stand once are."""
    names = [f"n01/image_{number:06d}.JPEG" for number in range(50_000)]
    (tmp_path / "list.txt").write_text("\n".join(names + names))
    started = time.perf_counter()

    with pytest.raises(StreamError, match=r"list\.txt: found n01/image_000000\.JPEG, .*expected names, each once"):
        read_listed_positions(shard_set, tmp_path / "list.txt")

    assert time.perf_counter() - started < 5
