"""FOA: prompts for a ViT, found without gradients, and features moved back to where those of the source were.

Niu et al. 2024, "Test-time model adaptation with only forward passes", section 3:

- Forward-only prompt adaptation: prompts, tokens beside those of an image, are the only thing that is learned, by
  CMA-ES (`cma_es`). For each batch it proposes K candidates, each of which predicts the batch once. The fitness
  (equation 5), which is to be small, is the sum of the entropies of the predictions, and lambda B / 64 times the
  discrepancy: the sum over layers of |mu - mu_S| + |sigma - sigma_S|, Euclidean norms of the distances of mean and
  standard deviation of the class token over the batch from those over a few source images, without prompts.
- Back-to-source activation shifting (equations 7 to 9): the features, those of the class token that the classifier
  reads, move by gamma (mu_S - mu(t)), where mu(t) = alpha mu(batch) + (1 - alpha) mu(t - 1).

The prediction is that of the best candidate, shifted. Fitness is of features and predictions before the shift. The
search begins at prompts of zero, and mu(t) with the first batch. No weight of the model changes. Constants are the
authors'.
"""

from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear

from tta_pipeline.adaptation.augmentations import sent
from tta_pipeline.adaptation.catalogue import FoaHyperparameters
from tta_pipeline.adaptation.cma_es import CmaEs
from tta_pipeline.adaptation.features import Features, classifier
from tta_pipeline.adaptation.losses import entropy
from tta_pipeline.adaptation.method import Method
from tta_pipeline.adaptation.tokens import ClassTokens, Tokens

_BATCH_SIZE_OF_LAMBDA = 64


class Foa(Method):
    """Adapts prompts of a ViT by the fitness of candidates, and shifts its features towards the source's."""

    name = "foa"
    keeps = ("_search", "_mean", "_num_batches")

    def __init__(self, model: nn.Module, hyperparameters: FoaHyperparameters, **kwargs: Any) -> None:
        super().__init__(model, hyperparameters, **kwargs)
        self._settings = hyperparameters
        self.generator = torch.Generator().manual_seed(self.seed)  # CMA-ES draws on the host.
        self._tokens = Tokens(model, self.name)
        self._class_tokens = ClassTokens(self._tokens.blocks[:-1])
        self._classifier = classifier(model, num_classes=self.num_classes, method=self.name)
        self._features = Features(self._classifier)
        self._source_moments = self._of_source()
        self._search = CmaEs(
            torch.zeros(hyperparameters.num_prompts * self._tokens.width, dtype=torch.float64),
            step_size=hyperparameters.step_size,
            population_size=hyperparameters.population_size,
        )
        self._mean = torch.zeros(self._classifier.in_features, device=self.device)
        self._num_batches = 0

    @torch.no_grad()
    def _of_source(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return mean and standard deviation of each layer over the first source images."""
        source = self._require_source_data("the statistics of its activations")
        batches = []
        # Compiled code is for images with prompts, and takes long to make.
        with torch.compiler.set_stance("force_eager"):
            for images in self._first_images(source, self._settings.source_size):
                self.model(images)
                batches.append(self._activations())
        return [_moments(torch.cat(layer)) for layer in zip(*batches, strict=True)]

    def _activations(self) -> list[torch.Tensor]:
        """Return those of each layer in the latest forward pass, float32 (B, D), the last being the features."""
        # They are copied, since a CUDA graph overwrites them when it runs again.
        return [each.float().clone() for each in (*self._class_tokens.latest(), self._features.take())]

    @torch.no_grad()
    def _predict(self, images: torch.Tensor) -> torch.Tensor:
        candidates = self._search.ask(self.generator)
        (prompts,) = sent([candidates.view(len(candidates), -1, self._tokens.width).float()], self.device)
        found = [self._try(images, each) for each in prompts]
        # The host waits for the device: the values decide the next candidates, and the prediction.
        values = torch.stack([value for value, _ in found]).cpu().double()
        self._search.tell(candidates, values)
        # To `argmin` a NaN is the least of all numbers.
        return self._shifted(found[int(values.nan_to_num(torch.inf).argmin())][1])

    def _try(self, images: torch.Tensor, prompts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the fitness of *prompts* (N, D), a scalar, and the features (B, D) that they give."""
        with self._tokens.prompted(prompts):
            logits = self._forward(images)
        activations = self._activations()
        pairs = zip(map(_moments, activations), self._source_moments, strict=True)
        discrepancy = sum((own - of_source).norm() for both in pairs for own, of_source in zip(*both, strict=True))
        weight = self._settings.fitness_lambda * len(images) / _BATCH_SIZE_OF_LAMBDA
        return entropy(logits).sum().float() + weight * discrepancy, activations[-1]

    def _shifted(self, features: torch.Tensor) -> torch.Tensor:
        """Return the logits of *features* (B, D) after the shift towards the source."""
        self._mean.lerp_(features.mean(0), self._settings.shift_momentum if self._num_batches else 1.0)
        self._num_batches += 1
        shift = self._settings.shift_weight * (self._source_moments[-1][0] - self._mean)
        return linear(features + shift, self._classifier.weight, self._classifier.bias)


def _moments(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and standard deviation of *rows* (B, D), both (D,); the deviation of one row is 0."""
    return rows.mean(0), rows.std(0, correction=0)
