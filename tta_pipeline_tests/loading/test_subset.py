"""Subsets: a list is read in time that grows with it, also where it is wrong; a long tail has the sizes it should."""

import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tta_pipeline.errors import StreamError
from tta_pipeline.loading.subset import draw_long_tail, read_listed_positions
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline_tests.loading.test_order import index_of


def test_a_list_with_every_name_twice_is_refused_at_once(shard_set: ShardSet, tmp_path: Path):
    """50,000 names that stand twice are found in a second, as 50,000 that stand once are."""
    names = [f"n01/image_{number:06d}.JPEG" for number in range(50_000)]
    (tmp_path / "list.txt").write_text("\n".join(names + names))
    started = time.perf_counter()

    with pytest.raises(StreamError, match=r"list\.txt\D*\bn01/image_000000\.JPEG, n01/image_000001\.JPEG\b"):
        read_listed_positions(shard_set, tmp_path / "list.txt")

    assert time.perf_counter() - started < 5


def test_a_list_may_have_any_order_and_empty_lines(shard_set: ShardSet, tmp_path: Path):
    """Its samples come as they are stored."""
    names = shard_set.index.source_names
    (tmp_path / "list.txt").write_text(f"\n{names[7]} \r\n\n{names[3]}\n \n")

    assert [3, 7] == read_listed_positions(shard_set, tmp_path / "list.txt").tolist()


@given(st.integers(1, 6), st.integers(1, 30), st.floats(1, 1e4), st.integers(0, 2**63 - 1))
def test_a_long_tail_keeps_less_of_each_further_class(num_classes: int, size: int, imbalance_factor: float, seed: int):
    """All of the first class and 1 / factor of the last, by equal steps of the logarithm; none of them twice."""
    index = index_of([label for label in range(num_classes) for _ in range(size)])
    positions = draw_long_tail(index, imbalance_factor, seed=seed)

    assert sorted(set(positions.tolist())) == positions.tolist()
    assert positions.tolist() == draw_long_tail(index, imbalance_factor, seed=seed).tolist()
    kept = sorted(np.bincount(index.labels[positions]).tolist(), reverse=True)
    shares = [imbalance_factor ** (-place / max(1, num_classes - 1)) for place in range(num_classes)]
    assert [max(1, round(share * size)) for share in shares] == kept


def test_a_long_tail_has_the_numbers_of_long_tailed_cifar():
    """Of Cui et al. 2019 with factor 100, where each class has 500: by a factor of 0.6 down to 5."""
    index = index_of([label for label in range(10) for _ in range(500)])
    kept = np.bincount(index.labels[draw_long_tail(index, 100, seed=0)])

    assert [500, 300, 180, 108, 65, 39, 23, 14, 8, 5] == sorted(kept.tolist(), reverse=True)
