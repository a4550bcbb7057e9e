"""The program of a process that trains together with others; see `source_model.py`."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dagster_pipes import PipesDefaultContextLoader, PipesEnvVarParamsLoader, open_dagster_pipes

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.domain.locations import Locations
from tta_pipeline.evaluation.machine import Machine
from tta_pipeline.extras.training.ranks import Ranks, joined_ranks
from tta_pipeline.extras.training.source_training import SourceTraining


def main() -> None:
    """Run the training that Dagster orders, together with any other ranks."""
    with joined_ranks() as ranks, _order(ranks) as (order, say):
        training = SourceTraining(
            benchmark=Benchmark.model_validate(order["benchmark"]),
            model=order["model"],
            locations=Locations.from_roots(order["data_root"], order["shards_root"]),
        )
        training.train(machine=Machine(**order["machine"]), ranks=ranks, say=say)


@contextmanager
def _order(ranks: Ranks) -> Iterator[tuple[Mapping[str, Any], Callable[[str], None]]]:
    """Yield the training that Dagster orders, and a function that reports progress.

    Only the first rank reports back, since Dagster listens to one process.
    """
    if ranks.is_first:
        with open_dagster_pipes() as pipes:
            yield pipes.extras, pipes.log.info
        return
    params = PipesEnvVarParamsLoader().load_context_params()  # type: ignore[no-untyped-call] # it has no types
    with PipesDefaultContextLoader().load_context(params) as context:
        yield context["extras"] or {}, lambda _: None


if __name__ == "__main__":
    main()
