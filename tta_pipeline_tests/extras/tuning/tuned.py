"""A small benchmark with held-out shifts, and choices made by hand."""

import hashlib
from collections.abc import Mapping
from typing import Any

import yaml

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.resolved_experiment import TUNINGS
from tta_pipeline.domain.locations import Locations
from tta_pipeline.results.result_files import Result, StoredResult, store_result, utc_now
from tta_pipeline.results.tuning_criteria import DEFAULT_CRITERION
from tta_pipeline.results.tuning_record import TuningRun
from tta_pipeline.results.tuning_trial import Trial
from tta_pipeline_tests.conftest import SMALL

TUNED = (
    SMALL.rstrip()
    + """
  tent_tuned: {model: cnn, method: tent, preset: cifar, batch_size: 32, tuned: tent, severities: [5]}
  tent_by_hand: {model: cnn, method: tent, preset: cifar, batch_size: 32, hyperparameters: {lr: 0.02}, severities: [5]}
tuning:
  tent: {grid: {lr: [0.001, 0.5]}, severities: [5], subset: {first: 64}}
"""
)
BY_ENTROPY = TUNED.replace("subset: {first: 64}}", "subset: {first: 64}, criterion: entropy}")
HELD_OUT = ("speckle_noise", "gaussian_blur", "spatter", "saturate")


def benchmark_of(text: str = TUNED, **changes: object) -> Benchmark:
    """Return the benchmark of *text* with *changes*."""
    return Benchmark.model_validate({**yaml.safe_load(text), "name": "small", **changes})


def trial(values: str, errors: Mapping[str, float]) -> Trial:
    """Return the trial of *values*, as JSON, with *errors* by cell."""
    return Trial(
        trial="0" * 16,
        hyperparameters=values,
        error=sum(errors.values()) / len(errors),
        errors=tuple(errors.values()),
        cells=tuple(errors),
        mean_entropy=None,
        view_agreement=None,
        neighbourhood_density=None,
        source_agreement=None,
        num_samples=200,
        num_diverged=0,
        wall_s=1.0,
    )


def choice(*trials: Trial, **changes: Any) -> TuningRun:
    """Return the tuning of *trials* of the small benchmark's experiment tent."""
    others: dict[str, Any] = {
        "benchmark": "small", "dataset": "imagenet_c", "experiment": "tent", "model": "cnn", "method": "tent",
        "protocol": "reset_each_shift", "subset": "all", "held_out": HELD_OUT,
        "reported": ("gaussian_noise", "contrast"), "grid": '{"lr": [0.001, 0.02]}', "num_combinations": 2,
        "budget": 20, "criterion": DEFAULT_CRITERION, "reported_trials": (),
    }  # fmt: skip
    return TuningRun.from_trials(trials, **{**others, **changes})


def chosen(
    locations: Locations, values: str = '{"lr": 0.02}', cell: str = "spatter|5", **changes: object
) -> StoredResult:
    """Store a choice of *values* on *cell*."""
    return stored_choice(locations, choice(trial(values, {cell: 0.25}), **changes))


def stored_choice(locations: Locations, run: TuningRun) -> StoredResult:
    """Store the choice *run*, as a search does."""
    now = utc_now()
    result = Result(
        kind="tuning",
        benchmark="small",
        key=TUNINGS,
        fingerprint=hashlib.sha256(repr(run).encode()).hexdigest(),
        run_id="by hand",
        started_at=now,
        finished_at=now,
        versions={},
        tuning=run,
    )
    return store_result(locations.results("small"), result)
