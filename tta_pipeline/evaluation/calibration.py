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


def adaptive_calibration_error(confidences: npt.NDArray[np.float64], correct: npt.NDArray[np.bool_]) -> float:
    """Return the calibration error in [0, 1] of *confidences* and *correct*, (N,), in 15 bins of equally many samples.

    Nguyen and O'Connor 2015, "Posterior calibration and exploratory analysis for natural language processing models".
    Samples of equal confidence each count as the mean of them, so that their order decides nothing.
    """
    sure, right = _surest_first(confidences, correct)
    parts = zip(np.array_split(sure, NUM_BINS), np.array_split(right, NUM_BINS), strict=True)
    return float(sum(abs((one - other).sum()) for one, other in parts)) / len(sure)


def class_wise_calibration_error(gaps: npt.NDArray[np.float64], num_samples: int) -> float:
    """Return the mean over classes of the calibration error of the class's probability, in [0, 1].

    Kull et al. 2019, "Beyond temperature scaling: obtaining well-calibrated multi-class probabilities with Dirichlet
    calibration", section 2: in each of 15 equal-width bins of a class's probability, |sum of probabilities - number of
    samples of the class|, over the number of all samples.

    Args:
        gaps: Sum of probabilities minus number of samples of the class, by class and bin, shape (K, 15).
        num_samples: Number of samples behind the sums.
    """
    return float(np.abs(gaps).sum()) / (len(gaps) * num_samples)


def area_under_risk_coverage(confidences: npt.NDArray[np.float64], correct: npt.NDArray[np.bool_]) -> float:
    """Return the mean, over n, of the error of the n samples of highest *confidences*, (N,); *correct* is (N,).

    Geifman and El-Yaniv 2017, "Selective classification for deep neural networks", section 2, as the mean of their
    curve. Samples of equal confidence each count as the mean of them, so that their order decides nothing.
    """
    _, right = _surest_first(confidences, correct)
    return float((np.cumsum(1 - right) / np.arange(1, len(right) + 1)).mean())


def _surest_first(
    confidences: npt.NDArray[np.float64], correct: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the confidences in descending order, and the share of correct ones among the equals of each, both (N,)."""
    levels, places, counts = np.unique(confidences, return_inverse=True, return_counts=True)
    shares = np.bincount(places, correct) / counts
    return np.repeat(levels, counts)[::-1], np.repeat(shares, counts)[::-1]
