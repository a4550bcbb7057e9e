"""The program of a process that trains together with others; see `source_model.py`."""

from contextlib import nullcontext

from dagster_pipes import open_dagster_pipes

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.domain.locations import Locations
from tta_pipeline.evaluation.machine import Machine
from tta_pipeline.extras.training.ranks import joined_ranks, own_rank, told_by_first
from tta_pipeline.extras.training.source_training import SourceTraining


def main() -> None:
    """Run the training that Dagster orders, together with any other ranks."""
    # Dagster communicates only with the first rank, which sends the others what to train.
    with joined_ranks() as device, open_dagster_pipes() if own_rank()[0] == 0 else nullcontext() as pipes:
        order = told_by_first(pipes and pipes.extras)
        training = SourceTraining(
            benchmark=Benchmark.model_validate(order["benchmark"]),
            model=order["model"],
            locations=Locations.from_roots(order["data_root"], order["shards_root"]),
        )
        say = pipes.log.info if pipes else lambda _: None
        training.train(machine=Machine(**order["machine"]), say=say, device=device)


if __name__ == "__main__":
    main()
