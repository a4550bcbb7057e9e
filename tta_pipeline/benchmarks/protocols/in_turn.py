"""Protocols whose streams have one cell after another, without notice of the shifts."""

import random
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from tta_pipeline.benchmarks.protocols.stream_protocol import Partition, StreamProtocol, by_corruption, number_segments
from tta_pipeline.domain.cells import CLEAN, Cell
from tta_pipeline.domain.streams import Segment


@dataclass(frozen=True, kw_only=True)
class _InTurn(StreamProtocol):
    corruption_order: Literal["canonical", "seeded"]
    recurring: int

    def segments(self, cells: Sequence[Cell], *, seed: int) -> tuple[Segment, ...]:
        """Return a segment for each cell of each visit."""
        corruptions = by_corruption(cells)
        if self.corruption_order == "seeded":
            random.Random(seed).shuffle(corruptions)  # noqa: S311 - not a secret
        return number_segments(((cell,) for cell in self._of_a_visit(corruptions)), num_visits=self.recurring)

    @abstractmethod
    def _of_a_visit(self, corruptions: Sequence[Sequence[Cell]]) -> Iterator[Cell]:
        """Yield the cells of one visit; *corruptions* has the cells of each corruption, by rising severity."""


@dataclass(frozen=True, kw_only=True)
class Continual(_InTurn):
    """All corruptions of a severity in turn, without notice of the shifts (CoTTA)."""

    clean: Literal["never", "at_end", "after_each"]

    def _of_a_visit(self, corruptions: Sequence[Sequence[Cell]]) -> Iterator[Cell]:
        for cells in corruptions:
            yield from cells
            if self.clean == "after_each":
                yield CLEAN
        if self.clean == "at_end":
            yield CLEAN


@dataclass(frozen=True, kw_only=True)
class Gradual(_InTurn):
    """Each corruption by severities 1 to 5 and down to 1 (CoTTA, appendix)."""

    partitioned_by: ClassVar[Partition] = "nothing"

    def _of_a_visit(self, corruptions: Sequence[Sequence[Cell]]) -> Iterator[Cell]:
        for rising in corruptions:
            yield from (*rising, *rising[-2::-1])
