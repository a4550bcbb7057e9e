"""Run evaluations and trainings in processes started by a launcher such as `torchrun` or `srun`, over Dagster Pipes.

The processes write the results themselves; Dagster receives their log, and passes cancellation on to them.
"""

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import dagster as dg

from tta_pipeline.util.json_values import JsonObject

if TYPE_CHECKING:
    from tta_pipeline.evaluation.experiment_results import ExperimentResults
    from tta_pipeline.evaluation.machine import Machine
    from tta_pipeline.extras.training.source_training import SourceTraining
    from tta_pipeline.util.partitions import PartitionKey


def launch_evaluation(
    context: dg.AssetExecutionContext,
    prefix: str,
    results: "ExperimentResults",
    keys: Sequence["PartitionKey"],
    machine: "Machine",
    *,
    config: dict[str, bool],
) -> None:
    """Evaluate the streams at *keys* in processes started by the command *prefix*; return when all are recorded."""
    keys_of_streams = [key.key for key in keys]
    order: JsonObject = {"experiment": results.experiment_name, "keys": keys_of_streams, "config": config}
    _launch(context, prefix, machine, order, of=results)


def launch_training(
    context: dg.AssetExecutionContext, prefix: str, training: "SourceTraining", machine: "Machine"
) -> None:
    """Train in processes started by the command *prefix*; return when the weights are written."""
    _launch(context, prefix, machine, {"model": training.model}, of=training)


def _launch(
    context: dg.AssetExecutionContext,
    prefix: str,
    machine: "Machine",
    order: JsonObject,
    *,
    of: "ExperimentResults | SourceTraining",
) -> None:
    dg.PipesSubprocessClient().run(
        command=[*shlex.split(prefix), "-m", "tta_pipeline.defs.launched_rank"],
        context=context,
        extras={
            "benchmark": of.benchmark.model_dump(mode="json"),
            "data_root": str(of.locations.root),
            "shards_root": str(of.locations.store or ""),
            "machine": asdict(machine),
            **order,
        },
    )
