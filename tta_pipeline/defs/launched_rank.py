"""The program that a launched process runs; see `launching.py`."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

from dagster_pipes import PipesDefaultContextLoader, PipesEnvVarParamsLoader, open_dagster_pipes

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.evaluation.machine import Machine
from tta_pipeline.evaluation.ranks import SINGLE_RANK, Ranks, ranks_of_torchrun
from tta_pipeline.evaluation.runner import ExperimentRunner
from tta_pipeline.results.evaluation_record import mean_error
from tta_pipeline.util.locations import Locations
from tta_pipeline.util.partitions import parse_key


def main() -> None:
    """Run the evaluation or training that Dagster orders, together with any other ranks."""
    is_alone = int(os.environ.get("WORLD_SIZE", "1")) == 1
    with nullcontext(SINGLE_RANK) if is_alone else ranks_of_torchrun() as ranks, _order(ranks) as order:
        if "experiment" in order.extras:
            _evaluate(order, ranks)
        else:
            _train(order, ranks)


class _Order(NamedTuple):
    """The work that Dagster orders, and a function that reports progress."""

    run_id: str
    extras: Mapping[str, Any]
    tell: Callable[[str], None]


@contextmanager
def _order(ranks: Ranks) -> Iterator[_Order]:
    """Yield the order; only the first rank reports back, since Dagster listens to one process."""
    if ranks.is_first:
        with open_dagster_pipes() as pipes:
            yield _Order(pipes.run_id, pipes.extras, pipes.log.info)
        return
    params = PipesEnvVarParamsLoader().load_context_params()  # type: ignore[no-untyped-call] # it has no types
    with PipesDefaultContextLoader().load_context(params) as context:
        yield _Order(context["run_id"], context["extras"] or {}, lambda _: None)


def _evaluate(order: _Order, ranks: Ranks) -> None:
    extras = order.extras
    results = ExperimentResults(
        benchmark=Benchmark.model_validate(extras["benchmark"]),
        experiment_name=extras["experiment"],
        locations=Locations.from_roots(extras["data_root"], extras["shards_root"]),
    )
    keys = [parse_key(key, results.keys) for key in extras["keys"]]
    with ExperimentRunner(
        results,
        machine=Machine(**extras["machine"]),
        run_id=order.run_id,
        tell=order.tell,
        ranks=ranks,
        keeps_predictions=extras["config"]["keep_predictions"],
        anew=extras["config"]["remeasure"],
    ) as runner:
        for key in keys:
            runner.plan(key)
        ranks.wait_for_all()  # else the first rank could record a stream before the others have planned it
        for key in keys:
            runner.evaluate(key)
            if ranks.is_first:
                order.tell(f"{key.key}: error {mean_error(runner.rows(key)):.1%}")


def _train(order: _Order, ranks: Ranks) -> None:
    from tta_pipeline.extras.training.source_training import SourceTraining  # and torchvision: evaluations need neither

    training = SourceTraining(
        benchmark=Benchmark.model_validate(order.extras["benchmark"]),
        model=order.extras["model"],
        locations=Locations.from_roots(order.extras["data_root"], order.extras["shards_root"]),
    )
    training.train(machine=Machine(**order.extras["machine"]), ranks=ranks, say=order.tell)


if __name__ == "__main__":
    main()
