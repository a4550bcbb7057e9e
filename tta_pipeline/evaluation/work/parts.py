"""The division of a benchmark's streams into parts, for processes and machines that do not talk to each other."""

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

    Nothing but the benchmark file and the arguments decides, so whoever has a part knows what the others have, whatever
    is finished meanwhile. A stream over several cells is the longest work there is and cannot be cut: the longest goes
    first, each to the part with the least. Cells fill the parts up in their order, so that few parts read each cell.

    Args:
        benchmark: The benchmark.
        places: What to divide; all who have a part must name the same.
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
    """Yield for each of *costs*, in order, the number of the part that takes it: all end at about the same level."""
    level = _level(loads, sum(costs))
    ends = [*accumulate(max(0.0, level - load) for load in loads)]
    number, middle = 0, 0.0
    for cost in costs:
        while number < len(ends) - 1 and middle + cost / 2 > ends[number]:
            number += 1
        yield number
        middle += cost


def _level(loads: Sequence[float], volume: float) -> float:
    """Return how high *volume* stands if it is poured over *loads*."""
    below: list[float] = []
    for load in sorted(loads):
        if below and load >= (volume + sum(below)) / len(below):
            break
        below.append(load)
    return (volume + sum(below)) / len(below)
