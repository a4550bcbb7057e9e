"""Streams: the segments that a method processes one after the other, from one state to the next."""

import random
from dataclasses import dataclass

from tta_pipeline.domain.cells import Cell, PartitionKey


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A part of a stream; after each segment, the method's state can be saved and restored."""

    position: int
    """Position of the segment in the stream, from 0."""
    cells: tuple[Cell, ...]
    """Cells of the segment: one, or those that are mixed."""
    visit: int | None = None
    """Number of the visit in a recurring stream, from 1; None in other streams."""

    def order_seed(self, seed: int) -> int:
        """Return the seed of the segment's sample order in a stream of *seed*: each visit has its own seed."""
        # The first visit has the order of a stream without further visits, so that results can be compared.
        return seed if self.visit in (None, 1) else random.Random(f"{seed}, visit {self.visit}").getrandbits(63)  # noqa: S311 - not a secret


@dataclass(frozen=True, kw_only=True)
class StreamPlan:
    """One stream of an experiment."""

    key: PartitionKey
    seed: int
    segments: tuple[Segment, ...]

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Cells of the stream, each once."""
        return tuple(dict.fromkeys(cell for segment in self.segments for cell in segment.cells))
