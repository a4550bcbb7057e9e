"""FOA: finds prompts for a ViT by forward passes alone, and shifts its features back towards the source's mean.

Niu et al. 2024, "Test-time model adaptation with only forward passes", section 3:

- Forward-only prompt adaptation: the method learns only prompts, tokens next to the image's, by CMA-ES (`cma_es`). Each
  of K candidates predicts each batch once: the candidates that the search proposes, and the best candidate of the
  previous batch, which also enters the search. The fitness (equation 5), which is minimised, is the sum of the
  entropies of the predictions plus lambda B / 64 times the discrepancy. The discrepancy compares the mean and standard
  deviation of the class token over the batch with the same moments over source images, without prompts: squared
  differences, summed over features and layers.
- Back-to-source activation shifting (equations 7 to 9): the features, that is the class token that the classifier
  reads, move by gamma (mu_S - mu(t - 1)), where mu(t) = alpha mu(batch) + (1 - alpha) mu(t - 1), and mu(batch) is the
  mean over the images and over all candidates.

The prediction is the best candidate's, after the shift. The fitness uses features and predictions before the shift. The
model's weights do not change. If the paper leaves a detail open, this file follows the authors' program for the
published numbers (mr-eggplant/FOA, facts only, since its code is not free):

- The class token is read where it enters the attention of the next block, after that block's first norm. For the last
  layer it is read where it enters the classifier, after the last norm. Standard deviations are unbiased.
- The search starts at prompts of zero with step size 1. For the first batch, which has no previous batch, prompts
  drawn uniformly replace the best candidate, within Xavier's bound for a linear layer from a patch's pixels to a token.
  The features of the first batch are not shifted, and mu(1) is their mean.
"""

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.functional import linear

from tta_pipeline.methods.augmentations import copy_to_device
from tta_pipeline.methods.features import Features, find_classifier
from tta_pipeline.methods.gradient_free.cma_es import CmaEs
from tta_pipeline.methods.gradient_free.entries import FoaHyperparameters
from tta_pipeline.methods.losses import entropy
from tta_pipeline.methods.method import Method
from tta_pipeline.methods.tokens import ClassTokens, Tokens

_BATCH_SIZE_OF_LAMBDA = 64


class Foa(Method):
    """Searches prompts of a ViT by the fitness of candidates, and shifts the features towards the source's mean."""

    name = "foa"
    state_attrs = ("_search", "_best", "_mean", "_num_batches")

    def __init__(self, model: nn.Module, hyperparameters: FoaHyperparameters, **kwargs: Any) -> None:
        super().__init__(model, hyperparameters, **kwargs)
        self._settings = hyperparameters
        self.generator = torch.Generator().manual_seed(self.seed)  # CMA-ES draws on the host.
        self._tokens = Tokens(model, self.name)
        self._class_tokens = ClassTokens(self._tokens.attentions[1:])
        self._classifier = find_classifier(model, num_classes=self.num_classes, method=self.name)
        self._features = Features(self._classifier)
        self._source = self._source_moments()
        self._best = torch.zeros(hyperparameters.num_prompts * self._tokens.width, dtype=torch.float64)
        self._search = CmaEs(
            torch.zeros_like(self._best),
            step_size=hyperparameters.step_size,
            population_size=hyperparameters.population_size - 1,
        )
        self._mean = torch.zeros(self._classifier.in_features, device=self.device)
        self._num_batches = 0

    @torch.no_grad()
    def _source_moments(self) -> "_Moments":
        """Return the moments of each activation over the first `source_size` source images."""
        source = self._require_source_data("the statistics of its activations")
        # Compilation takes long, and compiled code is needed only for images with prompts.
        with torch.compiler.set_stance("force_eager"):
            return reduce(
                _merge_moments, map(self._image_moments, self._first_images(source, self._settings.source_size))
            )

    def _image_moments(self, images: torch.Tensor) -> "_Moments":
        """Return the moments of each activation over source *images*."""
        self.model(images)
        return _moments(self._activations())

    def _activations(self) -> torch.Tensor:
        """Return the activations of all layers in the latest forward pass, float32 (B, A); the features come last."""
        # The concatenation copies the activations, since a CUDA graph overwrites them when it runs again.
        return torch.cat([each.float() for each in (*self._class_tokens.latest(), self._features.take())], 1)

    @torch.no_grad()
    def _predict(self, images: torch.Tensor) -> torch.Tensor:
        if not self._num_batches:
            # Xavier's bound for a linear layer from the pixels of a patch, of three colours, to a token.
            bound = math.sqrt(6 / (3 * self._tokens.patch_area + self._tokens.width))
            self._best.uniform_(-bound, bound, generator=self.generator)
        candidates = torch.cat([self._search.ask(self.generator), self._best.unsqueeze(0)])
        (prompts,) = copy_to_device([candidates.view(len(candidates), -1, self._tokens.width).float()], self.device)
        found = [self._evaluate_prompts(images, each) for each in prompts]
        # The host waits for the device, since the values decide the next candidates and the prediction.
        values = torch.stack([value for value, _ in found]).cpu().double()
        self._search.tell(candidates, values)
        # `argmin` takes a NaN for the smallest number.
        best = int(values.nan_to_num(torch.inf).argmin())
        self._best.copy_(candidates[best])
        return self._predict_shifted([features for _, features in found], best)

    def _evaluate_prompts(self, images: torch.Tensor, prompts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the fitness of *prompts* (N, D), a scalar, and the features (B, D) with these prompts."""
        with self._tokens.prompted(prompts):
            logits = self._forward(images)
        activations = self._activations()
        own, source = _moments(activations), self._source
        discrepancy = ((own.mean - source.mean) ** 2 + (own.deviation - source.deviation) ** 2).sum()
        weight = self._settings.fitness_lambda * len(images) / _BATCH_SIZE_OF_LAMBDA
        return entropy(logits).sum().float() + weight * discrepancy, activations[:, -len(self._mean) :]

    def _predict_shifted(self, features: Sequence[torch.Tensor], best: int) -> torch.Tensor:
        """Return the logits of the *best* of *features*, (B, D) each, after the shift; update mu with all of them."""
        shifted = features[best]
        if self._num_batches:
            shifted = shifted + self._settings.shift_weight * (self._source.mean[-len(self._mean) :] - self._mean)
        own = torch.stack([each.mean(0) for each in features]).mean(0)
        self._mean.lerp_(own, self._settings.shift_momentum if self._num_batches else 1.0)
        self._num_batches += 1
        return linear(shifted, self._classifier.weight, self._classifier.bias)


class _Moments(NamedTuple):
    """Mean of *num_rows* rows (A,), and the sum of their squared distances from the mean."""

    num_rows: int
    mean: torch.Tensor
    squares: torch.Tensor

    @property
    def deviation(self) -> torch.Tensor:
        """The unbiased standard deviation; 0 for one row."""
        return (self.squares / max(1, self.num_rows - 1)).sqrt()


def _moments(rows: torch.Tensor) -> _Moments:
    """Return the moments of *rows* (B, A)."""
    mean = rows.mean(0)
    return _Moments(len(rows), mean, ((rows - mean) ** 2).sum(0))


def _merge_moments(first: _Moments, second: _Moments) -> _Moments:
    """Return the moments of the rows of both (Chan et al. 1979), exact in float32 over any number of rows."""
    count = first.num_rows + second.num_rows
    gap = second.mean - first.mean
    mean = first.mean + gap * (second.num_rows / count)
    return _Moments(count, mean, first.squares + second.squares + gap**2 * (first.num_rows * second.num_rows / count))
