"""The share of each cell in a pass over a stream: its samples, and its part of the cost."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tta_pipeline.evaluation.measured_pass import Measurement
from tta_pipeline.evaluation.scores import SampleScores, select_samples


@dataclass(frozen=True, kw_only=True)
class CellShare:
    """Share of one cell in a stream of several cells, by number of samples."""

    num_before: int
    """Number of samples in the preceding cells."""
    num_own: int
    num_all: int

    def of(self, total: float) -> float:
        """Return the cell's share of *total*."""
        return total * self.num_own / self.num_all

    def of_count(self, total: int) -> int:
        """Return the cell's share of *total* as a whole number; the shares of all cells add up to *total*."""
        return total * (self.num_before + self.num_own) // self.num_all - total * self.num_before // self.num_all


@dataclass(frozen=True, kw_only=True)
class CellOfPass:
    """The part of a pass that belongs to one cell."""

    number: int
    """Position of the cell in the stream."""
    scores: SampleScores[npt.NDArray[Any]]
    positions: npt.NDArray[np.int64]
    """Positions of the samples in the cell, shape (M,)."""
    class_gaps: npt.NDArray[np.float64]
    """Sums of `ClassGaps` over the samples, shape (K, 15)."""
    unknown: SampleScores[npt.NDArray[Any]] | None = None
    """Scores of the unknown samples among them; None in a closed stream."""
    share: CellShare


def cells_of_pass(measurement: Measurement) -> Iterator[CellOfPass]:
    """Yield the part of each cell in the pass, in the order of the stream's cells."""
    opened, scores = measurement.opened, measurement.measured.collected.samples
    set_numbers = opened.joined.set_numbers(scores.indices)
    num_before = 0
    num_cells, is_open = len(opened.manifests), bool(opened.unknown_manifests)
    for number in range(num_cells):
        is_in, is_unknown = set_numbers == number, set_numbers == number + num_cells
        own = select_samples(scores, is_in)
        num_own = int(is_in.sum()) + int(is_unknown.sum())
        share = CellShare(num_before=num_before, num_own=num_own, num_all=len(is_in))
        num_before += share.num_own
        yield CellOfPass(
            number=number,
            scores=own,
            positions=own.indices - opened.joined.starts[number],
            class_gaps=measurement.measured.collected.class_gaps[number],
            share=share,
            unknown=select_samples(scores, is_unknown) if is_open else None,
        )
