"""Ranges of cells, as Dagster has them: a rectangle of neighbouring corruptions and neighbouring severities."""

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import groupby
from operator import attrgetter

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.domain.cells import Cell


def cell_ranges(
    benchmark: Benchmark,
    cells: Collection[Cell],
    *,
    are_joined: Callable[[Sequence[Cell], Sequence[Cell]], bool] = lambda *_: True,
) -> list[list[Cell]]:
    """Return ranges that together cover exactly *cells*, in the benchmark's order; not always the fewest.

    Args:
        benchmark: Benchmark of the cells.
        cells: The cells.
        are_joined: Function that returns whether a range ending with the first cells, all of one corruption, may go on
            with the second, the same severities of the next corruption.
    """
    ranges: list[list[Cell]] = []
    for stretch in _stretches(benchmark, cells):
        joined = next((each for each in ranges if _continues(benchmark, each, stretch, are_joined)), None)
        if joined:
            joined += stretch
        else:
            ranges.append(stretch)
    return ranges


def _stretches(benchmark: Benchmark, cells: Collection[Cell]) -> Iterator[list[Cell]]:
    """Yield the stretches of *cells* that are neighbouring severities of one corruption."""
    for _, of_corruption in groupby(benchmark.cells, key=attrgetter("corruption")):
        for is_in, stretch in groupby(of_corruption, key=cells.__contains__):
            if is_in:
                yield list(stretch)


def _continues(
    benchmark: Benchmark,
    before: Sequence[Cell],
    stretch: Sequence[Cell],
    are_joined: Callable[[Sequence[Cell], Sequence[Cell]], bool],
) -> bool:
    """Return whether the range *before* may go on with *stretch*."""
    order, last = benchmark.corruptions, [cell for cell in before if cell.corruption == before[-1].corruption]
    return (
        order.index(stretch[0].corruption) == order.index(last[0].corruption) + 1
        and [cell.severity for cell in last] == [cell.severity for cell in stretch]
        and are_joined(last, stretch)
    )
