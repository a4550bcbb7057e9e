"""The streams of an experiment; in each stream, a method meets cells in a fixed order."""

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.domain.cells import CLEAN, WHOLE, Cell, PartitionKey, StreamKey
from tta_pipeline.domain.streams import StreamPlan


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
    experiment = benchmark.experiments[experiment_name]
    cells = (
        [key]
        if isinstance(key, Cell)
        else [cell for cell in benchmark.cells_of(experiment_name) if key.severity in (None, cell.severity)]
    )
    return tuple(
        StreamPlan(key=key, seed=seed, segments=experiment.protocol.stream.segments(cells, seed=seed))
        for seed in experiment.all_seeds
    )
