"""What a benchmark file asks for: a row for each experiment, written out or made by a matrix."""

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.experiments import Experiment
from tta_pipeline.evaluation.experiment import ExperimentResults
from tta_pipeline.report.tables import Table
from tta_pipeline.util.locations import Locations

_COLUMNS = (
    "experiment", "model", "method", "preset", "hyperparameters", "protocol", "subset", "severities", "num_streams",
    "num_recorded", "origin", "group", "asset",
)  # fmt: skip


def experiment_table(benchmark: Benchmark, locations: Locations) -> Table:
    """Return a row for each experiment of *benchmark*, in the order of the file.

    `hyperparameters` has those that differ from the preset's, and whose tuning chooses others. `num_recorded` has the
    streams that have a result for each of their cells; whether it is of the present data and settings, `tta-pipeline
    why` says.
    """
    return Table(columns=_COLUMNS, rows=tuple(_row(benchmark, name, locations) for name in benchmark.experiments))


def _row(benchmark: Benchmark, name: str, locations: Locations) -> tuple[object, ...]:
    spec = benchmark.experiments[name]
    results = ExperimentResults(benchmark=benchmark, experiment_name=name, locations=locations)
    streams = [plan for key in results.keys for plan in results.plans(key)]
    return (
        name, spec.model, spec.method_name, spec.preset, _differing(name, spec), spec.protocol.name,
        spec.subset.name if spec.subset else "all", list(benchmark.severities_of(name)), len(streams),
        sum(map(results.is_recorded, streams)), benchmark.origin_of(name), benchmark.group_of(name),
        f"{benchmark.name}/evaluation/{name}",
    )  # fmt: skip


def _differing(name: str, spec: Experiment) -> str | None:
    """Return the hyperparameters that differ from the preset's; None if none does."""
    usual = spec.entry.configure(spec.preset, {}, batch_size=spec.method_batch_size).model_dump(mode="json")
    found = spec.configured().model_dump(mode="json").items()
    differing = [f"{each} {value}" for each, value in found if value != usual[each]]
    tuned_as = spec.tuned_as(name)
    return ", ".join([*differing, *([f"tuned as {tuned_as}"] if tuned_as else [])]) or None
