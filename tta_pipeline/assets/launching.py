"""Evaluation by processes that a launcher such as `torchrun` or `srun` starts, over Dagster Pipes.

They write result records, which are the truth; Dagster receives their log, and passes cancellation on to them.
"""

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import dagster as dg

if TYPE_CHECKING:
    from tta_pipeline.evaluation.experiment import ExperimentResults
    from tta_pipeline.evaluation.machine import Machine
    from tta_pipeline.partitions import PartitionKey


def launch(
    context: dg.AssetExecutionContext,
    prefix: str,
    results: "ExperimentResults",
    keys: Sequence["PartitionKey"],
    machine: "Machine",
    *,
    config: dict[str, bool],
) -> None:
    """Evaluate the streams at *keys* in the processes that *prefix* starts, and return when all are recorded."""
    dg.PipesSubprocessClient().run(
        command=[*shlex.split(prefix), "-m", "tta_pipeline.assets.launched"],
        context=context,
        extras={
            "benchmark": results.benchmark.model_dump(mode="json"),
            "experiment": results.experiment_name,
            "data_root": str(results.locations.root),
            "keys": [key.key for key in keys],
            "config": config,
            "machine": asdict(machine),
        },
    )
