"""Base classes of protocols: a protocol decides a stream's segments, their order, and how the method is fed."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from tta_pipeline.benchmarks.protocols.driver import ProtocolDriver
from tta_pipeline.domain.cells import Cell
from tta_pipeline.domain.ordering import Indices
from tta_pipeline.domain.streams import Segment

if TYPE_CHECKING:
    from tta_pipeline.methods.method import Method

Partition = Literal["cell", "severity", "nothing"]
"""The part of a benchmark that one stream covers; nothing: everything."""


@dataclass(frozen=True, kw_only=True)
class Samples:
    """The N samples of a segment, one cell after another: all that their order can depend on, besides a seed."""

    keys: Sequence[str]
    """Key of each sample; with several cells, it begins with the sample's cell."""
    source_names: Sequence[str]
    """Name of each sample in the source; it is the same in all cells that show the same photograph."""
    labels: Indices
    """Label of each sample, shape (N,)."""
    cells: Sequence[Cell]
    cell_numbers: Indices
    """Position in `cells` of each sample's cell, shape (N,)."""
    listed_names: Sequence[str] = ()
    """Source names in the list of the subset, in the order of its lines."""

    def of_cell(self, number: int) -> tuple[Indices, "Samples"]:
        """Return the positions of the samples of one of the cells, shape (M,), and these samples."""
        positions = np.flatnonzero(self.cell_numbers == number)
        own = Samples(
            keys=[self.keys[position] for position in positions.tolist()],
            source_names=[self.source_names[position] for position in positions.tolist()],
            labels=self.labels[positions],
            cells=[self.cells[number]],
            cell_numbers=np.zeros(len(positions), np.int64),
            listed_names=self.listed_names,
        )
        return positions, own


@dataclass(frozen=True, kw_only=True)
class SampleOrder(ABC):
    """An order of samples, made with its settings: its fields are fields of `Protocol`."""

    is_correlated: ClassVar[bool] = False
    """Whether neighbours often have the same class, as the protocol's name implies."""
    needs_list: ClassVar[bool] = False
    """Whether the order follows the subset's list."""
    version: ClassVar[str | None] = None
    """Version of the order if its draws have changed; results in the earlier order then do not count."""

    @abstractmethod
    def order(self, samples: Samples, *, seed: int) -> Indices:
        """Return the position of each of the *samples* once, in the order that *seed* decides, shape (N,)."""


@dataclass(frozen=True, kw_only=True)
class StreamProtocol:
    """A value of `Protocol.shift`, made with its settings: its fields are fields of `Protocol`.

    By default a stream is one segment with all its cells, and the method gets each batch once. The first line of the
    docstring describes the value in the reference.
    """

    partitioned_by: ClassVar[Partition] = "severity"
    """The part of the benchmark that one stream covers: a cell, a severity, or everything."""
    usual_order: ClassVar[str] = "stored"
    """Order of the samples if the file names none; an order that is in no table belongs to this protocol alone."""
    only_usual_because: ClassVar[str] = ""
    """Why the file cannot name another order than the usual one; empty: it can."""
    has_every_sample: ClassVar[bool] = True
    """Whether the stream has each sample of its cells."""
    takes_unknown: ClassVar[bool] = True
    """Whether unknown images can be anywhere among the known ones of their cell."""

    def segments(self, cells: Sequence[Cell], *, seed: int) -> tuple[Segment, ...]:  # noqa: ARG002 - for subclasses
        """Return the segments of a stream of *cells*, which come corruption by corruption, as in the file."""
        return number_segments([tuple(cells)])

    def order(self, samples: Samples, within: SampleOrder, *, seed: int) -> Indices:
        """Return the position of each of a segment's *samples* once, shape (N,); *within* is the order of the file."""
        return within.order(samples, seed=seed)

    def drive(self, method: "Method") -> ProtocolDriver:
        """Return the driver that feeds the batches to *method*."""
        return ProtocolDriver(method)


def number_segments(cells: Iterable[tuple[Cell, ...]], *, num_visits: int = 1) -> tuple[Segment, ...]:
    """Return segments with *cells*, one item per segment, and repeat all segments *num_visits* times."""
    every = list(cells)
    return tuple(
        Segment(position=visit * len(every) + place, cells=own, visit=visit + 1 if num_visits > 1 else None)
        for visit in range(num_visits)
        for place, own in enumerate(every)
    )


def by_corruption(cells: Iterable[Cell]) -> list[list[Cell]]:
    """Return the cells of each corruption, by rising severity."""
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        found.setdefault(cell.corruption, []).append(cell)
    return [sorted(own) for own in found.values()]
