"""Calibration as sums over bins, which add up exactly over batches, cells and machines."""

import math

import numpy as np
import numpy.typing as npt
import torch

from tta_pipeline.domain.ordering import Indices
from tta_pipeline.loading.joined_sets import JoinedSets
from tta_pipeline.results.evaluation_parts import CalibrationBins
from tta_pipeline.shards.shard_set import ShardSet

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
    """Return the calibration error in [0, 1] of *confidences* and *correct*, (N,), in 15 equally large bins.

    Nguyen and O'Connor 2015, "Posterior calibration and exploratory analysis for natural language processing models".
    Samples of equal confidence each count as their mean, so that their order does not matter.
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


_ONE = 2**30
"""The sums' unit for 1: a sum of whole numbers does not depend on their order, which varies on a GPU."""


class ClassGaps:
    """Sums, over the known samples of each cell, of a class's probability minus whether it is the sample's class.

    A sample is in one of 15 bins for each class, by the probability of that class. The sums stay on the device.
    """

    def __init__(self, samples: ShardSet | JoinedSets) -> None:
        self._joined = samples if isinstance(samples, JoinedSets) and len(samples.known_sets) > 1 else None
        self._num_cells = len(self._joined.known_sets) if self._joined else 1
        self._sums: torch.Tensor | None = None
        self._shape = (self._num_cells, 0, NUM_BINS)

    def add(self, log_probabilities: torch.Tensor, labels: torch.Tensor, indices: Indices) -> None:
        """Add a batch of *log_probabilities*, float32 (B, K), with *labels*, int64 (B,), at *indices*, (B,)."""
        device, num_classes = log_probabilities.device, log_probabilities.shape[1]
        if self._sums is None:
            self._shape = (self._num_cells, num_classes, NUM_BINS)
            self._sums = torch.zeros(math.prod(self._shape), dtype=torch.int64, device=device)
        labels = labels.to(device, non_blocking=True)[:, None]
        probabilities = log_probabilities.exp().nan_to_num(0.0)
        bins = (probabilities * NUM_BINS).ceil().long().sub(1).clamp(0, NUM_BINS - 1)
        places = bins + NUM_BINS * torch.arange(num_classes, device=device)
        if self._joined is not None:
            # The cell number of an unknown sample is above all numbers of known samples; it adds 0 to any cell.
            cells = torch.from_numpy(self._joined.set_numbers(indices) % self._num_cells)
            places = places + NUM_BINS * num_classes * cells.to(device, non_blocking=True)[:, None]
        gaps = (probabilities * _ONE).round().long()
        gaps = gaps.scatter_add(1, labels.clamp(min=0), torch.full_like(labels, -_ONE)) * (labels >= 0)
        self._sums.index_add_(0, places.flatten(), gaps.flatten())

    def fetch(self) -> npt.NDArray[np.float64]:
        """Return the sums, shape (C, K, 15), with a row for each cell."""
        assert self._sums is not None, "no batch was added"
        return self._sums.reshape(self._shape).cpu().numpy() / _ONE


def area_under_risk_coverage(confidences: npt.NDArray[np.float64], correct: npt.NDArray[np.bool_]) -> float:
    """Return the mean, over n, of the error of the n most confident samples; *confidences* and *correct* are (N,).

    Geifman and El-Yaniv 2017, "Selective classification for deep neural networks", section 2, as the mean of their
    curve. Samples of equal confidence each count as their mean, so that their order does not matter.
    """
    _, right = _surest_first(confidences, correct)
    return float((np.cumsum(1 - right) / np.arange(1, len(right) + 1)).mean())


def _surest_first(
    confidences: npt.NDArray[np.float64], correct: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the confidences in descending order, and the accuracy of the samples with each confidence, both (N,)."""
    levels, places, counts = np.unique(confidences, return_inverse=True, return_counts=True)
    shares = np.bincount(places, correct) / counts
    return np.repeat(levels, counts)[::-1], np.repeat(shares, counts)[::-1]
