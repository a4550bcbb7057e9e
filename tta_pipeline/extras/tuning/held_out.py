"""Restricts trials to held-out shifts: a benchmark without its reported shifts, and checks of the images."""

from collections.abc import Sequence

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.resolved_experiment import require_held_out
from tta_pipeline.benchmarks.tuning_settings import Tuning
from tta_pipeline.domain.cells import Cell
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import BenchmarkFileError, EvaluationError, ManifestError
from tta_pipeline.extras.tuning.grid import Combination, trial_name
from tta_pipeline.shards.benchmark_expectation import expected_for_benchmark
from tta_pipeline.shards.manifest import MANIFEST_FILE, read_manifest
from tta_pipeline.shards.set_facts import Manifest
from tta_pipeline.util.nearest_names import name_choices
from tta_pipeline.util.short_lists import abbreviate_list


def require_tunable(benchmark: Benchmark, experiment_name: str) -> Tuning:
    """Return the settings for tuning *experiment_name*."""
    if not benchmark.held_out:
        raise BenchmarkFileError(benchmark.why_none_held_out)
    if experiment_name not in benchmark.tuning or experiment_name not in benchmark.experiments:
        tunable = [name for name in benchmark.tuning if name in benchmark.experiments]
        known = name_choices(experiment_name, tunable, listed_in="its section tuning")
        expected = f"one of {known}" if tunable else "a section tuning"
        raise BenchmarkFileError(
            f"There is no tuning for {experiment_name} in the file of {benchmark.name}; expected {expected}: add the "
            f"experiment, as in tuning: {{{experiment_name}: {{grid: {{lr: [0.0001, 0.001]}}}}}}"
        )
    return benchmark.tuning[experiment_name]


def benchmark_of_trial(
    benchmark: Benchmark, experiment_name: str, combination: Combination, shifts: Sequence[str]
) -> tuple[Benchmark, str]:
    """Return *benchmark* reduced to *shifts* and one trial, and the name of the trial.

    The trial is the experiment with the values of *combination*. It does not evaluate clean images, since their error
    is reported too.
    """
    tuning, experiment = benchmark.tuning[experiment_name], benchmark.experiments[experiment_name]
    trial = experiment.model_copy(
        update={
            "hyperparameters": {**experiment.hyperparameters, **combination},
            "tuned": False,
            "severities": None,
            "subset": tuning.subset or experiment.subset,
            "protocol": experiment.protocol.model_copy(update={"clean": "never"}),
        }
    )
    name = f"{experiment_name}/{trial_name(combination)}"
    severities = tuning.severities or benchmark.severities_of(experiment_name)
    update = {"corruptions": tuple(shifts), "severities": severities, "experiments": {name: trial}}
    return benchmark.model_copy(update=update), name


def require_unreported_images(benchmark: Benchmark, cells: tuple[Cell, ...], locations: Locations) -> None:
    """Refuse *cells* that are not held out, or that have the same shards as a reported cell."""
    require_held_out(benchmark, tuple(dict.fromkeys(cell.corruption for cell in cells)), "a trial would be evaluated")
    require_shards(benchmark, cells, locations)
    reported: dict[str, Cell] = {}
    for cell in benchmark.cells:
        try:
            manifest = _manifest(benchmark, cell, locations)
        except ManifestError:
            continue  # missing or damaged: an evaluation of this cell reports it
        reported |= dict.fromkeys(_contents(manifest), cell)
    for cell in cells:
        for content in _contents(_manifest(benchmark, cell, locations)):
            if content in reported:
                raise EvaluationError(
                    f"{locations.shards(benchmark.name, cell)} contains the images of {reported[content].key}, which "
                    f"{benchmark.name} reports; expected the images of {cell.key}: rematerialize held_out/tar_shards "
                    "and held_out/shard_manifest from the right images"
                )


def require_shards(benchmark: Benchmark, cells: tuple[Cell, ...], locations: Locations) -> None:
    """Refuse *cells*, all of them held out or all of them reported, if one of them has no shards."""
    missing = find_without_shards(benchmark, cells, locations)
    if not missing:
        return
    names = (*(["images"] if benchmark.is_drawn else []), "tar_shards", "shard_manifest")
    is_held_out = missing[0].corruption in benchmark.held_out
    every, part = (benchmark.held_out_cells, "held_out/") if is_held_out else (benchmark.cells, "")
    raise EvaluationError(
        f"There are no shards for {abbreviate_list([cell.key for cell in missing])}, the first in "
        f"{locations.shards(benchmark.name, missing[0])}; expected these shards: run `dg launch --assets "
        f"'{','.join(f'{benchmark.name}/{part}{name}' for name in names)}' "
        f"--partition-range '{every[0].key}...{every[-1].key}'`"
    )


def find_without_shards(benchmark: Benchmark, cells: Sequence[Cell], locations: Locations) -> tuple[Cell, ...]:
    """Return the *cells* that have no shards yet."""
    return tuple(cell for cell in cells if not (locations.shards(benchmark.name, cell) / MANIFEST_FILE).exists())


def _manifest(benchmark: Benchmark, cell: Cell, locations: Locations) -> Manifest:
    folder = locations.shards(benchmark.name, cell)
    return read_manifest(folder, expected_for_benchmark(benchmark, locations, cell))


def _contents(manifest: Manifest) -> tuple[str, ...]:
    """Return the hash of each shard in *manifest*."""
    return tuple(shard.sha256 for shard in manifest.shards)
