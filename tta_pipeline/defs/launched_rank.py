"""The program of a process that trains together with others; see `source_model.py`."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

from dagster_pipes import PipesDefaultContextLoader, PipesEnvVarParamsLoader, open_dagster_pipes

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.domain.locations import Locations
from tta_pipeline.evaluation.machine import Machine
from tta_pipeline.extras.training.ranks import SINGLE_RANK, Ranks, ranks_of_torchrun
from tta_pipeline.extras.training.source_training import SourceTraining


def main() -> None:
    """Run the training that Dagster orders, together with any other ranks."""
    is_alone = int(os.environ.get("WORLD_SIZE", "1")) == 1
    with nullcontext(SINGLE_RANK) if is_alone else ranks_of_torchrun() as ranks, _order(ranks) as order:
        training = SourceTraining(
            benchmark=Benchmark.model_validate(order.extras["benchmark"]),
            model=order.extras["model"],
            locations=Locations.from_roots(order.extras["data_root"], order.extras["shards_root"]),
        )
        training.train(machine=Machine(**order.extras["machine"]), ranks=ranks, say=order.tell)


class _Order(NamedTuple):
    """The training that Dagster orders, and a function that reports progress."""

    extras: Mapping[str, Any]
    tell: Callable[[str], None]


@contextmanager
def _order(ranks: Ranks) -> Iterator[_Order]:
    """Yield the order; only the first rank reports back, since Dagster listens to one process."""
    if ranks.is_first:
        with open_dagster_pipes() as pipes:
            yield _Order(pipes.extras, pipes.log.info)
        return
    params = PipesEnvVarParamsLoader().load_context_params()  # type: ignore[no-untyped-call] # it has no types
    with PipesDefaultContextLoader().load_context(params) as context:
        yield _Order(context["extras"] or {}, lambda _: None)


if __name__ == "__main__":
    main()
