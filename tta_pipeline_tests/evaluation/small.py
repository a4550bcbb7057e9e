"""One experiment over the small benchmark, in this process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
import yaml

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.domain.cells import Cell, PartitionKey, StreamKey
from tta_pipeline.domain.locations import Locations
from tta_pipeline.domain.streams import StreamPlan
from tta_pipeline.evaluation import run_stream
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.evaluation.inputs import Inputs, SharedCache
from tta_pipeline.evaluation.machine import Machine
from tta_pipeline.evaluation.run_experiment import Board, Rows, run_experiment
from tta_pipeline.results.result_files import StoredResult, store_result
from tta_pipeline_tests.conftest import SMALL
from tta_pipeline_tests.flat_facts import flat_row

NOISE, CONTRAST = "gaussian_noise", "contrast"
CONTRAST_5 = Cell(corruption=CONTRAST, severity=5)
SEVERITY_5 = StreamKey(severity=5)
TENT = {"model": "cnn", "method": "tent", "preset": "cifar", "batch_size": 32}
Tell = Callable[[str], None]


class KilledError(BaseException):
    """In place of a signal that nothing can catch."""


def results_of(data: Locations, **experiment: object) -> ExperimentResults:
    """Return one experiment over the small benchmark."""
    content = {**yaml.safe_load(SMALL), "name": "small", "experiments": {"own": {**TENT, **experiment}}}
    return ExperimentResults(benchmark=Benchmark.model_validate(content), experiment_name="own", locations=data)


def inputs_of(own: ExperimentResults) -> Inputs:
    """Return what decides the predictions of *own* on the CPU, read anew."""
    return Inputs(experiment=replace(own), machine=Machine(device="cpu", decode_threads=2), known=SharedCache())


def unfinished(
    own: ExperimentResults, key: PartitionKey, *, tell: Tell = lambda _: None, keeps_predictions: bool = True
) -> tuple[StreamPlan, ...]:
    """Return the streams at *key* that a run would evaluate; *tell* gets what it would say before."""
    return Board(inputs=inputs_of(own), keeps_predictions=keeps_predictions, tell=tell).find_unfinished(key)


def run_at(
    own: ExperimentResults,
    key: PartitionKey,
    *,
    tell: Tell = lambda _: None,
    num_threads: int = 2,
    checkpoint_every: int = 50_000,
    force: bool = False,
    keeps_predictions: bool = True,
) -> Rows:
    """Evaluate what is left of *own* at *key* on the CPU, as a process of its own would; return the evaluations."""
    found = run_experiment(
        replace(own),
        [key],
        machine=Machine(device="cpu", decode_threads=num_threads, checkpoint_every=checkpoint_every),
        run_id="test",
        tell=tell,
        force=force,
        keeps_predictions=keeps_predictions,
    )
    return found[key]


def counted(own: ExperimentResults, key: PartitionKey) -> Rows:
    """Return the evaluations of *own* at *key* that count by its present plan."""
    return replace(own).rows(key)


def evaluated(own: ExperimentResults, key: PartitionKey, *, num_threads: int = 2) -> list[dict[str, Any]]:
    """Evaluate the streams at *key*, check that their results count, and return the facts of all rows."""
    rows = run_at(own, key, num_threads=num_threads)
    assert rows == counted(own, key)
    assert not unfinished(own, key)
    return [flat_row(row) for row in rows]


@contextmanager
def killed_after(num_segments: int) -> Iterator[None]:
    """End whatever is evaluated in the block behind so many segments, as a kill would."""
    stored: list[StoredResult] = []

    def stores(*arguments: Any, **options: Any) -> StoredResult:
        if len(stored) == num_segments:
            raise KilledError
        stored.append(store_result(*arguments, **options))
        return stored[-1]

    with pytest.MonkeyPatch.context() as patch, suppress(KilledError):
        patch.setattr(run_stream, "store_result", stores)
        yield
