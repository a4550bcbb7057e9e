"""The plan of a benchmark's unfinished work, for the verbs that do it: here, or by an engine."""

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from tta_pipeline.cli.common import print_table, say
from tta_pipeline.domain.locations import Locations

if TYPE_CHECKING:
    from tta_pipeline.benchmarks.benchmark import Benchmark
    from tta_pipeline.domain.cells import PartitionKey
    from tta_pipeline.evaluation.work.pieces import Piece
    from tta_pipeline.evaluation.work.planner import Planner

_PLAN_COLUMNS = ("stage", "pieces", "devices_each", "hours", "hours_at_once")


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
    from tta_pipeline.evaluation.work.planner import Planner
    from tta_pipeline.evaluation.work.unfinished import FingerprintComparison

    return Planner(
        benchmark=benchmark,
        locations=locations,
        experiments=experiments,
        unfinished_keys=attrgetter("keys") if force else FingerprintComparison(device=device).unfinished_keys,
        tell=say,
        is_chosen=is_chosen,
    )


def print_plan(pieces: "Sequence[Piece]", num_devices: int) -> None:
    """Print the stages of *pieces*, of which *num_devices* compute at a time."""
    from tta_pipeline.report.tables import Table

    print_table(Table(columns=_PLAN_COLUMNS, rows=tuple(_plan_rows(pieces, num_devices))))
    if any(piece.expected_s is None for piece in pieces if piece.stage == "evaluations"):
        say("hours are not known before a cell of this benchmark was evaluated; pieces are balanced by passes")


def _plan_rows(
    pieces: "Sequence[Piece]", num_devices: int
) -> Iterator[tuple[str, int, int, float | None, float | None]]:
    """Yield `_PLAN_COLUMNS` of each stage: total hours, and hours with *num_devices* at a time; None if not known."""
    from tta_pipeline.evaluation.work.pieces import ON_A_DEVICE, STAGES

    for stage in STAGES:
        of_stage = [piece for piece in pieces if piece.stage == stage]
        known = [piece.expected_s for piece in of_stage if piece.expected_s is not None]
        if of_stage:
            hours = sum(known) / 3600 if len(known) == len(of_stage) else None
            at_once = max(hours / num_devices, max(known) / 3600) if hours is not None else None
            yield stage, len(of_stage), int(stage in ON_A_DEVICE), hours, at_once
