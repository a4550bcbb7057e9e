"""Labels that come after an evaluation: they complete its records from the kept predictions, without another pass."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.places import Place
from tta_pipeline.data.labels.class_map import NO_CLASS
from tta_pipeline.data.labels.label_lists import read_label_list
from tta_pipeline.errors import ClassMapError, RecordError
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.evaluation.label_metrics import OF_ALL_PROBABILITIES, has_collapsed, label_metrics
from tta_pipeline.evaluation.sample_predictions import SamplePredictions
from tta_pipeline.results.evaluation_record import Batches, Evaluation
from tta_pipeline.results.records import publish_record
from tta_pipeline.shards.expected_shard_set import expected_for_cell
from tta_pipeline.shards.later_labels import LaterLabels, write_later_labels
from tta_pipeline.shards.manifest import MANIFEST_FILE
from tta_pipeline.shards.sample_index import SampleIndex
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.util.locations import Locations
from tta_pipeline.util.nearest_names import name_choices
from tta_pipeline.util.partitions import Cell
from tta_pipeline.util.short_lists import first_few

_NUM_NAMED = 3


@dataclass(frozen=True, kw_only=True)
class LabelledSet:
    """A shard set with the labels that a list has for it."""

    shard_set: ShardSet
    labels: LaterLabels


def match_labels(path: Path, shard_sets: Sequence[ShardSet]) -> Sequence[LabelledSet]:
    """Return the labels of *shard_sets*, which have none of their own, in the list at *path*; nothing is written.

    A key of the list is the key of a sample in its shards or its name in the source, with or without the folder of
    samples without a class. Sets with equal keys, such as severities of one photograph, share a line.

    Raises:
        ClassMapError: a line has no sample or an unknown class, or a sample has no line or two.
    """
    listed = read_label_list(path)
    found, used = [], set[str]()
    for shard_set in shard_sets:
        names = _names_of_samples(shard_set.index)
        labels = np.full(len(shard_set.index), -1, np.int32)
        for key in listed.keys() & names.keys():
            position = names[key]
            if labels[position] >= 0:
                raise ClassMapError(
                    f"{path} has two lines for {shard_set.index.keys[position]} of {shard_set.folder}; expected one"
                )
            labels[position] = _label_of(listed[key], shard_set, path)
            used.add(key)
        if (labels < 0).any():
            missing = [shard_set.index.keys[position] for position in np.flatnonzero(labels < 0)[:_NUM_NAMED]]
            raise ClassMapError(
                f"{path} has no line for {int((labels < 0).sum()):,} of {len(labels):,} samples of {shard_set.folder}, "
                f"such as {first_few(missing, _NUM_NAMED)}; expected one for each: complete it, or name other cells"
            )
        found.append(LabelledSet(shard_set=shard_set, labels=LaterLabels(labels=labels)))
    if unknown := [key for key in listed if key not in used]:
        raise ClassMapError(
            f"{path} has {len(unknown):,} keys of no sample, such as {first_few(unknown, _NUM_NAMED)}; expected keys "
            f"of {', '.join(str(each.folder) for each in shard_sets[:_NUM_NAMED])}: correct or remove these lines"
        )
    return found


def _names_of_samples(index: SampleIndex) -> Mapping[str, int]:
    """Return the position of each sample by every name that a list may use."""
    names: dict[str, int] = {}
    for column in (index.keys, index.table["source_name"].to_pylist()):
        for position, name in enumerate(column):
            for each in (name, name.removeprefix(f"{NO_CLASS}/")):
                names.setdefault(each, position)
    return names


def _label_of(name: str, shard_set: ShardSet, path: Path) -> int:
    classes = shard_set.manifest.classes
    if name not in classes:
        choices = name_choices(name, classes, listed_in=str(shard_set.folder / MANIFEST_FILE))
        raise ClassMapError(f"{path} has the class {name!r}; expected one of {choices}")
    return classes.index(name)


def unlabelled_sets(benchmark: Benchmark, locations: Locations, cells: Sequence[Cell]) -> Sequence[ShardSet]:
    """Return the shard sets of *cells* that exist and have no labels of their own, and sets made of them.

    Raises:
        ManifestError: a set is damaged.
    """
    places = [
        (folder, cell)
        for cell in cells
        for folder in (
            locations.shards(benchmark.name, cell),
            *(locations.transformed(benchmark.name, name, cell) for name in benchmark.transforms),
        )
        if (folder / MANIFEST_FILE).exists()
    ]
    opened = [ShardSet.open(folder, expected_for_cell(locations, benchmark.name, cell)) for folder, cell in places]
    return [each for each in opened if not each.has_own_labels]


def publish_labels(found: Sequence[LabelledSet]) -> None:
    """Write the labels of each set beside its manifest."""
    for each in found:
        write_later_labels(each.shard_set.folder, each.labels, each.shard_set.manifest.samples_sha256)


def complete_records(results: ExperimentResults, cells: Sequence[Cell]) -> Iterator[Place]:
    """Record again each result of *cells* that lacks the present labels, with them; yield the places.

    Raises:
        RecordError: a record or its predictions are damaged, or predictions were not kept.
        ManifestError: the shards cannot be read.
    """
    recorded = results.recorded_keys()
    for place in (place for key in results.keys if key in recorded for place in results.places(key)):
        if place.cell in cells and _complete(results, place):
            yield place


def _complete(results: ExperimentResults, place: Place) -> bool:
    record = results.current_record(place)
    row = record.evaluation
    assert row is not None, "of its kind"
    shard_set = ShardSet.open(results.folder(place.cell), results.expected_shard_set(place.cell))
    if shard_set.labels_sha256 is None or row.labels_sha256 == shard_set.labels_sha256:
        return False
    name = results.record_name(place)
    publish_record(
        results.records_folder,
        kind=results.kind,
        name=name,
        run_id=record.run_id,
        started_at=record.started_at,
        facts=replace(_with_labels(row, _read_kept(results, name, row), shard_set), copied_from=record.sha256),
        versions_then=record.versions,
    )
    return True


def _read_kept(results: ExperimentResults, name: str, row: Evaluation) -> SamplePredictions:
    if row.samples_sha256 is None:
        raise RecordError(
            f"{name} kept no predictions; expected one for each sample, to compare with labels: evaluate it again with "
            "keep_predictions"
        )
    return SamplePredictions.read(results.samples_path(name, row.samples_sha256), sha256=row.samples_sha256)


def _with_labels(row: Evaluation, kept: SamplePredictions, shard_set: ShardSet) -> Evaluation:
    """Return *row* with the columns that follow from the labels of *shard_set*.

    Those of `OF_ALL_PROBABILITIES` are None, also where the evaluation had them by other labels.
    """
    if row.manifest_sha256 != shard_set.manifest.sha256 or kept.sha256 != row.predictions_sha256:
        raise RecordError(
            f"{row.experiment} at {row.corruption}|{row.severity} is of other shards or predictions than "
            f"{shard_set.folder} has; expected the same: evaluate it again"
        )
    labels = shard_set.index.labels[kept.positions]
    metrics = label_metrics(
        kept.predictions,
        kept.confidences,
        labels,
        num_classes=len(shard_set.manifest.classes),
        num_classes_found=len(np.unique(shard_set.index.labels)),
    )
    unknown: dict[str, Any] = dict.fromkeys(OF_ALL_PROBABILITIES)
    collapsed = row.num_updates > 0 and has_collapsed(kept.predictions, labels)
    return replace(
        row,
        **metrics,
        **unknown,
        diverged=row.num_nonfinite_batches > 0 or collapsed,
        batches=_count_batches(row.batches, kept.predictions == labels),
        labels_sha256=shard_set.labels_sha256,
    )


def _count_batches(batches: Batches, correct: npt.NDArray[np.bool_]) -> Batches:
    """Return *batches* with the number of *correct* ones in each, (N,), if they are of these samples alone."""
    if sum(batches.num_samples) != len(correct):
        return batches
    starts = np.cumsum([0, *batches.num_samples[:-1]])
    counts = np.add.reduceat(correct.astype(np.int64), starts)
    return replace(batches, num_correct=tuple(counts.tolist()))
