"""Data of each cell's page: every experiment's predictions, read from results and stored per-sample predictions."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.domain.cells import CLEAN, Cell
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import ManifestError, RecordError
from tta_pipeline.evaluation.experiment_results import CountedCell, ExperimentResults, Unit
from tta_pipeline.evaluation.published import PublishedExperiment
from tta_pipeline.report.significance.judged_cells import CellSamples, JudgedCell, judge_cell
from tta_pipeline.report.tables import name_class
from tta_pipeline.results.evaluation_record import Evaluation
from tta_pipeline.shards.photographs import Photographs

"""A cell in a stream: the stream's key, its seed, the position of the segment, and the cell's key."""
MAX_CONFUSIONS = 4
MAX_CLASSES = 12
MAX_POINTS = 12
"""Most points of a line along the stream."""
MAX_RESETS = 40
"""Most resets that are drawn: a method may reset itself with every batch."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One experiment on a cell, in one of its streams."""

    experiment: str
    unit: Unit
    row: Evaluation
    judged: JudgedCell | None
    """Per-sample predictions; None if none were kept, or the shards are missing or have changed."""

    @property
    def stream(self) -> str:
        """Key of the stream, which is the partition that evaluates it."""
        return self.unit[0]


@dataclass(frozen=True, kw_only=True)
class CellResults:
    """A cell with its recorded results."""

    cell: Cell
    samples: CellSamples | None
    """The samples of the cell; None if its shards are missing or damaged."""
    entries: Sequence[Entry]
    """Every experiment in every stream, in the order of the benchmark file."""
    severities: Sequence[int]
    """Other severities of the same corruption with results."""

    @property
    def classes(self) -> Sequence[str]:
        """Names of the classes; empty without shards."""
        return self.samples.shard_set.manifest.classes if self.samples else ()

    @property
    def name(self) -> str:
        """File name of the page, without its suffix."""
        return f"{self.cell.corruption}-{self.cell.severity}"

    @property
    def title(self) -> str:
        """Title of the page."""
        of_severity = f", severity {self.cell.severity}" if self.cell.severity else ""
        return f"{self.cell.corruption}{of_severity}"

    @property
    def first(self) -> Mapping[str, Entry]:
        """The first entry of each experiment, in ascending order of error."""
        found: dict[str, Entry] = {}
        for entry in self.entries:
            found.setdefault(entry.experiment, entry)
        return dict(sorted(found.items(), key=lambda each: each[1].row.error))


def read_cells(
    benchmark: Benchmark, locations: Locations, added: Sequence[PublishedExperiment] = ()
) -> Iterator[CellResults]:
    """Yield each cell of *benchmark* that has results, in the order of the benchmark; clean images come last.

    Args:
        benchmark: The benchmark.
        locations: Locations of results and shards.
        added: Experiments of others; their results on other images are left out.
    """
    own: list[ExperimentResults | PublishedExperiment] = [
        ExperimentResults(benchmark=benchmark, experiment_name=name, locations=locations)
        for name in benchmark.experiments
    ]
    counted: dict[Cell, list[tuple[str, CountedCell]]] = {}
    for results in (*own, *added):
        for each in results.all_counted_cells().values():
            counted.setdefault(each.cell, []).append((results.experiment_name, each))
    found: CellResults | None = None
    photographs = Photographs(benchmark.photograph_pattern)
    for cell in (*benchmark.cells, CLEAN):
        if cell in counted:
            others = [each.severity for each in counted if each.corruption == cell.corruption and each != cell]
            samples = _open_samples(benchmark, locations, cell, photographs, found.samples if found else None)
            entries = [
                Entry(experiment=name, unit=each.unit, row=each.row, judged=_judge_if_kept(each, samples))
                for name, each in counted[cell]
                if not (each.is_of_others and _shows_other_images(each, samples))
            ]
            found = CellResults(cell=cell, samples=samples, entries=entries, severities=sorted(others))
            yield found


def _open_samples(
    benchmark: Benchmark, locations: Locations, cell: Cell, photographs: Photographs, before: CellSamples | None
) -> CellSamples | None:
    try:
        return CellSamples.open(benchmark.name, locations, cell, photographs, like=before)
    except ManifestError:
        return None


def _shows_other_images(counted: CountedCell, samples: CellSamples | None) -> bool:
    return samples is not None and counted.row.cell.manifest_sha256 != samples.shard_set.manifest.sha256


def _judge_if_kept(counted: CountedCell, samples: CellSamples | None) -> JudgedCell | None:
    if samples is None:
        return None
    try:
        return judge_cell(counted, samples)
    except RecordError:
        return None


@dataclass(frozen=True, kw_only=True)
class Confusion:
    """How often one class was taken for another."""

    label: str
    prediction: str
    num_samples: int


def confusions(entry: Entry, results: CellResults) -> Sequence[Confusion]:
    """Return the most frequent confusions of *entry*, one of *results*, in descending order of frequency."""
    found, classes = entry.judged, results.classes
    if found is None or results.samples is None:
        return ()
    labels = results.samples.shard_set.index.labels[found.positions[found.is_wrong]]
    counts = Counter(zip(labels.tolist(), found.predictions[found.is_wrong].tolist(), strict=True))
    return [
        Confusion(label=classes[label], prediction=name_class(classes, prediction), num_samples=count)
        for (label, prediction), count in counts.most_common(MAX_CONFUSIONS)
    ]


@dataclass(frozen=True, kw_only=True)
class ClassErrors:
    """Errors of several experiments on a class."""

    name: str
    errors: Mapping[str, float | None]
    """Errors in [0, 1] by experiment; None if the experiment saw no sample of the class."""


def class_errors(results: CellResults) -> Sequence[ClassErrors]:
    """Return the classes on which the experiments differ most, in the order of the class map."""
    counted = {name: entry.row.scores.class_counts for name, entry in results.first.items()}
    table = {
        name: [
            1 - correct / num_samples if num_samples else None
            for correct, num_samples in zip(counts.num_correct, counts.num_samples, strict=True)
        ]
        for name, counts in counted.items()
        if len(counts.num_samples) == len(results.classes)
    }

    def spread(number: int) -> float:
        known = [error for errors in table.values() if (error := errors[number]) is not None]
        return max(known) - min(known) if known else -1

    shown = sorted(sorted(range(len(results.classes)), key=spread, reverse=True)[:MAX_CLASSES]) if table else []
    return [
        ClassErrors(name=results.classes[number], errors={name: errors[number] for name, errors in table.items()})
        for number in shown
    ]


@dataclass(frozen=True, kw_only=True)
class ChartData:
    """Data of the charts of an experiment on a cell."""

    bins: Sequence[tuple[float, float, int]]
    """Mean confidence, accuracy and number of samples of each confidence bin that has any."""
    batches: Sequence[tuple[int, float | None, float]]
    """Images so far, accuracy, and milliseconds per image, for consecutive parts of the stream."""
    resets: Sequence[int]
    """Images so far at each batch at which the method reset itself; empty if there are too many to draw."""


def chart_data(row: Evaluation) -> ChartData:
    """Return the data of the charts of *row*; in a pass over several cells, only the first has batches."""
    bins = row.calibration.bins
    sums = zip(bins.counts, bins.confidence_sums, bins.correct_counts, strict=True)
    return ChartData(
        bins=[(round(sure / count, 3), round(right / count, 3), count) for count, sure, right in sums if count],
        batches=_timeline_points(row),
        resets=_resets(row),
    )


def _timeline_points(row: Evaluation) -> Sequence[tuple[int, float | None, float]]:
    batches = row.time.batches
    num_samples = np.array(batches.num_samples, np.int64)
    if not len(num_samples):
        return ()
    num_known = num_samples - np.array(batches.num_unknown or 0)
    seconds = np.array(batches.data_wait_s) + np.array(batches.compute_s)
    correct = np.array(batches.num_correct)
    last, points = np.cumsum(num_samples), []
    parts = np.array_split(np.arange(len(num_samples)), min(len(num_samples), MAX_POINTS))
    if len(parts) > 1 and 2 * num_samples[parts[-1]].sum() < num_samples[parts[0]].sum():
        parts[-2:] = [np.concatenate(parts[-2:])]  # a last batch of few images says little
    for part in parts:
        total = int(num_samples[part].sum())
        known = int(num_known[part].sum())
        accuracy = round(float(correct[part].sum() / known), 3) if known else None
        points.append((int(last[part[-1]]), accuracy, float(f"{1000 * seconds[part].sum() / total:.3g}")))
    return points


def _resets(row: Evaluation) -> Sequence[int]:
    last = np.cumsum(np.array(row.time.batches.num_samples, np.int64))
    found: list[int] = last[np.flatnonzero(row.time.batches.num_resets or ())].tolist()
    return found if len(found) <= MAX_RESETS else ()


def find_most_disputed(results: CellResults, number: int) -> npt.NDArray[np.int64]:
    """Return the positions of the *number* samples on which the experiments disagree most.

    Samples that half of the experiments classify correctly come first. Ties are drawn at random, always the same way:
    names begin with the class, so the first names would show one class.
    """
    comparable = list(largest_comparable_group(results).values())
    if not comparable:
        return np.array([], np.int64)
    shares = np.mean([each.is_wrong for each in comparable], axis=0)
    draw = np.random.default_rng(0).permutation(len(shares))
    chosen = np.lexsort((draw, np.abs(shares - 0.5)))[:number]
    return comparable[0].positions[chosen]


def largest_comparable_group(results: CellResults) -> Mapping[str, JudgedCell]:
    """Return the judged cells of the largest group of experiments that have the same samples, by experiment."""
    groups: dict[str, dict[str, JudgedCell]] = {}
    for name, entry in results.first.items():
        if found := entry.judged:
            groups.setdefault(found.keys_sha256, {})[name] = found
    return max(groups.values(), key=len, default={})
