"""One experiment over the small benchmark, in this process."""

from typing import Any

import yaml

from tta_pipeline.benchmarks.spec import Benchmark
from tta_pipeline.evaluation.machine import Machine
from tta_pipeline.evaluation.sweep import Subject, Sweep
from tta_pipeline.locations import Locations
from tta_pipeline_tests.conftest import SMALL

NOISE, CONTRAST = "gaussian_noise", "contrast"
TENT = {"model": "cnn", "method": "tent", "preset": "cifar", "batch_size": 32}


def subject(data: Locations, **experiment: object) -> Subject:
    """Return one experiment over the small benchmark."""
    content = {**yaml.safe_load(SMALL), "name": "small", "experiments": {"own": {**TENT, **experiment}}}
    return Subject(benchmark=Benchmark.model_validate(content), experiment="own", locations=data)


def evaluated(own: Subject, key: str, *, num_threads: int = 2) -> list[dict[str, Any]]:
    """Evaluate the streams at *key* and return the facts of all rows."""
    machine = Machine(device="cpu", num_threads=num_threads)
    with Sweep(own, machine=machine, run_id="test", tell=lambda _: None) as sweep:
        for plan in sweep.unfinished(key):
            sweep.evaluate(plan)
        assert not sweep.unfinished(key)
    return [row.facts() for row in own.rows(key)]
