"""Scores of each sample's prediction, and the means and counts computed from them.

Definitions are in docs/reference/metrics.md. If you change a definition, raise METRICS_VERSION
(`results/evaluation_record.py`), which is stored with the values.
"""

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from tta_pipeline.results.evaluation_parts import ClassCounts

TOP = 5
UNKNOWN_PREDICTION = -1
"""Placeholder for a prediction of the source model, or for a second view, that was not made."""
_TEMPERATURE = 0.05
_MOST_NEIGHBOURS = 5000
_NEIGHBOUR_ROWS = 512
"""Rows of the matrix of similarities that are computed together."""
Column = TypeVar("Column")


class SampleScores(NamedTuple, Generic[Column]):
    """Scores of each sample of a stream, in columns of shape (N,), except for `probabilities`.

    During a pass the columns are tensors, with the scores on the device that computed them; afterwards they are NumPy
    arrays, with float64 for floats.
    """

    indices: Column
    """int64: position in the sample index of the stream."""
    labels: Column
    """int64; `UNKNOWN_LABEL` for a sample that belongs to no class, whose scores by label mean nothing."""
    predictions: Column
    """int64: the predicted label."""
    confidences: Column
    """float: the probability of the predicted class."""
    label_ranks: Column
    """int64: number of classes whose probability is above the label's, or NaN; 0 is best."""
    log_likelihoods: Column
    """float: natural logarithm of the label's probability."""
    brier_scores: Column
    """float in [0, 2]: squared distance of the probabilities from the label's one-hot vector."""
    entropies: Column
    """float in [0, ln K]: entropy of the probabilities, in nats."""
    source_predictions: Column
    """int64: the label that the source model predicts, or `UNKNOWN_PREDICTION` if the method does not compute it."""
    known_scores: Column
    """float: score that the sample belongs to a known class; the confidence unless the method has its own score."""
    view_predictions: Column
    """int64: the label predicted for a second view of the image, or `UNKNOWN_PREDICTION` without a probe."""
    probabilities: Column
    """float, shape (N, K): the probabilities of all classes; (N, 0) without a probe."""


def score_samples(
    log_probabilities: torch.Tensor,
    labels: torch.Tensor,
    indices: torch.Tensor,
    *,
    source_logits: torch.Tensor | None = None,
    known_scores: torch.Tensor | None = None,
    view_predictions: torch.Tensor | None = None,
    keeps_probabilities: bool = False,
) -> SampleScores[torch.Tensor]:
    """Score *log_probabilities*, float32 (B, K), by *labels*, int64 (B,), without making the host wait for the device.

    *source_logits*, (B, K), are the source model's for the same samples; None: the method does not have them.
    *known_scores*, (B,), are the method's own scores that samples are known; None: the confidences. *view_predictions*,
    int64 (B,), are the predictions for second views, if any.

    Ranks are computed from logarithms: if a method is nearly certain, float32 probabilities of all other classes are 0.
    For NaN logits, scores are NaN and the label has the last rank.
    """
    column = labels.to(log_probabilities.device, non_blocking=True)[:, None].clamp(min=0)
    best, predictions = log_probabilities.max(1)
    of_label = log_probabilities.gather(1, column)
    probabilities, confidences = log_probabilities.exp(), best.exp()
    nobody = torch.full_like(indices, UNKNOWN_PREDICTION)
    distances = probabilities.scatter(1, column, of_label.exp() - 1)
    return SampleScores(
        indices=indices,
        labels=labels,
        predictions=predictions,
        confidences=confidences,
        label_ranks=(~(log_probabilities <= of_label)).sum(1),
        log_likelihoods=of_label[:, 0],
        brier_scores=distances.square().sum(1),
        known_scores=confidences if known_scores is None else known_scores,
        entropies=-(probabilities * log_probabilities).sum(1),  # a tenth of the time of `torch.special.entr`
        source_predictions=nobody if source_logits is None else source_logits.argmax(1),
        view_predictions=nobody if view_predictions is None else view_predictions,
        # A view would keep the memory of all classes.
        probabilities=probabilities if keeps_probabilities else probabilities.new_empty((len(probabilities), 0)),
    )


def fetch_scores(batches: Sequence[SampleScores[torch.Tensor]]) -> SampleScores[npt.NDArray[Any]]:
    """Return the concatenated samples of *batches*, fetched from the device."""
    columns = (torch.cat(column).cpu() for column in zip(*batches, strict=True))
    return SampleScores(*((column.double() if column.is_floating_point() else column).numpy() for column in columns))


def select_samples(
    samples: SampleScores[npt.NDArray[Any]], which: slice | npt.NDArray[np.bool_]
) -> SampleScores[npt.NDArray[Any]]:
    """Return the samples that *which* selects."""
    return SampleScores(*(column[which] for column in samples))


def concatenate_scores(parts: Sequence[SampleScores[npt.NDArray[Any]]]) -> SampleScores[npt.NDArray[Any]]:
    """Return the concatenated samples of *parts*."""
    return SampleScores(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def count_classes(labels: npt.NDArray[np.int64], correct: npt.NDArray[np.bool_], *, num_classes: int) -> ClassCounts:
    """Return the number of samples and of correct ones in each class, from *labels* and *correct*, both (N,)."""
    return ClassCounts(
        num_samples=tuple(np.bincount(labels, minlength=num_classes).tolist()),
        num_correct=tuple(np.bincount(labels[correct], minlength=num_classes).tolist()),
    )


def label_free_scores(
    samples: SampleScores[npt.NDArray[Any]], sizes: Sequence[int]
) -> dict[str, npt.NDArray[np.float64] | None]:
    """Return the scores without labels of each of the consecutive parts of *samples* that have *sizes*, in order.

    Each score has shape (len(sizes),), by the names in `LABEL_FREE`. It is None where it has no value for all parts:
    a logit is not finite, or the method does not have the source model's predictions.
    """
    agrees = samples.predictions == samples.source_predictions
    columns = {
        "mean_entropy": samples.entropies,
        "mean_confidence": samples.confidences,
        "source_agreement": np.where(samples.source_predictions == UNKNOWN_PREDICTION, np.nan, agrees),
    }
    starts = np.cumsum([0, *sizes[:-1]])
    means = {name: np.add.reduceat(values, starts) / sizes for name, values in columns.items()}
    return {
        **{name: values if np.isfinite(values).all() else None for name, values in means.items()},
        "predicted_class_entropy": _class_entropies(samples.predictions, np.asarray(sizes)),
    }


def _class_entropies(predictions: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return the entropy, in nats, of the class shares in each part of *predictions*, (len(sizes),)."""
    parts = np.repeat(np.arange(len(sizes)), sizes)
    base = int(predictions.max()) + 1
    codes, counts = np.unique(parts * base + predictions, return_counts=True)
    shares = counts / sizes[codes // base]
    return np.abs(np.bincount(codes // base, weights=-shares * np.log(shares), minlength=len(sizes)))


def finite_mean(values: npt.NDArray[np.float64]) -> float | None:
    """Return the mean of *values*, or None if one of them is infinite or NaN, as for a broken model."""
    return float(values.mean()) if np.isfinite(values).all() else None


def neighbourhood_density(probabilities: torch.Tensor) -> float | None:
    """Return the soft neighbourhood density of *probabilities*, (N, K), in nats; higher is denser.

    Saito et al. 2021, "Tune it the right way: unsupervised validation of domain adaptation via soft neighborhood
    density" (ICCV), section 3: each sample's cosine similarities to all others, divided by a temperature of 0.05,
    become a distribution by softmax, and the density is the mean entropy of these distributions. A larger cell is
    represented by 5,000 evenly spaced samples.

    Returns:
        None if there are fewer than two samples or no classes, or a probability is not finite.
    """
    chosen = probabilities[:: -(-len(probabilities) // _MOST_NEIGHBOURS) or 1]
    if len(chosen) < 2 or not chosen.shape[1] or not torch.isfinite(chosen).all():
        return None
    unit = functional.normalize(chosen, dim=1)
    total = 0.0
    for start in range(0, len(unit), _NEIGHBOUR_ROWS):
        similarities = unit[start : start + _NEIGHBOUR_ROWS] @ unit.T / _TEMPERATURE
        similarities.diagonal(start).fill_(-torch.inf)  # no sample is its own neighbour
        logarithms = similarities.log_softmax(1)
        total -= float((logarithms.exp() * logarithms.nan_to_num(neginf=0)).sum())
    return max(total / len(unit), 0.0)
