"""How well scores separate known from unknown images, and the threshold between them. Known is the positive class."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from tta_pipeline.benchmarks.protocols.driver import ProtocolDriver, eager_unless
from tta_pipeline.evaluation.device.arithmetic import Precision
from tta_pipeline.evaluation.feature_cache import FeatureLoader
from tta_pipeline.evaluation.one_pass import autocast
from tta_pipeline.evaluation.scores import SampleScores
from tta_pipeline.loading.device import as_floats, move_to_device
from tta_pipeline.loading.reader import Stream
from tta_pipeline.results.evaluation_parts import UnknownScores

Scores = npt.NDArray[np.float64]
_KEPT_PERCENT = 95
"""Percentage of known images that the threshold keeps."""


class Separation(NamedTuple):
    """How well scores separate known from unknown images."""

    auroc: float
    """Area under the receiver operating characteristic: the probability that a known image has the higher score."""
    fpr95: float
    """Share of unknown images above the threshold that keeps 95 % of the known images."""
    aupr: float
    """Average precision: the sum over thresholds of precision x increase of recall."""


def separation(known: Scores, unknown: Scores) -> Separation:
    """Return how well *known* scores, (N,), are above *unknown* scores, (M,); ties count half in AUROC."""
    below, not_above = (np.searchsorted(np.sort(unknown), known, side=side) for side in ("left", "right"))
    auroc = float(below.sum() + not_above.sum()) / (2 * len(known) * len(unknown))
    fpr95 = float((unknown >= keeping_threshold(known)).mean())
    return Separation(auroc=auroc, fpr95=fpr95, aupr=_average_precision(known, unknown))


def keeping_threshold(known: Scores) -> float:
    """Return the highest threshold that 95 % of *known* scores, (N,), reach."""
    num_kept = -(-_KEPT_PERCENT * len(known) // 100)
    return float(np.sort(known)[len(known) - num_kept])


def _average_precision(known: Scores, unknown: Scores) -> float:
    scores, counts = np.unique(known, return_counts=True)
    num_known = np.cumsum(counts[::-1])[::-1]
    num_unknown = len(unknown) - np.searchsorted(np.sort(unknown), scores, side="left")
    return float((counts * num_known / (num_known + num_unknown)).sum() / len(known))


def unknown_scores(
    known: SampleScores[npt.NDArray[Any]], unknown: SampleScores[npt.NDArray[Any]], threshold: float | None
) -> UnknownScores:
    """Return the part of a record about *unknown* samples among *known* samples.

    *threshold* is the score at or above which an image counts as known, or None.
    """
    # A broken model's score is NaN; it counts as 0, as its confidence does.
    scores, others = np.nan_to_num(known.known_scores), np.nan_to_num(unknown.known_scores)
    found = separation(scores, others)
    rejected, h_score = None, None
    if threshold is not None:
        rejected = float((others < threshold).mean())
        accuracy = float(((known.predictions == known.labels) & (scores >= threshold)).mean())
        h_score = 2 * accuracy * rejected / (accuracy + rejected) if accuracy + rejected else 0.0
    return UnknownScores(
        num_unknown=len(others),
        auroc=found.auroc,
        fpr95=found.fpr95,
        aupr=found.aupr,
        known_threshold=threshold,
        unknown_rejected=rejected,
        h_score=h_score,
    )


def threshold_of_clean(
    network: nn.Module,
    stream: Stream | FeatureLoader,
    driver: ProtocolDriver,
    *,
    device: torch.device,
    precision: Precision,
) -> float:
    """Return the threshold that keeps 95 % of the clean images of *stream*, as *network*, the source model, sees them.

    The method of *driver* computes their scores. It sees only logits, and does not change.
    """
    scores = torch.cat(list(_clean_scores(network.eval(), stream, driver, device=device, precision=precision)))
    return keeping_threshold(np.nan_to_num(scores.double().cpu().numpy()))


def _clean_scores(
    network: nn.Module,
    stream: Stream | FeatureLoader,
    driver: ProtocolDriver,
    *,
    device: torch.device,
    precision: Precision,
) -> Iterable[torch.Tensor]:
    for batch in move_to_device(stream, device):
        is_whole = len(batch.images) == stream.batch_size
        with torch.inference_mode(), eager_unless(is_whole), autocast(device, precision):
            logits = network(as_floats(batch.images)).float()
            own = driver.confidence(logits)
            yield driver.class_logits(logits).softmax(1).amax(1) if own is None else own
