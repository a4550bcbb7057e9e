"""Evaluation by processes that a launcher such as `torchrun` or `srun` starts, over Dagster Pipes.

They write result records, which are the truth; Dagster hears their log, and passes cancellation on to them.
"""

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import dagster as dg

if TYPE_CHECKING:
    from tta_pipeline.evaluation.machine import Machine
    from tta_pipeline.evaluation.sweep import Subject


def launch(
    context: dg.AssetExecutionContext,
    prefix: str,
    subject: "Subject",
    keys: Sequence[str],
    machine: "Machine",
    *,
    config: dict[str, bool],
) -> None:
    """Have the streams at *keys* evaluated by the processes that *prefix* starts, and return when all are recorded."""
    dg.PipesSubprocessClient().run(
        command=[*shlex.split(prefix), "-m", "tta_pipeline.assets.launched"],
        context=context,
        extras={
            "benchmark": subject.benchmark.model_dump(mode="json"),
            "experiment": subject.experiment,
            "data_root": str(subject.locations.root),
            "keys": list(keys),
            "config": config,
            "machine": asdict(machine),
        },
    )
