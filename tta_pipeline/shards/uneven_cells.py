"""Cells of a benchmark that do not show the same images as most: their errors and the means over them mislead."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.errors import ClassMapError, ManifestError
from tta_pipeline.shards.expected_shard_set import expected_for_cell
from tta_pipeline.shards.manifest import read_manifest
from tta_pipeline.shards.photographs import Photographs
from tta_pipeline.shards.set_facts import Manifest
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.util.locations import Locations
from tta_pipeline.util.partitions import Cell


@dataclass(frozen=True, kw_only=True)
class _Contents:
    """The images of a cell."""

    num_images: int
    num_classes: int
    """Number of classes that have images."""
    photographs: tuple[int, bytes]
    """Which photographs they show, see `Numbered`."""

    @property
    def counts(self) -> tuple[int, int]:
        """Number of images and of classes."""
        return self.num_images, self.num_classes


def find_uneven_cells(benchmark: Benchmark, locations: Locations) -> Mapping[Cell, str]:
    """Return the cells of *benchmark* with other images than most of those that have a manifest, and what they have.

    Photographs are compared if the shift set has severities: without them, as in ImageNetV2, each cell has its own.
    """
    manifests = dict(_read_manifests(benchmark, locations))
    if len({manifest.order.sha256 for manifest in manifests.values()}) < 2:
        return {}  # the same keys in the same order
    found = dict(_read_contents(benchmark, locations, manifests))
    votes = Counter(each.counts for each in found.values())
    usual = max(votes, key=lambda each: (votes[each], each), default=(0, 0))
    alike = [each.photographs for each in found.values() if each.counts == usual and benchmark.shift_set.severities]
    shown = max(alike, key=alike.count, default=None)
    num_images, num_classes = usual
    uneven = {}
    for cell, each in found.items():
        if each.counts != usual:
            uneven[cell] = (
                f"{cell.key} has {each.num_images:,} images of {each.num_classes:,} classes, where other cells have "
                f"{num_images:,} of {num_classes:,}"
            )
        elif shown not in (None, each.photographs):
            uneven[cell] = f"{cell.key} has other photographs than other cells, by the names of the images"
    return uneven


def _read_manifests(benchmark: Benchmark, locations: Locations) -> Iterator[tuple[Cell, Manifest]]:
    for cell in benchmark.cells:
        with suppress(ManifestError, ClassMapError):  # whoever needs these shards says what is wrong with them
            folder = locations.shards(benchmark.name, cell)
            yield cell, read_manifest(folder, expected_for_cell(locations, benchmark.name, cell))


def _read_contents(
    benchmark: Benchmark, locations: Locations, cells: Iterable[Cell]
) -> Iterator[tuple[Cell, _Contents]]:
    photographs = Photographs(benchmark.photograph_pattern)
    for cell in cells:
        with suppress(ManifestError):
            index = ShardSet.open(locations.shards(benchmark.name, cell)).index
            numbered = photographs.number(index.keys, cell)
            yield (
                cell,
                _Contents(
                    num_images=len(index),
                    num_classes=len(np.unique(index.labels)),
                    photographs=(numbered.group, np.unique(numbered.numbers).tobytes()),
                ),
            )
