"""Cells of a benchmark that do not show the same images as most: their errors and the means over them mislead."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress

import numpy as np

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.domain.cells import Cell
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import ClassMapError, ManifestError
from tta_pipeline.shards.expected_shard_set import expected_for_cell
from tta_pipeline.shards.manifest import read_manifest
from tta_pipeline.shards.photographs import Photographs
from tta_pipeline.shards.set_facts import Manifest
from tta_pipeline.shards.shard_set import ShardSet


def find_uneven_cells(benchmark: Benchmark, locations: Locations) -> Mapping[Cell, str]:
    """Return the cells of *benchmark* whose images differ from most cells with a manifest, each with a description.

    Without severities, as in ImageNetV2, each cell has its own photographs. If the shards are in different orders,
    every index is read, which takes seconds for the 75 of ImageNet-C.
    """
    manifests = dict(_read_manifests(benchmark, locations))
    if len({manifest.order.sha256 for manifest in manifests.values()}) < 2:
        return {}  # the same keys in the same order
    sizes = Counter(manifest.num_samples for manifest in manifests.values())
    usual_size = max(sizes, key=lambda size: (sizes[size], size))
    counts, shown = dict[Cell, tuple[int, int]](), dict[Cell, tuple[int, bytes]]()
    photographs = Photographs(benchmark.photograph_pattern)
    for cell in manifests:
        with suppress(ManifestError):
            index = ShardSet.open(locations.shards(benchmark.name, cell)).index
            counts[cell] = len(index), len(np.unique(index.labels))
            if benchmark.dataset.severities:
                numbered = photographs.number(index.keys, cell)
                shown[cell] = numbered.group, np.unique(numbered.numbers).tobytes()
    votes = Counter(counts.values())
    usual = max(votes, key=lambda each: (each[0] == usual_size, votes[each], each), default=(0, 0))
    alike = [shown[cell] for cell in shown if counts[cell] == usual]
    usually_shown = max(alike, key=alike.count, default=None)
    uneven = {}
    for cell, (num_images, num_classes) in counts.items():
        if counts[cell] != usual:
            uneven[cell] = (
                f"{cell.key} has {num_images:,} images of {num_classes:,} classes, but other cells have {usual[0]:,} "
                f"images of {usual[1]:,} classes"
            )
        elif usually_shown not in (None, shown.get(cell)):
            uneven[cell] = (
                f"{cell.key} shows different photographs from the other cells, judging by the names of the images"
            )
    return uneven


def _read_manifests(benchmark: Benchmark, locations: Locations) -> Iterator[tuple[Cell, Manifest]]:
    for cell in benchmark.cells:
        with suppress(ManifestError, ClassMapError):  # reported when these shards are used
            folder = locations.shards(benchmark.name, cell)
            yield cell, read_manifest(folder, expected_for_cell(locations, benchmark.name, cell))
