"""The runs that Dagster makes for a benchmark's unfinished work."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.cell_ranges import cell_ranges
from tta_pipeline.domain.cells import Cell
from tta_pipeline.util.plurals import count_of

Stage = Literal["sets", "shards", "training", "evaluations", "report"]
STAGES: tuple[Stage, ...] = get_args(Stage)
"""The stages in order; each begins when the previous stage has ended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedRun:
    """Assets of a benchmark and the partitions at which one run materializes them."""

    stage: Stage
    assets: tuple[str, ...]
    """Asset keys below the benchmark's, such as `evaluation/tent` or `clean/shard_manifest`."""
    keys: tuple[str, ...] = ()
    """Partition keys: one range from the first to the last; empty if the assets have no partitions."""
    expected_s: float | None = None
    """Expected time in seconds; None if not known."""

    @property
    def name(self) -> str:
        """Readable description of the run: its keys and its assets."""
        where = "" if not self.keys else self.keys[0] if len(self.keys) == 1 else f"{self.keys[0]}...{self.keys[-1]}"
        what = ", ".join(asset.rpartition("evaluation/")[2] for asset in self.assets)
        return f"{where}: {what}" if where else what


REPORT = PlannedRun(stage="report", assets=("robustness_report",))
"""The last run."""


def describe_runs(runs: Sequence[PlannedRun], *, num_devices: int) -> str:
    """Return what *runs* do, in one sentence, with their time if *num_devices* of them compute at once."""
    of_stage = {stage: [run for run in runs if run.stage == stage] for stage in STAGES}
    evaluations = of_stage["evaluations"]
    num_sets = sum(len(run.keys) or 1 for run in of_stage["sets"] + of_stage["shards"])
    num_streams = sum(len(run.keys or ("",)) * len(run.assets) for run in evaluations)
    times_s = [run.expected_s for run in evaluations if run.expected_s is not None]
    is_known = len(times_s) == len(evaluations)
    lasts = f"about {_in_words(sum(times_s) / num_devices)}" if is_known else "how long is not known before the first"
    parts = {
        f"make {count_of(num_sets, 'shard set')}": num_sets,
        f"train {count_of(len(of_stage['training']), 'model')}": of_stage["training"],
        f"run {count_of(num_streams, 'evaluation')} in {count_of(len(evaluations), 'Dagster run')} "
        f"({lasts})": evaluations,
        "write the report": of_stage["report"],
    }
    return f"to do: {', '.join(part for part, is_there in parts.items() if is_there)}"


def _in_words(seconds: float) -> str:
    if seconds < 90:  # from here on, people count in minutes
        return f"{max(1, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


def assets_of_shards(benchmark: Benchmark) -> tuple[str, ...]:
    """Return the assets that make the shards of a cell, in their order; images are made only if they are drawn."""
    return (*(["images"] if benchmark.is_drawn else []), "tar_shards", "shard_manifest")


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """The unfinished streams of an experiment at one partition key."""

    experiment: str
    key: str
    asset: str
    """Key of the experiment's asset below the benchmark's."""
    corruption: str
    """Corruption of the cell; empty if the key is a stream over several cells."""
    is_partition: bool
    """Whether *key* is a partition of the asset; clean images and whole streams have none."""
    cells: tuple[Cell, ...]
    """Cells that the streams read."""
    expected_s: float
    """Expected time in seconds, or a weight if nothing has been timed."""


def evaluation_runs(benchmark: Benchmark, work: Iterable[Work], *, is_timed: bool) -> Iterator[PlannedRun]:
    """Yield the runs that do *work*.

    A run of Dagster costs about a second, so each run contains as many cells as a range can cover. Cells with the same
    unfinished experiments share a run. A stream over several cells gets a separate run.

    Args:
        benchmark: The benchmark.
        work: The unfinished work.
        is_timed: Whether the expected times are seconds.
    """
    at_cells: dict[Cell, list[Work]] = defaultdict(list)
    others: dict[tuple[str, str], list[Work]] = defaultdict(list)
    for each in work:
        if each.corruption and each.is_partition:
            at_cells[each.cells[0]].append(each)
        else:
            others[each.corruption, "" if each.corruption else f"{each.asset} {each.key}"].append(each)
    alike: dict[tuple[str, ...], list[Cell]] = defaultdict(list)
    for cell, there in at_cells.items():
        alike[tuple(each.asset for each in there)].append(cell)
    for cells in alike.values():
        for together in cell_ranges(benchmark, cells):
            yield _planned_run([each for cell in together for each in at_cells[cell]], is_timed=is_timed)
    for of_stream in others.values():
        yield _planned_run(of_stream, is_timed=is_timed)


def _planned_run(work: Sequence[Work], *, is_timed: bool) -> PlannedRun:
    return PlannedRun(
        stage="evaluations",
        assets=tuple(dict.fromkeys(each.asset for each in work)),
        keys=tuple(dict.fromkeys(each.key for each in work if each.is_partition)),
        expected_s=sum(each.expected_s for each in work) if is_timed else None,
    )
