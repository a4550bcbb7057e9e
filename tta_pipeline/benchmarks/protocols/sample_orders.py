"""The orders of the samples in a cell, or in a whole mixed stream."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tta_pipeline.benchmarks.protocols.stream_protocol import SampleOrder, Samples
from tta_pipeline.domain import ordering
from tta_pipeline.domain.ordering import Indices


@dataclass(frozen=True, kw_only=True)
class Stored(SampleOrder):
    """The order of the samples in the shards, as permuted by sharding."""

    def order(self, samples: Samples, *, seed: int) -> Indices:  # noqa: ARG002 - nothing is drawn
        """Return the positions from 0."""
        return np.arange(len(samples.keys))


@dataclass(frozen=True, kw_only=True)
class Shuffled(SampleOrder):
    """A permutation of all samples."""

    def order(self, samples: Samples, *, seed: int) -> Indices:
        """Return the samples as `ordering.permuted` ranks their keys."""
        return ordering.permuted(samples.keys, seed=seed)


@dataclass(frozen=True, kw_only=True)
class ByClass(SampleOrder):
    """All samples of the first class or classes, then of the next ones; see `ordering.by_class`."""

    is_correlated: ClassVar[bool] = True
    classes_per_batch: int | None = None

    def order(self, samples: Samples, *, seed: int) -> Indices:
        """Return the samples sorted by label, or by groups of labels that *seed* draws."""
        return ordering.by_class(samples.keys, samples.labels, seed=seed, num_at_once=self.classes_per_batch)


@dataclass(frozen=True, kw_only=True)
class Dirichlet(SampleOrder):
    """An order in which classes come and go, drawn for each cell; see `ordering.dirichlet`."""

    is_correlated: ClassVar[bool] = True
    version: ClassVar[str | None] = "2"
    """1 permuted all images of a time slot, and drew the same for all cells of a visit."""
    delta: float

    def order(self, samples: Samples, *, seed: int) -> Indices:
        """Return the samples dealt over time slots; mixed cells are one domain."""
        own = ordering.domain_seed(seed, " ".join(sorted(cell.key for cell in samples.cells)))
        return ordering.dirichlet(samples.keys, samples.labels, seed=own, delta=self.delta)


@dataclass(frozen=True, kw_only=True)
class Listed(SampleOrder):
    """The order of the lines of the subset's list; samples of one name as they are stored."""

    needs_list: ClassVar[bool] = True

    def order(self, samples: Samples, *, seed: int) -> Indices:  # noqa: ARG002 - nothing is drawn
        """Return the samples by the place of their source names in the list, which has them all."""
        place = {name: number for number, name in enumerate(samples.listed_names)}
        return np.argsort(np.array([place[name] for name in samples.source_names], np.int64), kind="stable")
