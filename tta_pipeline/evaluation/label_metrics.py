"""The columns of a record that need labels, from what is kept of each sample: its prediction and confidence.

So labels that come after an evaluation give the columns that labels at the time would have given. Definitions are in
docs/metrics.md.
"""

from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from tta_pipeline.evaluation.calibration import (
    adaptive_calibration_error,
    area_under_risk_coverage,
    calibration_bins,
)
from tta_pipeline.results.evaluation_record import CalibrationBins, ClassCounts

OF_ALL_PROBABILITIES = ("num_correct_top5", "top5_error", "nll", "brier", "class_wise_ece")
"""Columns that need labels and the probabilities of all classes, which are not kept."""
_MIN_COLLAPSED, _COLLAPSED, _VARIED = 10, 0.95, 0.6
"""Limits of a collapse: minimum number of samples, minimum share of the most common prediction, maximum share of the
most common label."""


class LabelMetrics(TypedDict):
    """Columns that follow from predictions, confidences and labels; all but the bins are None without labels."""

    num_correct: int | None
    error: float | None
    ece: float | None
    max_calibration_error: float | None
    rms_calibration_error: float | None
    adaptive_ece: float | None
    aurc: float | None
    calibration: CalibrationBins
    class_counts: ClassCounts | None
    num_classes_found: int | None


def label_metrics(
    predictions: npt.NDArray[np.int64],
    confidences: npt.NDArray[Any],
    labels: npt.NDArray[np.int64],
    *,
    num_classes: int,
    num_classes_found: int,
) -> LabelMetrics:
    """Return the columns for *predictions*, *confidences* and *labels*, all (N,), in stream order.

    Args:
        predictions: Predicted labels.
        confidences: Probability of each predicted class; NaN counts as 0.
        labels: The labels.
        num_classes: Number of classes of the class map.
        num_classes_found: Number of them that have an image in the shard set.
    """
    correct, sure = predictions == labels, np.nan_to_num(confidences.astype(np.float64))
    calibration = calibration_bins(sure, correct)
    return {
        "num_correct": int(correct.sum()),
        "error": 1 - float(correct.mean()),
        "ece": calibration.ece,
        "max_calibration_error": calibration.max_error,
        "rms_calibration_error": calibration.rms_error,
        "adaptive_ece": adaptive_calibration_error(sure, correct),
        "aurc": area_under_risk_coverage(sure, correct),
        "calibration": calibration,
        "class_counts": count_classes(labels, correct, num_classes=num_classes),
        "num_classes_found": num_classes_found,
    }


def metrics_without_labels(confidences: npt.NDArray[Any]) -> LabelMetrics:
    """Return the columns of samples whose classes are not known: only the bins of their *confidences*, (N,)."""
    bins = calibration_bins(np.nan_to_num(confidences.astype(np.float64)), None)
    return {
        "num_correct": None,
        "error": None,
        "ece": None,
        "max_calibration_error": None,
        "rms_calibration_error": None,
        "adaptive_ece": None,
        "aurc": None,
        "calibration": bins,
        "class_counts": None,
        "num_classes_found": None,
    }


def count_classes(labels: npt.NDArray[np.int64], correct: npt.NDArray[np.bool_], *, num_classes: int) -> ClassCounts:
    """Return the number of samples and of correct ones in each class, from *labels* and *correct*, both (N,)."""
    return ClassCounts(
        num_samples=tuple(np.bincount(labels, minlength=num_classes).tolist()),
        num_correct=tuple(np.bincount(labels[correct], minlength=num_classes).tolist()),
    )


def has_collapsed(predictions: npt.NDArray[np.int64], labels: npt.NDArray[np.int64]) -> bool:
    """Return whether nearly all samples of the second half got the same prediction, although their labels vary."""
    later = slice(len(labels) // 2, None)
    shares = [np.unique(of, return_counts=True)[1].max() / len(of) for of in (predictions[later], labels[later])]
    return bool(len(labels[later]) >= _MIN_COLLAPSED and shares[0] > _COLLAPSED and shares[1] < _VARIED)
