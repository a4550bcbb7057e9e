"""One experiment over the small benchmark, in this process."""

from collections import deque
from collections.abc import Callable
from typing import Any

import yaml

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.domain.cells import Cell, PartitionKey, StreamKey
from tta_pipeline.domain.locations import Locations
from tta_pipeline.domain.streams import StreamPlan
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.evaluation.machine import Machine
from tta_pipeline.evaluation.prefetch import Step
from tta_pipeline.evaluation.runner import ExperimentRunner
from tta_pipeline.evaluation.stream_states import NUM_KEPT
from tta_pipeline_tests.conftest import SMALL

NOISE, CONTRAST = "gaussian_noise", "contrast"
CONTRAST_5 = Cell(corruption=CONTRAST, severity=5)
SEVERITY_5 = StreamKey(severity=5)
TENT = {"model": "cnn", "method": "tent", "preset": "cifar", "batch_size": 32}


def results_of(data: Locations, **experiment: object) -> ExperimentResults:
    """Return one experiment over the small benchmark."""
    content = {**yaml.safe_load(SMALL), "name": "small", "experiments": {"own": {**TENT, **experiment}}}
    return ExperimentResults(benchmark=Benchmark.model_validate(content), experiment_name="own", locations=data)


def runner_of(
    own: ExperimentResults,
    *,
    tell: Callable[[str], None] = lambda _: None,
    num_threads: int = 2,
    anew: bool = False,
    keeps_predictions: bool = True,
) -> ExperimentRunner:
    """Return a runner, to be entered, that evaluates *own* on the CPU."""
    machine = Machine(device="cpu", decode_threads=num_threads)
    return ExperimentRunner(
        own, machine=machine, run_id="test", tell=tell, anew=anew, keeps_predictions=keeps_predictions
    )


def evaluated(own: ExperimentResults, key: PartitionKey, *, num_threads: int = 2) -> list[dict[str, Any]]:
    """Evaluate the streams at *key*, check that the rows are recorded, and return the facts of all rows."""
    with runner_of(own, num_threads=num_threads) as runner:
        runner.plan(key)
        runner.evaluate(key)
        assert own.rows(key) == runner.rows(key)
        assert not runner.plan(key)
    return [dict(row.facts()) for row in own.rows(key)]


def break_off(runner: ExperimentRunner, plan: StreamPlan, num_segments: int) -> None:
    """Evaluate the first segments of *plan*, as if the process were killed behind them."""
    streams, fingerprints = runner._streams, runner._inputs.fingerprints(plan)
    streams._restore_state(plan)
    recent = deque[str](maxlen=NUM_KEPT)
    for segment in plan.segments[:num_segments]:
        streams._evaluate(Step(plan, segment), [], fingerprints, recent)
