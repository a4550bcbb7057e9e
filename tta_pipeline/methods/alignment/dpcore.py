"""DPCore: learns prompts for a ViT for each new domain, and reuses them when a similar domain comes back.

Zhang et al. 2025, "DPCore: Dynamic prompt coreset for continual test-time adaptation":

- Visual prompt adaptation: the method learns only prompts, tokens next to the image's. The loss is the distance of a
  batch from the source: the Euclidean distance between the means of their features over images, plus that between their
  standard deviations. Features are the class token that the classifier reads.
- Prompt coreset: each element has the prompts that were learned for a batch, and that batch's mean and standard
  deviation without prompts.
- Dynamic update: an element's weight is the softmax, over elements, of minus its distance from the batch, divided by
  tau. If the mean of the coreset's prompts by these weights brings the batch's distance from the source below rho times
  the distance without prompts, they predict the batch and take one step. Then each element moves by alpha times its
  weight towards the batch's statistics and the new prompts. Otherwise new prompts take `steps` steps, and become an
  element.

The model's weights do not change. Where this file cannot follow the paper, it follows the authors' program for the
published numbers (zybeich/DPCore): new prompts always start from the same random draw, within Xavier's bound for a
linear layer from a patch's pixels to a token, with a fresh AdamW; elements move towards the statistics with prompts; a
standard deviation of the coreset never falls. The pass that judges the coreset's prompts is also the one that learns,
which saves one pass of three.
"""

from typing import Any

import torch
from torch import nn

from tta_pipeline.methods.alignment.entries import DpcoreHyperparameters
from tta_pipeline.methods.features import Features, find_classifier
from tta_pipeline.methods.gradient_method import GradientMethod
from tta_pipeline.methods.stateful import GrowingState
from tta_pipeline.methods.tokens import Tokens


class Dpcore(GradientMethod):
    """Learns prompts that bring a ViT's features back to the source's, and stores them with the domain they fit."""

    name = "dpcore"
    state_attrs = ("_coreset",)

    def __init__(self, model: nn.Module, hyperparameters: DpcoreHyperparameters, **kwargs: Any) -> None:
        self._settings = hyperparameters
        self._tokens = Tokens(model, self.name)
        super().__init__(model, hyperparameters, **kwargs)
        self._features = Features(find_classifier(model, num_classes=self.num_classes, method=self.name))
        self._source = self._source_moments()
        self._first_prompts = torch.empty_like(self._prompts)
        self._tokens.draw_prompts(self._first_prompts, self.generator)
        self._fresh_optimizer = self._optimizer.state_dict()
        self._coreset = _Coreset(self._source, self._first_prompts)

    def _select(self, model: nn.Module) -> list[nn.Parameter]:
        model.requires_grad_(False)
        self._prompts = nn.Parameter(torch.zeros(self._settings.num_prompts, self._tokens.width, device=self.device))
        model.register_parameter("prompts", self._prompts)
        return [self._prompts]

    @torch.no_grad()
    def _source_moments(self) -> torch.Tensor:
        """Return the moments of the features of the first `source_size` source images, (2, D)."""
        source = self._require_source_data("the statistics of its features")
        features = []
        for images in self._first_images(source, self._settings.source_size):
            self.model(images)
            features.append(self._features.take().float())
        return _moments(torch.cat(features))

    def _predict(self, images: torch.Tensor) -> torch.Tensor:
        if self._episodic:
            self._start_over()
        with torch.no_grad():
            self._forward(images)
            moments = _moments(self._features.take().float())
        with torch.enable_grad():
            logits = self._reuse_prompts(images, moments)
            return (self._learn_prompts(images, moments) if logits is None else logits).detach()

    def _reuse_prompts(self, images: torch.Tensor, moments: torch.Tensor) -> torch.Tensor | None:
        """Return the logits (B, K) of *images* with the coreset's prompts, which take a step; None if they do not fit.

        The images have these *moments* (2, D) without prompts.
        """
        if not len(self._coreset):
            return None
        weights = self._coreset.weights(moments, temperature=self._settings.temperature)
        self._start_from(self._coreset.mean_prompts(weights))
        logits, prompted = self._prompted(images)
        loss = _distance(prompted, self._source)
        # The host waits for the comparison, which decides between one step and `steps` steps.
        if not loss < self._settings.reuse_threshold * _distance(moments, self._source):
            return None
        self._step(loss, num_samples=len(images))
        self._coreset.follow(prompted.detach(), self._prompts.detach(), self._settings.coreset_rate * weights)
        return logits

    def _learn_prompts(self, images: torch.Tensor, moments: torch.Tensor) -> torch.Tensor:
        """Return the logits (B, K) of *images* with new prompts, which join the coreset with *moments* (2, D)."""
        self._start_from(self._first_prompts)
        for _ in range(self._steps):
            logits, prompted = self._prompted(images)
            self._step(_distance(prompted, self._source), num_samples=len(images))
        self._coreset.add(moments, self._prompts.detach())
        return logits

    def _start_from(self, prompts: torch.Tensor) -> None:
        """Let the next steps start from *prompts* (N, D), with a fresh optimiser."""
        self._prompts.detach().copy_(prompts)
        self._optimizer.load_state_dict(self._fresh_optimizer)

    def _prompted(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits (B, K) and moments (2, D) of *images* with the current prompts."""
        with self._tokens.prompted(self._prompts):
            logits = self._forward(images)
        return logits, _moments(self._features.take().float())


class _Coreset(GrowingState):
    """Moments (E, 2, D) and prompts (E, N, D) of E elements."""

    state_attrs = ("_moments", "_prompts")

    def __init__(self, moments: torch.Tensor, prompts: torch.Tensor) -> None:
        """Make an empty coreset for elements with *moments* (2, D) and *prompts* (N, D) of these shapes."""
        self._moments = moments.new_empty(0, *moments.shape)
        self._prompts = prompts.new_empty(0, *prompts.shape)

    def __len__(self) -> int:
        return len(self._moments)

    def weights(self, moments: torch.Tensor, *, temperature: float) -> torch.Tensor:
        """Return the weight (E,) of each element for a batch of *moments* (2, D)."""
        return (-_distance(self._moments, moments) / temperature).softmax(0)

    def mean_prompts(self, weights: torch.Tensor) -> torch.Tensor:
        """Return the mean of the prompts by *weights* (E,), (N, D)."""
        return (weights.view(-1, 1, 1) * self._prompts).sum(0)

    def add(self, moments: torch.Tensor, prompts: torch.Tensor) -> None:
        """Add an element with these *moments* (2, D) and *prompts* (N, D)."""
        self._moments = torch.cat([self._moments, moments.unsqueeze(0)])
        self._prompts = torch.cat([self._prompts, prompts.unsqueeze(0)])

    def follow(self, moments: torch.Tensor, prompts: torch.Tensor, rates: torch.Tensor) -> None:
        """Move each element by its share of *rates* (E,) towards *moments* (2, D) and *prompts* (N, D)."""
        change = moments - self._moments
        change[:, 1].clamp_(min=0)  # a standard deviation never falls
        self._moments += rates.view(-1, 1, 1) * change
        self._prompts += rates.view(-1, 1, 1) * (prompts - self._prompts)


def _moments(features: torch.Tensor) -> torch.Tensor:
    """Return mean and standard deviation of *features* (B, D) over images, (2, D); the deviation of one image is 0."""
    deviation, mean = torch.std_mean(features, 0, correction=min(1, len(features) - 1))
    return torch.stack([mean, deviation])


def _distance(moments: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Return the distance between the means plus that between the deviations of *moments* and *others*, (..., 2, D)."""
    distances: torch.Tensor = torch.linalg.vector_norm(moments - others, dim=-1)
    return distances.sum(-1)
