"""Calibration as sums over bins, which add up exactly over batches, cells and machines."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

NUM_BINS = 15


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibrationBins:
    """Sums over equal-width bins of top-1 confidence in [0, 1], lowest bin first."""

    counts: tuple[int, ...]
    confidence_sums: tuple[float, ...]
    correct_counts: tuple[int, ...]

    @property
    def ece(self) -> float:
        """Expected calibration error in [0, 1]: the mean over samples of |accuracy - confidence| of their bin.

        Guo et al. 2017, "On calibration of modern neural networks", equation 3, with 15 bins as torchmetrics has it.
        """
        return float(self._gap_sums.sum() / sum(self.counts))

    @property
    def max_error(self) -> float:
        """Maximum calibration error in [0, 1]: the largest |accuracy - confidence| of a bin (Guo et al., section 2)."""
        return float(self._gaps.max())

    @property
    def rms_error(self) -> float:
        """Root mean square calibration error in [0, 1]: the mean is over samples, of the squared gap of their bin.

        As torchmetrics has it with norm l2.
        """
        return float(np.sqrt(np.average(np.square(self._gaps), weights=self.counts)))

    @property
    def _gap_sums(self) -> npt.NDArray[np.float64]:
        return np.abs(np.subtract(self.correct_counts, self.confidence_sums))

    @property
    def _gaps(self) -> npt.NDArray[np.float64]:
        return self._gap_sums / np.maximum(self.counts, 1)


def calibration_bins(confidences: npt.NDArray[np.float64], correct: npt.NDArray[np.bool_]) -> CalibrationBins:
    """Return the sums over *confidences* in [0, 1] and *correct*, both (N,)."""
    bins = np.clip(np.ceil(confidences * NUM_BINS).astype(np.int64) - 1, 0, NUM_BINS - 1)
    return CalibrationBins(
        counts=tuple(np.bincount(bins, minlength=NUM_BINS).tolist()),
        confidence_sums=tuple(np.bincount(bins, confidences, minlength=NUM_BINS).tolist()),
        correct_counts=tuple(np.bincount(bins, correct, minlength=NUM_BINS).astype(np.int64).tolist()),
    )
