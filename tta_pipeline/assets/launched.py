"""What a launched process runs; see `launching.py`."""

import os
from pathlib import Path

from dagster_pipes import PipesContext, open_dagster_pipes

from tta_pipeline.benchmarks.spec import Benchmark
from tta_pipeline.evaluation.machine import Machine
from tta_pipeline.evaluation.ranks import ALONE, Ranks, ranks_of_torchrun
from tta_pipeline.evaluation.sweep import Subject, Sweep
from tta_pipeline.locations import Locations


def main() -> None:
    """Evaluate the cells that Dagster names, with the other processes if there are some."""
    with open_dagster_pipes() as pipes:
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            _evaluate(pipes, ALONE)
            return
        with ranks_of_torchrun() as ranks:
            _evaluate(pipes, ranks)


def _evaluate(pipes: PipesContext, ranks: Ranks) -> None:
    subject = Subject(
        benchmark=Benchmark.model_validate(pipes.get_extra("benchmark")),
        experiment=pipes.get_extra("experiment"),
        locations=Locations(root=Path(pipes.get_extra("data_root"))),
    )
    keys, anew = pipes.get_extra("keys"), pipes.get_extra("anew")
    machine = Machine(**pipes.get_extra("machine"))
    tell = pipes.log.info if ranks.is_first else lambda _: None
    with Sweep(subject, machine=machine, run_id=pipes.run_id, tell=tell, ranks=ranks) as sweep:
        todo = {key: subject.plans(key) if anew else sweep.unfinished(key) for key in keys}
        ranks.wait_for_all()  # else the first would record what others have still to find unfinished
        sweep.expect([plan for plans in todo.values() for plan in plans])
        for key, plans in todo.items():
            for plan in plans:
                sweep.evaluate(plan, anew=anew)
            if ranks.is_first:
                rows = subject.rows(key)
                tell(f"{key}: error {sum(row['error'] for row in rows) / len(rows):.1%}")


if __name__ == "__main__":
    main()
