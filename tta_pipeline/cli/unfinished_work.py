"""The plan of a benchmark's unfinished work, for the verbs that do it: here, or by an engine."""

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

from tta_pipeline.cli.common import print_table, say
from tta_pipeline.domain.locations import Locations

if TYPE_CHECKING:
    from tta_pipeline.benchmarks.benchmark import Benchmark
    from tta_pipeline.domain.cells import PartitionKey
    from tta_pipeline.extras.cluster.pieces import Piece
    from tta_pipeline.extras.cluster.planner import Planner


def make_planner(
    benchmark: "Benchmark",
    locations: Locations,
    experiments: tuple[str, ...],
    *,
    device: str,
    is_chosen: "Callable[[PartitionKey], bool]" = lambda _: True,
    force: bool = False,
) -> "Planner":
    """Return the planner of the unfinished work of *experiments* at the keys that *is_chosen* accepts.

    Args:
        benchmark: The benchmark.
        locations: Where its files lie.
        experiments: Names of its experiments.
        device: Kind of device that will evaluate: results of another kind are not finished.
        is_chosen: See `Planner`.
        force: Whether finished work is planned too.
    """
    from tta_pipeline.extras.cluster.planner import Planner
    from tta_pipeline.extras.cluster.unfinished import FingerprintComparison
    from tta_pipeline.extras.training.training_on_disk import is_model_trained

    return Planner(
        benchmark=benchmark,
        locations=locations,
        experiments=experiments,
        unfinished_keys=attrgetter("keys") if force else FingerprintComparison(device=device).unfinished_keys,
        is_trained=partial(is_model_trained, benchmark, locations),
        tell=say,
        is_chosen=is_chosen,
    )


def print_plan(pieces: "Sequence[Piece]", num_devices: int) -> None:
    """Print the stages of *pieces*, of which *num_devices* compute at a time."""
    from tta_pipeline.extras.cluster.overview import PLAN_COLUMNS, plan_rows
    from tta_pipeline.report.tables import Table

    print_table(Table(columns=PLAN_COLUMNS, rows=tuple(plan_rows(pieces, num_devices))))
    if any(piece.expected_s is None for piece in pieces if piece.stage == "evaluations"):
        say("hours are not known before a cell of this benchmark was evaluated; pieces are balanced by passes")
