"""Preparation of a segment: check the shards against their manifests, and plan the order of samples."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from tta_pipeline.benchmarks.experiment_specs import Experiment
from tta_pipeline.benchmarks.protocol import Subset
from tta_pipeline.benchmarks.protocols.stream_protocol import Samples
from tta_pipeline.domain.ordering import Indices
from tta_pipeline.evaluation.timing import timed
from tta_pipeline.loading.joined_sets import JoinedSets
from tta_pipeline.loading.stream_order import StreamOrder, order_of
from tta_pipeline.loading.subset import (
    draw_long_tail,
    draw_positions,
    first_positions,
    read_listed_names,
    read_listed_positions,
)
from tta_pipeline.shards.expected_shard_set import ANYTHING, ExpectedShardSet
from tta_pipeline.shards.sample_index import SampleIndex
from tta_pipeline.shards.set_facts import Manifest
from tta_pipeline.shards.shard_set import ShardSet


@dataclass(frozen=True, kw_only=True)
class OpenStream:
    """Shard sets that were checked against their manifests, in the order in which they are streamed."""

    joined: JoinedSets
    order: StreamOrder
    metadata_scan_s: float = 0.0
    order_name: str = "stored"
    """Name of the order within a segment."""

    @property
    def manifests(self) -> tuple[Manifest, ...]:
        """Manifest of each set of known images."""
        return tuple(shard_set.manifest for shard_set in self.joined.known_sets)

    @property
    def unknown_manifests(self) -> tuple[Manifest, ...]:
        """Manifest of each set of unknown images."""
        return tuple(shard_set.manifest for shard_set in self.joined.unknown_sets)

    @cached_property
    def name(self) -> str:
        """Folders of the sets, for messages."""
        return ", ".join(str(shard_set.folder) for shard_set in self.joined.sets)


def open_stream(
    folders: Sequence[Path],
    *,
    belonging: Sequence[ExpectedShardSet] | None = None,
    experiment: Experiment | None = None,
    seed: int = 0,
) -> OpenStream:
    """Read the manifests and indices in *folders*, check the shards, and plan their stream.

    Without an *experiment*, all samples are streamed in stored order. May run in another thread.

    Args:
        folders: Folders of the shard sets.
        belonging: Expectations that each shard set must meet; None: none.
        experiment: Experiment that selects the samples and their order.
        seed: Seed of that order.

    Raises:
        ManifestError: a manifest and its shards disagree, or the manifest belongs to another shard set.
        StreamError: the subset names missing samples, or cells lack images that the order needs.
    """
    with timed() as scan:
        sets = tuple(
            ShardSet.open(*place) for place in zip(folders, belonging or [ANYTHING] * len(folders), strict=True)
        )
        opened = order_sets(sets, subset=experiment.subset if experiment else None, experiment=experiment, seed=seed)
    return replace(opened, metadata_scan_s=scan.wall_s)


def order_sets(
    sets: tuple[ShardSet, ...],
    *,
    subset: Subset | None,
    experiment: Experiment | None = None,
    seed: int = 0,
) -> OpenStream:
    """Check *sets* and plan the stream of their *subset*; see `open_stream`.

    Raises:
        ManifestError, StreamError: see `open_stream`.
    """
    for shard_set in sets:
        shard_set.require_intact()
    joined = JoinedSets(sets=sets)
    positions = [_select_positions(shard_set, subset) for shard_set in sets]
    return OpenStream(
        joined=joined,
        order=_order_samples(joined, positions, experiment, seed),
        order_name=experiment.stream_order if experiment else "stored",
    )


def _select_positions(shard_set: ShardSet, chosen: Subset | None) -> Indices:
    """Return the positions of the selected samples, shape (M,)."""
    index = shard_set.index
    if chosen is None:
        return np.arange(len(index))
    if chosen.file:
        return read_listed_positions(shard_set, chosen.file.expanduser())
    if chosen.first:
        return first_positions(index, chosen.first)
    if chosen.imbalance_factor:
        return draw_long_tail(index, chosen.imbalance_factor, seed=chosen.seed)
    return draw_positions(index, chosen.random or 0, seed=chosen.seed)


def _order_samples(
    joined: JoinedSets, positions: Sequence[Indices], experiment: Experiment | None, seed: int
) -> StreamOrder:
    index = joined.index
    everything = np.concatenate([places + start for places, start in zip(positions, joined.starts, strict=False)])
    if experiment is None:
        return order_of(index, everything)
    selected = SampleIndex(table=index.table.take(everything)) if len(everything) < len(index) else index
    listed = experiment.subset and experiment.subset.file
    samples = Samples(
        keys=selected.keys,
        source_names=selected.source_names,
        labels=selected.labels,
        cells=[shard_set.manifest.cell for shard_set in joined.sets],
        cell_numbers=joined.set_numbers(everything),
        listed_names=read_listed_names(listed.expanduser()) if listed else (),
    )
    found = experiment.protocol.order_samples(samples, name=experiment.stream_order, seed=seed)
    return order_of(index, everything[found])
