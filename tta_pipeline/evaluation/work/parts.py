"""The division of a benchmark's streams into parts, for processes and machines that do not communicate."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.stream_plans import stream_plans
from tta_pipeline.domain.cells import PartitionKey, StreamKey
from tta_pipeline.evaluation.work.costs import Costs

Place = tuple[str, PartitionKey]
"""An experiment and a partition key of its streams."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One of several parts of a benchmark's streams."""

    number: int
    """Number of the part, from 1."""
    num_parts: int

    def __str__(self) -> str:
        return f"{self.number}/{self.num_parts}"

    def places(self, benchmark: Benchmark, places: Sequence[Place]) -> frozenset[Place]:
        """Return which of *places* are in this part; see `divide`."""
        return divide(benchmark, places, self.num_parts)[self.number - 1]


def divide(benchmark: Benchmark, places: Sequence[Place], num_parts: int) -> tuple[frozenset[Place], ...]:
    """Divide *places* into parts of about the same cost: passes of the method times samples.

    The division depends only on the benchmark file and the arguments, not on finished work, so all processes compute
    the same one. Streams over several cells take longest and cannot be divided. They are assigned first, the longest
    first, each to the part with the least work. Then cells fill the parts in order, so that few parts read each cell.

    Args:
        benchmark: The benchmark.
        places: What to divide; it must be the same for all parts.
        num_parts: Number of parts; some are empty if there are fewer places.
    """
    costs = Costs.from_file(benchmark)
    cost_of = {
        (name, key): sum(costs.expected_s(name, plan) for plan in stream_plans(benchmark, name, key))
        for name, key in places
    }
    streams = [place for place in places if isinstance(place[1], StreamKey)]
    parts: list[set[Place]] = [set() for _ in range(num_parts)]
    loads = [0.0] * num_parts
    for stream in sorted(streams, key=lambda place: -cost_of[place]):
        lightest = loads.index(min(loads))
        parts[lightest].add(stream)
        loads[lightest] += cost_of[stream]
    order = {key: number for number, key in enumerate(dict.fromkeys(key for _, key in places))}
    cells = sorted(
        (place for place in places if not isinstance(place[1], StreamKey)), key=lambda place: order[place[1]]
    )
    for place, number in zip(cells, _fill(loads, [cost_of[place] for place in cells]), strict=True):
        parts[number].add(place)
    return tuple(map(frozenset, parts))


def _fill(loads: Sequence[float], costs: Sequence[float]) -> Iterator[int]:
    """Yield for each of *costs*, in order, the number of its part, so that all parts cost about the same."""
    level = _level(loads, sum(costs))
    ends = [*accumulate(max(0.0, level - load) for load in loads)]
    number, middle = 0, 0.0
    for cost in costs:
        while number < len(ends) - 1 and middle + cost / 2 > ends[number]:
            number += 1
        yield number
        middle += cost


def _level(loads: Sequence[float], volume: float) -> float:
    """Return the level that *volume* reaches if it is poured over *loads*."""
    below: list[float] = []
    for load in sorted(loads):
        if below and load >= (volume + sum(below)) / len(below):
            break
        below.append(load)
    return (volume + sum(below)) / len(below)
