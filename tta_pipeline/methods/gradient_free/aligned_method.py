"""Base of methods that align a network's activations with those of source images, by forward passes alone.

Niu et al. 2024, "Test-time model adaptation with only forward passes" (FOA), section 3, which FOZO and ZOA follow:

- The discrepancy (equation 5) compares mean and unbiased standard deviation of each activation over the batch with the
  same moments over source images: squared differences.
- Back-to-source activation shifting (equations 7 to 9): the features, which the classifier reads, move by
  gamma (mu_S - mu(t - 1)), where mu(t) = alpha mu(batch) + (1 - alpha) mu(t - 1). The features of the first batch are
  not shifted, and mu(1) is their mean.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn
from torch.nn.functional import linear

from tta_pipeline.methods.features import Features, find_classifier
from tta_pipeline.methods.gradient_free.entries import AlignedHyperparameters
from tta_pipeline.methods.losses import entropy
from tta_pipeline.methods.method import Method

_BATCH_SIZE_OF_WEIGHT = 64


class AlignedMethod(Method):
    """A method that knows the moments of the source's activations, and shifts features towards the source's mean.

    *inner* returns the activations below the classifier's input in the latest forward pass, (B, D) for each layer.
    """

    state_attrs: ClassVar[tuple[str, ...]] = ("_mean", "_num_batches")

    def __init__(
        self,
        model: nn.Module,
        hyperparameters: AlignedHyperparameters,
        *,
        inner: Callable[[], Sequence[torch.Tensor]],
        **kwargs: Any,
    ) -> None:
        super().__init__(model, hyperparameters, **kwargs)
        self.generator = torch.Generator().manual_seed(self.seed)  # Candidates are drawn on the host.
        self._inner = inner
        self._classifier = find_classifier(model, num_classes=self.num_classes, method=self.name)
        self._features = Features(self._classifier)
        self._source = self._source_moments(hyperparameters.source_size)
        self._mean = torch.zeros(self._classifier.in_features, device=self.device)
        self._num_batches = 0

    @torch.no_grad()
    def _source_moments(self, source_size: int) -> "Moments":
        """Return the moments of each activation over the first *source_size* source images."""
        source = self._require_source_data("the statistics of its activations")
        # Compilation takes long, and the images of the source are few.
        with torch.compiler.set_stance("force_eager"):
            return reduce(_merge_moments, map(self._image_moments, self._first_images(source, source_size)))

    def _image_moments(self, images: torch.Tensor) -> "Moments":
        """Return the moments of each activation over source *images*."""
        self.model(images)
        return _moments(self._activations())

    def _activations(self) -> torch.Tensor:
        """Return the activations of all layers in the latest forward pass, float32 (B, A); the features come last."""
        # The concatenation copies the activations, since a CUDA graph overwrites them when it runs again.
        return torch.cat([each.float() for each in (*self._inner(), self._features.take())], 1)

    def _features_of(self, activations: torch.Tensor) -> torch.Tensor:
        """Return the features (B, D) among the *activations* (B, A)."""
        return activations[:, -len(self._mean) :]

    def _squared_gaps(self, activations: torch.Tensor) -> torch.Tensor:
        """Return the squared differences from the source's mean and standard deviation, summed, (A,)."""
        own, source = _moments(activations), self._source
        return (own.mean - source.mean) ** 2 + (own.deviation - source.deviation) ** 2

    def _classify_shifted(self, features: torch.Tensor, *, weight: float = 1.0) -> torch.Tensor:
        """Return the logits (B, K) of *features* (B, D), shifted by *weight*, gamma in the paper."""
        if self._num_batches:
            features = features + weight * (self._source.mean[-len(self._mean) :] - self._mean)
        return linear(features, self._classifier.weight, self._classifier.bias)

    def _follow(self, mean: torch.Tensor, *, momentum: float = 0.1) -> None:
        """Add the *mean* (D,) of a batch to the moving average by which later batches are shifted."""
        self._mean.lerp_(mean, momentum if self._num_batches else 1.0)
        self._num_batches += 1


def summed_loss(logits: torch.Tensor, squared_gaps: torch.Tensor, *, weight: float) -> torch.Tensor:
    """Return the entropies of *logits* (B, K), summed, plus *weight* B / 64 times the discrepancy, a scalar.

    The discrepancy is the sum of *squared_gaps* (A,). FOA's fitness, and the loss of FOZO (equations 13 to 15).
    """
    return entropy(logits).sum().float() + weight * len(logits) / _BATCH_SIZE_OF_WEIGHT * squared_gaps.sum()


class Moments(NamedTuple):
    """Mean of *num_rows* rows (A,), and the sum of their squared distances from the mean."""

    num_rows: int
    mean: torch.Tensor
    squares: torch.Tensor

    @property
    def deviation(self) -> torch.Tensor:
        """The unbiased standard deviation; 0 for one row."""
        return (self.squares / max(1, self.num_rows - 1)).sqrt()


def _moments(rows: torch.Tensor) -> Moments:
    """Return the moments of *rows* (B, A)."""
    mean = rows.mean(0)
    return Moments(len(rows), mean, ((rows - mean) ** 2).sum(0))


def _merge_moments(first: Moments, second: Moments) -> Moments:
    """Return the moments of the rows of both (Chan et al. 1979), exact in float32 over any number of rows."""
    count = first.num_rows + second.num_rows
    gap = second.mean - first.mean
    mean = first.mean + gap * (second.num_rows / count)
    return Moments(count, mean, first.squares + second.squares + gap**2 * (first.num_rows * second.num_rows / count))
