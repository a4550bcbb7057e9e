"""Streams of several segments: killed at each boundary, begun anew, and with a part of their results gone."""

import signal
from collections.abc import Sequence

import pytest

from tta_pipeline.domain.locations import Locations
from tta_pipeline.evaluation.explanation import explain
from tta_pipeline.evaluation.sample_predictions import SamplePredictions
from tta_pipeline.results.result_files import StoredResult, read_result
from tta_pipeline_tests.conftest import Project, run_python
from tta_pipeline_tests.evaluation.conftest import copy_small
from tta_pipeline_tests.evaluation.small import (
    CONTRAST_5,
    SEVERITY_5,
    counted,
    evaluated,
    killed_after,
    results_of,
    run_at,
    unfinished,
)
from tta_pipeline_tests.result_paths import result_paths

STREAM = {
    "protocol": {"shift": "continual", "recurring": 2}, "hyperparameters": {"lr": 0.1}, "subset": {"first": 32},
}  # fmt: skip
"""Four segments; the learning rate lets each state decide what comes after it."""
KILLED = """
import json, os, sys
from pathlib import Path
from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.domain.cells import StreamKey
from tta_pipeline.domain.locations import Locations
from tta_pipeline.evaluation import run_stream
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.evaluation.machine import Machine
from tta_pipeline.evaluation.run_experiment import run_experiment
from tta_pipeline.evaluation.stream_states import StreamStates
from tta_pipeline.results import result_files

owner, name, when = {
    "before its predictions": (run_stream, "_write_predictions", "before"),
    "between predictions and state": (StreamStates, "save", "before"),
    "between state and result": (result_files, "write_atomically", "before"),
    "behind its result": (StreamStates, "keep_only", "before"),
    "behind all of it": (StreamStates, "keep_only", "after"),
}[sys.argv[2]]
work, left = getattr(owner, name), [2]
def work_and_die(*args, **kwargs):
    left[0] -= 1
    if when == "before" and not left[0]:
        os.kill(os.getpid(), 9)
    found = work(*args, **kwargs)
    if when == "after" and not left[0]:
        os.kill(os.getpid(), 9)
    return found
setattr(owner, name, work_and_die)
own = ExperimentResults(
    benchmark=Benchmark.model_validate(json.loads(sys.argv[3])), experiment_name="own",
    locations=Locations(root=Path(sys.argv[1])),
)
run_experiment(own, [StreamKey(severity=5)], machine=Machine(device="cpu"), run_id="killed", tell=print)
"""


def stored(data: Locations) -> Sequence[StoredResult]:
    """Return all results, in the order of their times."""
    return sorted(map(read_result, result_paths(data.root)), key=lambda each: each.result.finished_at)


@pytest.fixture(scope="module")
def whole(sweep: Project, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The hashes of what the stream predicts where nothing interrupts it."""
    data = copy_small(sweep.locations.root, tmp_path_factory.mktemp("whole"))
    return [row["predictions_sha256"] for row in evaluated(results_of(data, **STREAM), SEVERITY_5)]


@pytest.mark.parametrize(
    ("where", "num_finished"),
    [
        ("before its predictions", 1),
        ("between predictions and state", 1),
        ("between state and result", 1),
        ("behind its result", 2),
        ("behind all of it", 2),
    ],
)
def test_a_stream_that_is_killed_at_a_boundary_goes_on_behind_its_last_result(
    data: Locations, whole: list[str], where: str, num_finished: int
):
    """In the second segment: what has a result is finished, and no prediction differs from those without a kill."""
    own = results_of(data, **STREAM)
    run = run_python(KILLED, str(data.root), where, own.benchmark.model_dump_json())
    assert -signal.SIGKILL == run.returncode, run.stderr[-2000:]
    assert num_finished == len(result_paths(data.root))
    assert unfinished(own, SEVERITY_5)
    lines = list[str]()

    rows = run_at(own, SEVERITY_5, tell=lines.append)

    assert whole == [row.predicted.predictions_sha256 for row in rows]
    assert any(f"continues at position {num_finished} of 4" in line for line in lines)
    assert 4 == len(result_paths(data.root))
    assert rows == counted(own, SEVERITY_5)
    assert not unfinished(own, SEVERITY_5)
    assert not list(data.states("small").rglob("*.*"))


@pytest.mark.parametrize(("lost", "position"), [(0, 0), (1, 1), (2, 2)])
def test_a_stream_goes_on_only_from_a_state_whose_results_are_all_there(
    data: Locations, whole: list[str], lost: int, position: int
):
    """A result that was lost is evaluated again, from the state before it if there is one, with all that follow."""
    own = results_of(data, **STREAM)
    with killed_after(3):
        run_at(own, SEVERITY_5)
    stored(data)[lost].path.unlink()
    lines = list[str]()

    rows = run_at(own, SEVERITY_5, tell=lines.append)

    assert whole == [row.predicted.predictions_sha256 for row in rows] == [
        row.predicted.predictions_sha256 for row in counted(own, SEVERITY_5)
    ]  # fmt: skip
    continued = [line for line in lines if "continues" in line]
    assert ([f"stream 5 continues at position {position} of 4"] if position == 2 else []) == continued  # two are kept
    chain = own.counted(own.plans(SEVERITY_5)[0])
    assert [None, *(each.sha256 for each in chain[:-1])] == [each.result.previous for each in chain]


def test_a_whole_stream_that_loses_a_result_is_a_whole_new_pass(data: Locations, whole: list[str]):
    """Its states are gone, so that nothing could begin in the middle; no mean takes parts of two passes."""
    own = results_of(data, **STREAM)
    run_at(own, SEVERITY_5)
    stored(data)[1].path.unlink()
    assert unfinished(own, SEVERITY_5)

    rows = run_at(own, SEVERITY_5)

    assert whole == [row.predicted.predictions_sha256 for row in rows]
    assert 3 + 4 == len(result_paths(data.root))
    counting = {each.sha256 for each in own.counted(own.plans(SEVERITY_5)[0])}
    assert counting == {each.sha256 for each in stored(data)[3:]}


def test_another_timing_is_a_whole_new_pass_and_changes_no_error(data: Locations):
    """The results of `force` name each other, and those of the first pass stay the ones that count."""
    own = results_of(data, **STREAM)
    run_at(own, SEVERITY_5)
    first = stored(data)

    forced = run_at(own, SEVERITY_5, force=True)

    second = stored(data)[4:]
    assert [None, *(each.sha256 for each in second[:-1])] == [each.result.previous for each in second]
    assert forced == tuple(row for each in second for row in each.result.evaluations)
    assert [each.sha256 for each in first] == [each.sha256 for each in own.counted(own.plans(SEVERITY_5)[0])]


def test_another_timing_that_was_killed_leaves_the_first_pass_finished(data: Locations):
    """What it has stored belongs to no whole stream, and no later run goes on with it unasked."""
    own = results_of(data, **STREAM)
    rows = run_at(own, SEVERITY_5)
    with killed_after(2):
        run_at(own, SEVERITY_5, force=True)

    assert 4 + 2 == len(result_paths(data.root))
    assert rows == run_at(own, SEVERITY_5) == counted(own, SEVERITY_5)
    assert 4 + 2 == len(result_paths(data.root))


def test_predictions_that_are_asked_for_later_are_evaluated_for(data: Locations):
    """A result without them is finished only while none are asked for; then what counts has those of the later one."""
    own = results_of(data, subset={"first": 64})
    run_at(own, CONTRAST_5, keeps_predictions=False)
    lines = list[str]()

    assert not unfinished(own, CONTRAST_5, keeps_predictions=False)
    assert unfinished(own, CONTRAST_5, tell=lines.append)
    assert any("has no predictions, and this run keeps them" in line for line in lines)
    run_at(own, CONTRAST_5)

    assert not unfinished(own, CONTRAST_5)
    (cell,) = own.counted_cells(CONTRAST_5)
    first, second = stored(data)
    assert (first.path, None) == (cell.path, first.result.evaluations[0].predicted.samples_sha256)
    assert cell.row.predicted.samples_sha256 == second.result.evaluations[0].predicted.samples_sha256
    assert 64 == len(SamplePredictions.of(cell).positions)


@pytest.mark.parametrize("damage", ["lose", "flip"])
def test_a_stream_whose_predictions_are_gone_or_damaged_is_unfinished(data: Locations, damage: str):
    """They are looked at before it is called finished; the file is said, and written again."""
    own = results_of(data, subset={"first": 64})
    run_at(own, CONTRAST_5)
    (path,) = data.results("small").rglob("*.parquet")
    content = path.read_bytes()
    path.unlink()
    if damage == "flip":
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    lines = list[str]()

    assert unfinished(own, CONTRAST_5, tell=lines.append)
    (line,) = lines
    assert str(path) in line
    run_at(own, CONTRAST_5)

    assert content == path.read_bytes()
    assert not unfinished(own, CONTRAST_5)


def test_why_goes_along_the_stream(data: Locations):
    """Each segment in its order; behind the first that is unfinished, nothing is compared."""
    own = results_of(data, **STREAM)
    run_at(own, SEVERITY_5)
    stored(data)[2].path.unlink()

    found = explain(own.benchmark, "own", "5", data, device="cpu")

    names = ["gaussian_noise|5", "contrast|5", "gaussian_noise|5", "contrast|5"]
    assert [f"own: stream 5, {name}" for name in names] == [each.name for each in found]
    assert [True, True, False, False] == [each.is_finished for each in found]
    assert "it has no result yet" == found[2].reason
    assert "it follows gaussian_noise|5, which is evaluated first" == found[3].reason
