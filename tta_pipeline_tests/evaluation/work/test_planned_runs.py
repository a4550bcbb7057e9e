"""The cut of unfinished work into runs."""

from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tta_pipeline.benchmarks.load_files import load_benchmark
from tta_pipeline.domain.cells import CLEAN, WHOLE, StreamKey
from tta_pipeline.domain.locations import EMBEDDED_BENCHMARKS
from tta_pipeline.evaluation.work.planned_runs import PlannedRun, Work, evaluation_runs

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


def range_of(run):
    """Return the places that *run* covers in Dagster: all from the first key to the last."""
    if not run.keys:
        return {(asset, "") for asset in run.assets}
    keys = cell_range(run.keys[0], run.keys[-1]) if "|" in run.keys[0] else run.keys
    return set(product(run.assets, keys))


@given(work=WORK)
def test_all_work_is_in_exactly_one_run(work):
    """And nothing that was not asked for is within a range."""
    runs = evaluation_runs(BENCHMARK, work, is_timed=True)
    counts = Counter(place for run in runs for place in range_of(run))

    assert {(each.asset, each.key if each.is_partition else "") for each in work} == counts.keys()
    assert set(counts.values()) == {1}


@given(work=WORK)
def test_a_stream_over_several_cells_gets_a_separate_run(work):
    """The expected times of all runs are those of all work."""
    runs = list(evaluation_runs(BENCHMARK, work, is_timed=True))
    streams = [each for each in work if not each.corruption]

    assert len(streams) == sum(run.assets[0].endswith(OF_STREAMS) for run in runs)
    assert sum(each.expected_s for each in work) == pytest.approx(sum(run.expected_s for run in runs))


def test_cells_with_the_same_experiments_are_one_run():
    """A run of Dagster costs a second."""
    (run,) = evaluation_runs(BENCHMARK, [work_at(*key) for key in product(BY_CELL, BENCHMARK.cells)], is_timed=False)

    assert (len(BY_CELL), len(BENCHMARK.cells), None) == (len(run.assets), len(run.keys), run.expected_s)


def cell_range(first, last):
    """Return the keys of Dagster's range from *first* to *last*: a rectangle."""
    corruptions = [str(key).partition("|")[0] for key in (first, last)]
    severities = [int(key.partition("|")[2]) for key in (first, last)]
    order = BENCHMARK.corruptions
    names = order[order.index(corruptions[0]) : order.index(corruptions[1]) + 1]
    return [f"{name}|{severity}" for name in names for severity in range(severities[0], severities[1] + 1)]


def test_a_run_has_a_name_for_people():
    """Where it is, and of which experiments."""
    run = PlannedRun(
        stage="evaluations", assets=("evaluation/tent", "evaluation/norm"), keys=("fog|1", "fog|3", "fog|5")
    )

    assert "fog|1...fog|5: tent, norm" == run.name
    assert "clean/shard_manifest" == PlannedRun(stage="sets", assets=("clean/shard_manifest",)).name
