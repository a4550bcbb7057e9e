"""The cut of unfinished work into pieces."""

from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tta_pipeline.benchmarks.load_files import load_benchmark
from tta_pipeline.domain.cells import CLEAN, WHOLE, StreamKey
from tta_pipeline.domain.locations import EMBEDDED_BENCHMARKS
from tta_pipeline.evaluation.work.pieces import Piece, Work, evaluation_pieces

BENCHMARK = load_benchmark(EMBEDDED_BENCHMARKS / "digits_c.yaml")
SEVERITIES = (1, 3, 5)
CELLS = tuple(cell for cell in BENCHMARK.cells if cell.corruption in ("fog", "snow", "frost"))
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


def range_of(piece):
    """Return the places that Dagster's run of *piece* covers: all from the first key to the last."""
    if not piece.keys:
        return {(asset, "") for asset in piece.assets}
    keys = cell_range(piece.keys[0], piece.keys[-1]) if "|" in piece.keys[0] else piece.keys
    return set(product(piece.assets, keys))


@given(work=WORK)
def test_all_work_is_in_exactly_one_piece(work):
    """And nothing that was not asked for is within a range."""
    pieces = evaluation_pieces(BENCHMARK, work, is_timed=True)
    counts = Counter(place for piece in pieces for place in range_of(piece))

    assert {(each.asset, each.key if each.is_partition else "") for each in work} == counts.keys()
    assert set(counts.values()) == {1}


@given(work=WORK)
def test_a_stream_over_several_cells_is_a_piece_of_its_own(work):
    """The expected times of all pieces are those of all work."""
    pieces = list(evaluation_pieces(BENCHMARK, work, is_timed=True))
    streams = [each for each in work if not each.corruption]

    assert len(streams) == sum(piece.assets[0].endswith(OF_STREAMS) for piece in pieces)
    assert sum(each.expected_s for each in work) == pytest.approx(sum(piece.expected_s for piece in pieces))


def test_cells_with_the_same_experiments_are_one_piece():
    """Each piece is a run of Dagster, which costs a second."""
    (piece,) = evaluation_pieces(
        BENCHMARK, [work_at(*key) for key in product(BY_CELL, BENCHMARK.cells)], is_timed=False
    )

    assert (len(BY_CELL), len(BENCHMARK.cells), None) == (len(piece.assets), len(piece.keys), piece.expected_s)


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
