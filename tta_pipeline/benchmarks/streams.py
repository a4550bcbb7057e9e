"""What an experiment evaluates in which order: streams, in each of which a method goes from cell to cell."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.partitions import CLEAN, Cell

WHOLE = "all"
"""Key of the one stream of a whole benchmark."""


@dataclass(frozen=True, kw_only=True)
class Visit:
    """A stretch of a stream after which the method can be left and found again as it was."""

    position: int
    """In the stream, from 0."""
    cells: tuple[Cell, ...]
    """One, or those that are mixed."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One stream of an experiment."""

    key: str
    """Partition key: `fog|5`, `5`, or `all` for the whole benchmark."""
    seed: int
    visits: tuple[Visit, ...]

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The cells that it visits, each once."""
        return tuple(dict.fromkeys(cell for visit in self.visits for cell in visit.cells))


def stream_keys(benchmark: Benchmark, experiment: str) -> tuple[str, ...]:
    """Return the keys of the streams of *experiment*, which are partition keys unless there is one, `all`."""
    partitioned_by = benchmark.experiments[experiment].protocol.partitioned_by
    if partitioned_by == "cell":
        return tuple(cell.key for cell in benchmark.cells_of(experiment))
    if partitioned_by == "severity":
        return tuple(str(severity) for severity in benchmark.severities_of(experiment))
    return (WHOLE,)


def plans(benchmark: Benchmark, experiment: str, key: str) -> tuple[Plan, ...]:
    """Return the streams of *experiment* at *key*, one for each seed."""
    return tuple(
        Plan(key=key, seed=seed, visits=tuple(_visits(benchmark, experiment, key, seed)))
        for seed in benchmark.experiments[experiment].all_seeds
    )


def _visits(benchmark: Benchmark, experiment: str, key: str, seed: int) -> Iterator[Visit]:
    for position, cells in enumerate(_stretches(benchmark, experiment, key, seed)):
        yield Visit(position=position, cells=cells)


def _stretches(benchmark: Benchmark, experiment: str, key: str, seed: int) -> Iterator[tuple[Cell, ...]]:
    protocol = benchmark.experiments[experiment].protocol
    if protocol.partitioned_by == "cell":
        yield from ((cell,) for cell in (CLEAN, *benchmark.cells) if cell.key == key)
        return
    corruptions = list(benchmark.corruptions)
    if protocol.corruption_order == "seeded":
        random.Random(seed).shuffle(corruptions)  # noqa: S311 - no secret
    if protocol.shift == "slow":
        yield benchmark.cells_of(experiment)
    elif protocol.shift == "mixed":
        yield tuple(Cell(corruption=corruption, severity=int(key)) for corruption in corruptions)
    elif protocol.shift == "gradual":
        up = benchmark.severities_of(experiment)
        for corruption in corruptions:
            yield from ((Cell(corruption=corruption, severity=severity),) for severity in (*up, *up[-2::-1]))
    else:
        for corruption in corruptions:
            yield (Cell(corruption=corruption, severity=int(key)),)
            if protocol.clean == "after_each":
                yield (CLEAN,)
        if protocol.clean == "at_end":
            yield (CLEAN,)
