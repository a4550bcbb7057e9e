"""The cut of unfinished work into pieces."""

from collections import Counter
from itertools import product
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tta_pipeline.benchmarks.load_files import load_benchmark
from tta_pipeline.domain.cells import CLEAN, WHOLE, StreamKey, grid_of_cells
from tta_pipeline.domain.locations import EMBEDDED_BENCHMARKS
from tta_pipeline.evaluation.work.pieces import Cut, Piece, Work, evaluation_pieces, join_pieces

BENCHMARK = load_benchmark(EMBEDDED_BENCHMARKS / "digits_c.yaml")
SEVERITIES = (5, 1, 3)
"""In the order of a benchmark file, which need not ascend."""
CELLS = grid_of_cells(("fog", "snow", "frost"), SEVERITIES)
BY_CELL, OF_STREAMS = ("source", "tent", "norm"), ("continual", "mixed")
KEYS = [
    *product(BY_CELL, (*CELLS, CLEAN)),
    *(("continual", StreamKey(severity=severity)) for severity in SEVERITIES),
    ("mixed", WHOLE),
]


def work_at(experiment, key, expected_s=1.0):
    """Return the unfinished streams of *experiment* at *key*."""
    is_cell = not isinstance(key, StreamKey)
    return Work(
        experiment=experiment,
        key=key.key,
        asset=f"{'clean/' if key == CLEAN else ''}evaluation/{experiment}",
        corruption=key.corruption if is_cell else "",
        is_partition=key not in (CLEAN, WHOLE),
        cells=(key,) if is_cell else CELLS,
        expected_s=expected_s,
    )


WORK = st.lists(
    st.tuples(st.sampled_from(KEYS), st.floats(0.01, 100)), min_size=1, max_size=60, unique_by=lambda pair: pair[0]
).map(lambda found: [work_at(*key, expected_s) for key, expected_s in found])


def cut(work, *, by, num_devices=2):
    """Return *work* as pieces."""
    return evaluation_pieces(work, by=by, num_devices=num_devices, severities=SEVERITIES, is_timed=True)


def range_of(piece):
    """Return the places that Dagster's run of *piece* covers: all from the first key to the last."""
    if not piece.keys:
        return {(asset, "") for asset in piece.assets}
    known = [cell.key for cell in CELLS] if "|" in piece.keys[0] else [str(severity) for severity in SEVERITIES]
    keys = known[known.index(piece.keys[0]) : known.index(piece.keys[-1]) + 1]
    return set(product(piece.assets, keys))


@given(work=WORK, by=st.sampled_from(get_args(Cut)), num_devices=st.integers(1, 9))
def test_all_work_is_in_exactly_one_piece(work, by, num_devices):
    """Also what a range covers beyond the keys of its piece is in no other piece."""
    pieces = cut(work, by=by, num_devices=num_devices)
    counts = Counter(place for piece in pieces for place in range_of(piece))

    assert {each.place for each in work} <= counts.keys()
    assert set(counts.values()) == {1}


@given(work=WORK, by=st.sampled_from(get_args(Cut)), num_devices=st.integers(1, 9))
def test_no_piece_is_longer_than_it_must_be(work, by, num_devices):
    """A piece is at most as long as a quarter of a device's share, or as what cannot be cut."""
    share_s = sum(each.expected_s for each in work) / (4 * num_devices)
    units = Counter()
    for each in work:
        units[each.experiment, each.corruption if by == "corruption" and each.is_partition else each.key] += (
            each.expected_s
        )

    lengths = [piece.expected_s for piece in cut(work, by=by, num_devices=num_devices)]

    assert max(lengths) <= max(share_s, *units.values()) * (1 + 1e-9)
    assert lengths == sorted(lengths, reverse=True)


@given(work=WORK, by=st.sampled_from(get_args(Cut)))
def test_a_range_stays_within_what_the_user_asked_for(work, by):
    """A corruption, a cell, or one stream of one experiment; a stream over several cells is never with another."""
    for piece in cut(work, by=by):
        if "|" not in (piece.keys or ("",))[0]:
            assert len(piece.keys) <= 1
            assert all(asset.startswith("clean/") for asset in piece.assets) or len(piece.assets) == 1
        assert len({key.partition("|")[0] for key in piece.keys}) <= 1
        assert by == "corruption" or len(piece.keys) <= 1
        assert by != "stream" or len(piece.assets) == 1


@given(cells=st.sets(st.sampled_from(sorted(BENCHMARK.cells))), by=st.sampled_from(get_args(Cut)))
def test_one_device_does_ranges_in_place_of_pieces(cells, by):
    """Joined pieces cover the same places in as few runs as pieces by corruption at most; streams stay as they are."""
    order = [cell.key for cell in BENCHMARK.cells]
    work = [*(work_at("tent", cell, 2.0) for cell in cells), work_at("continual", StreamKey(severity=5))]
    pieces = evaluation_pieces(work, by=by, num_devices=1, severities=BENCHMARK.severities, is_timed=True)

    joined = join_pieces(BENCHMARK, pieces)

    assert {each.place for each in work} == {place for piece in joined for place in piece.places}
    assert sum(piece.expected_s for piece in pieces) == pytest.approx(sum(piece.expected_s for piece in joined))
    for piece in joined:
        covered = cell_range(piece.keys[0], piece.keys[-1]) if "|" in piece.keys[0] else piece.keys
        assert sorted(piece.keys, key=order.index if "|" in piece.keys[0] else None) == list(covered)
    if len(cells) == len(BENCHMARK.cells):
        assert 2 == len(joined)


def cell_range(first, last):
    """Return the keys of Dagster's range from *first* to *last*: a rectangle."""
    corruptions = [str(key).partition("|")[0] for key in (first, last)]
    severities = [int(key.partition("|")[2]) for key in (first, last)]
    order = BENCHMARK.corruptions
    names = order[order.index(corruptions[0]) : order.index(corruptions[1]) + 1]
    return [f"{name}|{severity}" for name in names for severity in range(severities[0], severities[1] + 1)]


def test_a_piece_has_a_name_for_people():
    """Where it is, and of which experiments."""
    piece = Piece(stage="evaluations", assets=("evaluation/tent", "evaluation/norm"), keys=("fog|1", "fog|3", "fog|5"))

    assert "fog|1...fog|5: tent, norm" == piece.name
    assert "clean/shard_manifest" == Piece(stage="sets", assets=("clean/shard_manifest",)).name
