"""Calibration as sums over bins, which add up exactly over batches, cells and machines."""

import numpy as np
import numpy.typing as npt

from tta_pipeline.results.evaluation_record import CalibrationBins

NUM_BINS = 15


def calibration_bins(confidences: npt.NDArray[np.float64], correct: npt.NDArray[np.bool_]) -> CalibrationBins:
    """Return the sums in each of 15 bins over *confidences* in [0, 1] and *correct*, both (N,)."""
    bins = np.clip(np.ceil(confidences * NUM_BINS).astype(np.int64) - 1, 0, NUM_BINS - 1)
    return CalibrationBins(
        counts=tuple(np.bincount(bins, minlength=NUM_BINS).tolist()),
        confidence_sums=tuple(np.bincount(bins, confidences, minlength=NUM_BINS).tolist()),
        correct_counts=tuple(np.bincount(bins, correct, minlength=NUM_BINS).astype(np.int64).tolist()),
    )
