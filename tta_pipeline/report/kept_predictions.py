"""The kept predictions of a cell as a table, for analyses in Python."""

from pathlib import Path

import pyarrow as pa

from tta_pipeline.benchmarks.load_files import load_all_benchmarks
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import RecordError
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.report.significance.judged_cells import read_predictions
from tta_pipeline.shards.expected_shard_set import expected_for_cell
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.util.short_lists import abbreviate_list


def predictions(
    benchmark: str, experiment: str, cell: str, *, seed: int | None = None, data_root: Path | str | None = None
) -> pa.Table:
    """Return the predictions of *experiment* on *cell* as an Arrow table, for `.to_pandas()` or polars.

    Each row is a sample, in the order in which the method saw them: `key`, its name in the shards; `label` and
    `prediction`, numbers of classes; `confidence`, the probability of the predicted class; and `correct`. If a stream
    visits the cell several times, the visits follow one another.

    Args:
        benchmark: Name of the benchmark, such as `digits_c`.
        experiment: Name of the experiment in the benchmark file.
        cell: Key of the cell, such as `fog|5`; `clean|0` for the uncorrupted images.
        seed: Seed of the stream; None: the first that was evaluated.
        data_root: Folder of the benchmark; None: `$TTA_DATA_ROOT`, by default `data/` in the working directory.

    Raises:
        BenchmarkFileError: there is no such benchmark or experiment, or the file is faulty.
        RecordError: the cell was not evaluated with this seed, or its record or predictions are damaged, were not kept,
            or belong to shards that have changed since.
        ManifestError: the shards cannot be read.
    """
    locations = Locations(root=Path(data_root).absolute()) if data_root else Locations.from_environment()
    loaded = load_all_benchmarks(locations)
    loaded.experiment(benchmark, experiment)
    results = ExperimentResults(benchmark=loaded.benchmark(benchmark), experiment_name=experiment, locations=locations)
    counted = results.all_counted_cells().values()
    own = [each for each in counted if each.cell.key == cell]
    found = [each for each in own if each.row.cell.seed == (own[0].row.cell.seed if seed is None else seed)]
    if not found:
        of_cell = f"seeds {abbreviate_list(sorted({each.row.cell.seed for each in own}))} of {cell}"
        of_all = f"cells such as {abbreviate_list(list(dict.fromkeys(each.cell.key for each in counted)), most=5)}"
        only = f", only for {of_cell if own else of_all}" if counted else ""
        asked = cell if seed is None else f"{cell} with seed {seed}"
        raise RecordError(
            f"{experiment} of {benchmark} has no result for {asked}{only}; expected an evaluated cell: run "
            f"`tta-pipeline run {benchmark.partition('/')[0]} --experiment {experiment}`, or choose another cell or "
            "seed"
        )
    shard_set = ShardSet.open(
        results.folder(found[0].cell), expected_for_cell(locations, results.benchmark.name, found[0].cell)
    )
    return pa.concat_tables(read_predictions(each, shard_set).to_table(shard_set.index) for each in found)
