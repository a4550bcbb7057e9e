"""Two runs on the same cells at once: each cell is evaluated by one of them, and the other says what it does."""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import pytest

from tta_pipeline.domain.cells import Cell, PartitionKey
from tta_pipeline.domain.locations import Locations
from tta_pipeline.evaluation import run_stream
from tta_pipeline.evaluation.machine import Machine
from tta_pipeline.evaluation.run_experiment import Report, run_experiment
from tta_pipeline_tests.conftest import run_python, start_python
from tta_pipeline_tests.evaluation.small import CONTRAST_5, NOISE, counted, results_of, run_at, unfinished
from tta_pipeline_tests.result_paths import result_paths

NOISE_5 = Cell(corruption=NOISE, severity=5)
MACHINE = Machine(device="cpu", decode_threads=1)
RUN = """
import json, sys
from pathlib import Path
from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.domain.locations import Locations
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.evaluation.machine import Machine
from tta_pipeline.evaluation.run_experiment import run_experiment

own = ExperimentResults(
    benchmark=Benchmark.model_validate(json.loads(sys.argv[2])), experiment_name="own",
    locations=Locations(root=Path(sys.argv[1])),
)
found = run_experiment(
    own, own.keys, machine=Machine(device="cpu", decode_threads=1), run_id=sys.argv[3], tell=print
)
assert all(found[key] for key in own.keys)
"""


class Order:
    """Notes the keys in the order in which they are evaluated, and what is done before each."""

    def __init__(self, before: Any = lambda _: None) -> None:
        self.keys: list[PartitionKey] = []
        self.evaluated: list[bool] = []
        self._before = before

    def planning(self, key: PartitionKey) -> AbstractContextManager[object]:  # noqa: ARG002 - as `Listener` has it
        """Do nothing."""
        return nullcontext()

    @contextmanager
    def evaluating(self, key: PartitionKey) -> Iterator[Report]:
        """Note *key*."""
        self.keys.append(key)
        self._before(key)
        yield lambda rows, _: self.evaluated.append(bool(rows))


def test_a_run_takes_other_cells_first_and_waits_for_what_another_evaluates(
    data: Locations, monkeypatch: pytest.MonkeyPatch
):
    """It says so, and takes the results of the other run; nothing is evaluated twice."""
    own = results_of(data, subset={"first": 64})
    begun, may_end, evaluate = threading.Event(), threading.Event(), run_stream._run_segment

    def slowly(*args: Any, **kwargs: Any) -> Any:
        if threading.current_thread() is other:
            begun.set()
            assert may_end.wait(60)
        return evaluate(*args, **kwargs)

    monkeypatch.setattr(run_stream, "_run_segment", slowly)
    other = threading.Thread(target=run_at, args=(own, NOISE_5))
    other.start()
    assert begun.wait(60)
    order, lines = Order(), list[str]()

    def tell(line: str) -> None:
        lines.append(line)
        if "waits for it" in line:
            may_end.set()

    found = run_experiment(
        replace(own), [NOISE_5, CONTRAST_5], machine=MACHINE, run_id="second", tell=tell, listener=order
    )
    other.join()

    assert [CONTRAST_5, NOISE_5] == order.keys
    assert "stream gaussian_noise|5 is being evaluated by another run; this one waits for it" in lines
    assert 2 == len(result_paths(data.root))
    assert all(found[key] == counted(own, key) for key in order.keys)


def test_what_another_run_finished_meanwhile_is_not_evaluated_again(data: Locations):
    """Though it was unfinished when the run began; the run says so."""
    own = results_of(data, subset={"first": 64})
    lines = list[str]()

    def other_run(key: PartitionKey) -> None:
        if key == CONTRAST_5:
            run_at(own, NOISE_5)

    order = Order(other_run)
    found = run_experiment(
        replace(own), [CONTRAST_5, NOISE_5], machine=MACHINE, run_id="first", tell=lines.append, listener=order
    )

    assert "stream gaussian_noise|5 was evaluated by another run meanwhile" in lines
    assert 2 == len(result_paths(data.root))
    assert found[NOISE_5] == counted(own, NOISE_5)


def test_two_processes_on_the_same_cells_evaluate_each_once(data: Locations):
    """Whichever of them is faster; both end with all results."""
    own = results_of(data, subset={"first": 64})
    arguments = [str(data.root), own.benchmark.model_dump_json()]
    with start_python(RUN, *arguments, "one") as one:
        other = run_python(RUN, *arguments, "other")
        assert 0 == one.wait(120)

    assert 0 == other.returncode, other.stderr[-3000:]
    assert len(own.keys) == len(result_paths(data.root))
    assert not any(unfinished(own, key) for key in own.keys)
