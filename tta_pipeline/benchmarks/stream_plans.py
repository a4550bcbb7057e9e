"""The streams of an experiment; in each stream, a method meets cells in a fixed order."""

import random
from collections.abc import Iterator

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.domain.cells import CLEAN, WHOLE, Cell, PartitionKey, StreamKey
from tta_pipeline.domain.streams import Segment, StreamPlan


def partition_keys(benchmark: Benchmark, experiment_name: str) -> tuple[PartitionKey, ...]:
    """Return the keys of all streams of *experiment_name*: cells, with the clean images last, or `stream_keys`."""
    if benchmark.experiments[experiment_name].protocol.partitioned_by != "cell":
        return stream_keys(benchmark, experiment_name)
    return (*benchmark.cells_of(experiment_name), *([CLEAN] if benchmark.has_clean else []))


def stream_keys(benchmark: Benchmark, experiment_name: str) -> tuple[StreamKey, ...]:
    """Return the keys of the streams of *experiment_name*, if each stream has several cells."""
    if benchmark.experiments[experiment_name].protocol.partitioned_by == "severity":
        return tuple(StreamKey(severity=severity) for severity in benchmark.severities_of(experiment_name))
    return (WHOLE,)


def stream_plans(benchmark: Benchmark, experiment_name: str, key: PartitionKey) -> tuple[StreamPlan, ...]:
    """Return the streams of *experiment_name* at *key*, one per seed."""
    return tuple(
        StreamPlan(key=key, seed=seed, segments=tuple(_segments(benchmark, experiment_name, key, seed)))
        for seed in benchmark.experiments[experiment_name].all_seeds
    )


def _segments(benchmark: Benchmark, experiment_name: str, key: PartitionKey, seed: int) -> Iterator[Segment]:
    every = [(key,)] if isinstance(key, Cell) else list(_segment_cells(benchmark, experiment_name, key, seed))
    num_visits = benchmark.experiments[experiment_name].protocol.recurring
    for number in range(num_visits * len(every)):
        visit, place = divmod(number, len(every))
        yield Segment(position=number, cells=every[place], visit=visit + 1 if num_visits > 1 else None)


def _segment_cells(benchmark: Benchmark, experiment_name: str, key: StreamKey, seed: int) -> Iterator[tuple[Cell, ...]]:
    protocol = benchmark.experiments[experiment_name].protocol
    corruptions = list(benchmark.corruptions)
    if protocol.corruption_order == "seeded":
        random.Random(seed).shuffle(corruptions)  # noqa: S311 - not a secret
    severities = benchmark.severities_of(experiment_name) if key.severity is None else (key.severity,)
    at_each = [[Cell(corruption=name, severity=severity) for severity in severities] for name in corruptions]
    if protocol.shift == "slow":
        yield benchmark.cells_of(experiment_name)
    elif protocol.shift in ("mixed", "dynamic"):
        yield tuple(cell for cells in at_each for cell in cells)
    elif protocol.shift == "gradual":
        yield from ((cell,) for rising in at_each for cell in (*rising, *rising[-2::-1]))
    else:
        for cells in at_each:
            yield from ((cell,) for cell in cells)
            if protocol.clean == "after_each":
                yield (CLEAN,)
        if protocol.clean == "at_end":
            yield (CLEAN,)
